"""Contact sheets of every page of the site, as a desktop and as a phone shows them:   make site, then

    python scripts/site_pictures.py [FOLDER]      needs chromium and Pillow; FOLDER defaults to docs/images

They are for looking at after a change of many pages: a table that runs over, a heading that breaks, a drawing that is missing.
"""

from __future__ import annotations

import html
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

REPOSITORY = Path(__file__).resolve().parent.parent
SITE = REPOSITORY / "site"
WIDTHS = {"desktop": (1280, 1000, 0.16), "phone": (390, 1000, 0.26)}
"""Width and height of a page in CSS pixels, and the scale at which the sheet shows it."""
SHEET_WIDTH = 1640
PAGES_AT_ONCE = 30
COLOURS = 32


def sheet(pages: list[Path], width: int, height: int, scale: float) -> str:
    """Return a page that shows the top of each page in a frame, with its path above it."""
    cells = []
    for page in pages:
        name = html.escape(str(page.relative_to(SITE)))
        size = f"width:{width * scale:.0f}px"
        frame = f"width:{width}px;height:{height}px;border:0;transform:scale({scale});transform-origin:0 0"
        cells.append(
            f'<div style="display:inline-block;margin:4px;vertical-align:top;{size}">'
            f'<div style="overflow:hidden;white-space:nowrap;color:#fff;font:11px sans-serif;height:15px">{name}</div>'
            f'<div style="{size};height:{height * scale:.0f}px;overflow:hidden;background:#fff">'
            f'<iframe src="{page.as_uri()}" style="{frame}"></iframe></div></div>'
        )
    return f'<meta charset="utf-8"><body style="margin:0;background:#555;font-size:0">{"".join(cells)}</body>'


def across(shape: tuple[int, int, float]) -> int:
    """Return how many pages stand in a row."""
    return SHEET_WIDTH // round(shape[0] * shape[2] + 8)


def picture(chromium: str, scratch: Path, pages: list[Path], shape: tuple[int, int, float]) -> Image.Image:
    """Return a screenshot of one sheet."""
    _, height, scale = shape
    page, file = scratch / "sheet.html", scratch / "sheet.png"
    page.write_text(sheet(pages, *shape), encoding="utf-8")
    rows = -(-len(pages) // across(shape))
    window = f"--window-size={SHEET_WIDTH},{rows * round(height * scale + 15 + 8)}"
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={scratch / 'profile'}"]
    command = [chromium, *options, f"--screenshot={file}", window, page.as_uri()]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL, timeout=300)
    with Image.open(file) as image:
        return image.convert("RGB")


def main() -> int:
    """Write one picture for each width."""
    chromium = next((found for name in ("chromium", "google-chrome") if (found := shutil.which(name))), None)
    pages = sorted(page for page in SITE.rglob("*.html") if page.name != "404.html")
    if chromium is None or not pages:
        print("chromium is missing" if chromium is None else "the site is not built:  make site", file=sys.stderr)
        return 1
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else REPOSITORY / "docs" / "images"
    folder.mkdir(parents=True, exist_ok=True)
    for name, shape in WIDTHS.items():
        with tempfile.TemporaryDirectory() as scratch:
            count = PAGES_AT_ONCE // across(shape) * across(shape)  # whole rows
            groups = [pages[at : at + count] for at in range(0, len(pages), count)]
            parts = [picture(chromium, Path(scratch), group, shape) for group in groups]
        whole = Image.new("RGB", (SHEET_WIDTH, sum(part.height for part in parts)), "#555555")
        top = 0
        for part in parts:
            whole.paste(part, (0, top))
            top += part.height
        path = folder / f"site-pages-{name}.png"
        whole.quantize(COLOURS).save(path, optimize=True)
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
