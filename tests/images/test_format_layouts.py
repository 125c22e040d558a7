"""PNG, GIF, bitmap and WebP files of every layout: the pixels are Pillow's, or the file is refused. Never wrong pixels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from against_pillow import decoded, outcome, pixels_of_pillow
from bitmap_files import BITFIELDS, BitmapLayout, bitmap_file, bitmap_layouts
from gif_files import GifLayout, gif_file, gif_layouts
from headrace.images.decode import UNSUPPORTED, reason
from png_files import png_file, png_layouts
from webp_files import webp_file, webp_layouts


def outcomes_of(layouts: Iterable[Any], write: Callable[[Any], bytes]) -> Counter[tuple[str, str]]:
    """Count the files by kind and outcome; fail at wrong pixels."""
    found: Counter[tuple[str, str]] = Counter()
    wrong = []
    for layout in layouts:
        seen = outcome(write(layout))
        found[layout.kind, seen] += 1
        if seen == "wrong":
            wrong.append(layout.name)
    assert not wrong, f"{len(wrong)} with wrong pixels:\n" + "\n".join(wrong[:20])
    return found


@pytest.mark.slow
def test_png_of_every_layout_is_pillows() -> None:
    found = outcomes_of(png_layouts(), png_file)
    assert {seen for _, seen in found} == {"equal"}
    assert found.total() > 2000


@pytest.mark.slow
def test_gif_of_every_layout_is_pillows() -> None:
    found = outcomes_of(gif_layouts(), gif_file)
    refused = {kind for kind, seen in found if seen != "equal"}
    assert refused and all(kind.startswith("no palette") for kind in refused)
    assert found.total() > 2500


@pytest.mark.slow
def test_webp_of_every_layout_is_pillows() -> None:
    found = outcomes_of(webp_layouts(), webp_file)
    assert {seen for _, seen in found} == {"equal"}
    assert found.total() > 1000


def test_bitmaps_of_every_layout_are_pillows_or_refused() -> None:
    found = outcomes_of(bitmap_layouts(), bitmap_file)
    more = {kind for kind, seen in found if seen == "only headrace"}
    assert more == {"32 bits, masks", "run lengths of 4 bits: empty rows", "run lengths of 8 bits: empty rows"}
    assert sum(count for (_, seen), count in found.items() if seen == "equal") > 500


def test_refused_bitmaps_are_of_kinds_that_the_page_names() -> None:
    """docs/reference/exactness-files.md."""
    for layout in bitmap_layouts():
        ours = decoded(bitmap_file(layout))
        os2 = layout.header_bytes == 64 or (layout.header_bytes == 12 and layout.bits in (16, 32))
        masks = layout.compression == BITFIELDS and (layout.bits == 24 or not usual(layout))
        upside_down = layout.top_down and layout.compression in (1, 2)
        assert isinstance(ours, int) == (os2 or masks or upside_down), (
            f"{layout.name}: {ours if isinstance(ours, int) else 'decoded'}"
        )
        if layout.header_bytes == 64:
            assert ours == UNSUPPORTED, reason(int(ours))


def usual(layout: BitmapLayout) -> bool:
    """Return whether the masks are 5-5-5 or 5-6-5, or three whole bytes."""
    if layout.bits == 16:
        return layout.masks[:3] in ((0xF800, 0x7E0, 0x1F), (0x7C00, 0x3E0, 0x1F))
    return all(mask in (0xFF, 0xFF00, 0xFF0000, 0xFF000000) for mask in layout.masks[:3])


def test_masks_that_only_headrace_reads_give_the_bytes_that_they_state() -> None:
    """The same pixels with a mask of alpha, which Pillow reads."""
    masks = (0xFF, 0xFF00, 0xFF0000, 0)
    ours = decoded(bitmap_file(BitmapLayout(40, 32, BITFIELDS, masks)))
    with_alpha = bitmap_file(BitmapLayout(56, 32, BITFIELDS, (*masks[:3], 0xFF000000)))
    np.testing.assert_array_equal(ours, pixels_of_pillow(with_alpha))


@pytest.mark.parametrize("height", [*range(1, 10), 13, 40])
@pytest.mark.parametrize("pixels", ["flat", "noise"])
def test_interlaced_gif_of_few_rows(pixels: str, height: int) -> None:
    """A single code of a flat image covers several rows."""
    data = gif_file(GifLayout(8, 0, interlaced=True, pixels=pixels, height=height))  # type: ignore[arg-type]
    ours, theirs = decoded(data), pixels_of_pillow(data)
    assert theirs is not None and theirs.shape[0] == height
    np.testing.assert_array_equal(ours, theirs)
