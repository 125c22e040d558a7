"""Print a digest of the pixels that an installed headrace decodes, to compare machines.

python scripts/wheel_pixels.py --make FOLDER     # writes test images (needs Pillow)
python scripts/wheel_pixels.py FOLDER            # one line: headrace's version, the machine, the digest
"""

from __future__ import annotations

import hashlib
import platform
import sys
from pathlib import Path


def make(folder: Path) -> None:
    """Write JPEGs of all subsamplings, sizes and kinds, and a PNG, with the contents of a fixed generator."""
    import numpy as np
    from PIL import Image

    folder.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(7)
    for number, (width, height) in enumerate([(640, 480), (333, 251), (90, 70), (17, 9), (500, 375)]):
        coarse = draw.integers(0, 255, (height // 6 + 2, width // 6 + 2, 3), dtype=np.uint8)
        image = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
        for subsampling in ("4:4:4", "4:2:2", "4:2:0"):
            name = f"{number}-{subsampling.replace(':', '')}"
            image.save(folder / f"{name}.jpg", quality=88, subsampling=subsampling)
            image.save(folder / f"{name}-progressive.jpg", quality=75, subsampling=subsampling, progressive=True)
        image.convert("L").save(folder / f"{number}-gray.jpg", quality=90)
        image.save(folder / f"{number}.png")


def digest(folder: Path) -> str:
    """Return the SHA-256 of crops of all images, plain, flipped, resized by two filters, and with restart markers."""
    import headrace
    import numpy as np

    total = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        data = path.read_bytes()
        versions = (
            [data, headrace.restart_markers(data)] if path.suffix == ".jpg" and "progressive" not in path.name else [data]
        )
        for version in versions:
            for box in ((0, 0, 17, 9), (3, 2, 11, 6)):
                for resample in ("bilinear", "bicubic"):
                    out = np.zeros((2, 24, 32, 3), np.uint8)
                    options = {"boxes": [box, box], "flips": [False, True], "resample": resample}
                    statuses = headrace.decode_into([version, version], out, **options)
                    assert not statuses.any(), path
                    total.update(out.tobytes())
            whole = np.zeros((1, 224, 224, 3), np.uint8)
            assert not headrace.decode_into([version], whole).any() and whole.any(), path
            total.update(whole.tobytes())
    return total.hexdigest()


def main() -> int:
    """Write the images, or print the digest."""
    if len(sys.argv) == 3 and sys.argv[1] == "--make":
        make(Path(sys.argv[2]))
        return 0
    import headrace

    print(f"headrace {headrace.__version__} {platform.machine()} {digest(Path(sys.argv[1]))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
