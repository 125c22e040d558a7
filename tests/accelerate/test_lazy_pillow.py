"""A lazy image is not told from an ordinary one: pixels, attributes, exceptions, files and threads."""

from __future__ import annotations

import os
import random
import warnings
from pathlib import Path

import pytest
from lazy_chains import compare_chain, jpeg_kinds
from PIL import ImageFile

#: The number of random chains. `HEADRACE_LAZY_CHAINS=10000` makes the long run.
CHAINS = int(os.environ.get("HEADRACE_LAZY_CHAINS", "800"))
PARTS = 4


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("load_truncated", [False, True])
def test_random_chains_of_operations_equal_pillows(
    part: int, load_truncated: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", load_truncated)
    rng = random.Random(part * 2 + load_truncated)
    warnings.simplefilter("ignore")
    count = CHAINS // (PARTS * 2)
    files = jpeg_kinds(rng, max(10, count // 4))
    for number in range(count):
        data = rng.choice(files)
        path = tmp_path / f"{number}.jpg"
        path.write_bytes(data)
        difference = compare_chain(rng, data, path)
        path.unlink()
        assert difference is None, difference
