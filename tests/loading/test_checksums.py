"""Loaders compare every record of a packed dataset with the checksum in its index."""

from __future__ import annotations

from pathlib import Path

import headrace
import numpy as np
import pytest
from headrace import transforms
from headrace.errors import DecodeError
from sample_images import photograph

DAMAGED = 3


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    source = tmp_path / "source" / "a"
    source.mkdir(parents=True)
    for number in range(8):
        photograph(96, 80, seed=number).save(source / f"{number}.jpg", quality=90)
    target = tmp_path / "packed"
    headrace.pack(source.parent, target)
    return target


def damage(packed: Path) -> None:
    """Change one bit in the last tenth of a record, which a crop of its middle does not decode."""
    table = headrace.open(packed).table
    at = int(table.offset[DAMAGED] + table.size[DAMAGED] * 9 // 10)
    path = Path(table.files[int(table.file[DAMAGED])])
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def batches(packed: Path, **options: object) -> tuple[headrace.Loader, list[np.ndarray]]:
    crop = transforms.Compose([transforms.CenterCrop(8)])  # decodes a small part only
    loader = headrace.Loader(headrace.open(packed), batch_size=4, transform=crop, output="numpy", **options)
    return loader, [images.copy() for images, _ in loader]


@pytest.mark.parametrize("cache", [None, "ram:1MiB"])
def test_a_changed_bit_anywhere_in_a_record_is_an_error(packed: Path, cache: str | None) -> None:
    batches(packed, cache=cache)
    damage(packed)
    with pytest.raises(DecodeError, match="checksum"):
        batches(packed, cache=cache)


def test_a_record_that_differs_from_its_checksum_is_substituted_and_listed(packed: Path) -> None:
    damage(packed)
    loader, found = batches(packed, on_error="skip")
    assert sum(len(batch) for batch in found) == 8
    (skipped,) = loader.stats().skipped
    assert "checksum" in str(skipped)
