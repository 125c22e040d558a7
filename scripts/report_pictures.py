"""Pictures of a report for the documentation: as a desktop, a tablet in dark colours and a phone show it.

    python scripts/report_pictures.py [SESSION [FOLDER]]      needs chromium and Pillow

SESSION: a recorded session (default: the generated one of the tests, `tests/helpers/session_factory.py`). FOLDER defaults to
docs/images.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from headrace.report.pages import html
from headrace.report.sessions.session_folder import read_session_folder
from PIL import Image

REPOSITORY = Path(__file__).resolve().parent.parent
DARK = ["--force-dark-mode", "--blink-settings=preferredColorScheme=0"]
PICTURES = {"desktop": (1280, 1700, []), "tablet-dark": (768, 1400, DARK), "phone": (390, 1500, [])}
"""Width and height of the window in CSS pixels, and further options of the browser."""

COLOURS = 128
"""Colours of a picture: a page has few, so that nothing is seen to be missing, and the file is a third as large."""


def generated_session(folder: Path) -> Path:
    """Write the session of the tests with its diagnosis."""
    sys.path.insert(0, str(REPOSITORY / "tests" / "helpers"))
    from session_factory import example_diagnosis, example_session  # type: ignore[import-not-found]

    session: Path = example_session().save(folder)
    (session / "diagnosis.json").write_text(json.dumps(example_diagnosis().to_json()), encoding="utf-8")
    return session


def main() -> int:
    """Write one picture for each window."""
    chromium = next((found for name in ("chromium", "google-chrome") if (found := shutil.which(name))), None)
    if chromium is None:
        print("chromium is missing", file=sys.stderr)
        return 1
    target = Path(sys.argv[2]) if len(sys.argv) > 2 else REPOSITORY / "docs" / "images"
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        session, diagnosis = read_session_folder(sys.argv[1] if len(sys.argv) > 1 else generated_session(scratch / "session"))
        page = scratch / "report.html"
        page.write_text(html.render(diagnosis, session=session), encoding="utf-8")
        for name, (width, height, further) in PICTURES.items():
            options = [
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--hide-scrollbars",
                f"--user-data-dir={scratch / 'profile'}",
            ]
            shot = scratch / f"{name}.png"
            size = [f"--screenshot={shot}", f"--window-size={width},{height}"]
            subprocess.run(
                [chromium, *options, *further, *size, page.as_uri()], check=True, stderr=subprocess.DEVNULL, timeout=300
            )
            path = target / f"report-{name}.png"
            with Image.open(shot) as image:
                image.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
            print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
