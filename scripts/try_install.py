"""Follow a line of the README from an empty folder: clone, install by pip, uv or a release, train --dry-run on a few images.

    python scripts/try_install.py pip       # or uv; downloads PyTorch and builds headrace: minutes
    python scripts/try_install.py release   # from dist/ of this checkout, which make release fills; no compiler on the PATH

What is committed in this checkout is cloned. The lines are those of README.md that end in `# with pip`, `uv` and `a release`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
IMAGES = """
import sys
from pathlib import Path
from PIL import Image
for number in range(16):
    folder = Path(sys.argv[1]) / f"class_{number % 2}"
    folder.mkdir(parents=True, exist_ok=True)
    Image.effect_noise((90, 70), 60).convert("RGB").save(folder / f"{number}.jpg")
"""


def line_of(way: str, readme: str) -> str:
    """Return the command of the README for `way`."""
    found = re.findall(rf"^(?:    )?(\S.*?)\s+# with {way}$", readme, re.MULTILINE)
    if len(found) != 1:
        raise SystemExit(f"the page has {len(found)} lines that end in `# with {way}`, not 1")
    return str(found[0])


WAYS = {"pip": "pip", "uv": "uv", "release": "a release"}
"""The ways to install, and the words by which their lines in the README end."""


def follow(way: str, scratch: Path) -> dict[str, object]:
    """Install in `scratch` and return the JSON of a dry run."""
    checkout = scratch / "headrace"
    subprocess.run(["git", "clone", "-q", "--depth", "1", REPOSITORY.as_uri(), checkout], check=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    if way == "uv" and shutil.which("uv") is None:
        subprocess.run([sys.executable, "-m", "venv", scratch / "tools"], check=True)
        subprocess.run([scratch / "tools" / "bin" / "pip", "install", "-q", "uv"], check=True)
        environment["PATH"] = f"{scratch / 'tools' / 'bin'}:{environment['PATH']}"
    if way == "release":
        shutil.copytree(REPOSITORY / "dist", checkout / "dist")
        environment["PATH"] = f"{Path(sys.executable).resolve().parent}:/usr/bin:/bin"
    line = line_of(WAYS[way], (checkout / "README.md").read_text(encoding="utf-8"))
    print(f"+ {line}", flush=True)
    subprocess.run(["bash", "-ec", line], cwd=checkout, env=environment, check=True)
    program = checkout / "env" / "bin"
    subprocess.run([program / "python", "-c", IMAGES, scratch / "photos"], check=True, env=environment)
    words = ["--model", "resnet18", "--data", scratch / "photos", "--image-size", "32", "--batch-size", "4", "--device", "cpu"]
    command = [program / "headrace", "train", *words, "--dry-run", "--json"]
    done = subprocess.run(command, cwd=scratch, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


def main() -> int:
    """Follow one way, and print what the dry run found."""
    if len(sys.argv) != 2 or sys.argv[1] not in WAYS:
        print(__doc__, file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="headrace-install-") as scratch:
        answer = follow(sys.argv[1], Path(scratch))
    print(f"ok: {sys.argv[1]}: {answer['model']}, {answer['images']} images, {answer['steps_per_epoch']} steps an epoch")
    return 0


if __name__ == "__main__":
    sys.exit(main())
