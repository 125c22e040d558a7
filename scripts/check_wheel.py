"""Installs the newest wheel for this machine into clean venvs and decodes an image there, with no compiler on the PATH.

python scripts/check_wheel.py dist [python3.11 python3.12 …]     default: every python3.N on the PATH, and pyenv's
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import tempfile
from pathlib import Path

PROGRAM = """
import io, sys, numpy, headrace
from PIL import Image
file = io.BytesIO()
Image.effect_noise((90, 70), 60).convert("RGB").save(file, "JPEG")
out = numpy.zeros((1, 32, 32, 3), numpy.uint8)
assert headrace.decode_into([file.getvalue()], out).tolist() == [0] and out.any()
expected = numpy.asarray(Image.open(file).convert("RGB").resize((32, 32), Image.Resampling.BILINEAR))
assert (out[0] == expected).all(), "pixels differ from Pillow's"
from headrace.gpu.decoder.arguments import SOURCE
assert "__global__" in SOURCE.read_text(), "the CUDA source, which is compiled at run time, is not in the wheel"
print("ok: Python", sys.version.split()[0], "headrace", headrace._native.__version__)
"""


def interpreters() -> list[str]:
    """Return the CPythons from 3.11 on of this machine, one of each minor version."""
    folders = [Path(part) for part in os.environ["PATH"].split(os.pathsep)]
    folders += sorted(Path.home().glob(".pyenv/versions/*/bin"))
    found: dict[str, str] = {}
    for folder in folders:
        for path in sorted(folder.glob("python3.*")):
            match = re.fullmatch(r"python(3\.(\d+))", path.name)
            if match and int(match[2]) >= 11 and "shims" not in folder.parts:  # pyenv's shims need a chosen version
                found.setdefault(match[1], str(path))
    return list(found.values())


def main() -> int:
    folder, *pythons = sys.argv[1:]
    wheel = max(Path(folder).glob(f"headrace-*{platform.machine()}.whl"), key=lambda path: path.stat().st_mtime)
    print(f"{wheel.name}: {wheel.stat().st_size / 2**20:.2f} MiB")
    for python in pythons or interpreters():
        with tempfile.TemporaryDirectory() as temporary:
            venv = Path(temporary) / "venv"
            subprocess.run([python, "-m", "venv", venv], check=True)
            pip = [venv / "bin" / "pip", "install", "-q", "--disable-pip-version-check"]
            subprocess.run([*pip, wheel, "pillow"], check=True)
            bare = {"PATH": str(venv / "bin"), "HOME": temporary}
            subprocess.run([venv / "bin" / "python", "-c", PROGRAM], check=True, env=bare, cwd=temporary)
    return 0


if __name__ == "__main__":
    sys.exit(main())
