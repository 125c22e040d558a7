"""The last steps of a batch: the torch twin does what the loader did, the Triton kernel does what the twin does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from headrace.gpu.preparation.batch_steps import Erase, Mix
from headrace.gpu.preparation.prepare import prepare

torch = pytest.importorskip("torch")

ERASE = Erase([None, (2, 3, 5, 7), (0, 0, 1, 1), None, (8, 8, 8, 8)], (0.25, -1.0, 2.0))
CASES: dict[str, dict[str, Any]] = {
    "values": {},
    "flip": {"flips": True},
    "erase": {"erase": ERASE},
    "mixup": {"mix": Mix(0.3)},
    "cutmix": {"mix": Mix(0.5, (3, 12, 0, 9))},
    "all": {"flips": True, "erase": ERASE, "mix": Mix(0.8)},
    "cut erased": {"flips": True, "erase": ERASE, "mix": Mix(0.5, (0, 16, 2, 5))},
}


def material() -> tuple[Any, Any, Any]:
    """Return images, a float32 table and flips."""
    random = np.random.default_rng(0)
    images = torch.from_numpy(random.integers(0, 256, (5, 16, 17, 3), dtype=np.uint8))
    table = torch.from_numpy(np.sort(random.normal(size=(3, 256)).astype(np.float32)))
    return images, table, torch.tensor([True, False, True, True, False])


def arguments(case: str) -> dict[str, Any]:
    found = dict(CASES[case])
    if found.pop("flips", False):
        found["flips"] = material()[2]
    return found


@pytest.mark.parametrize("case", CASES)
def test_the_twin_is_one_step_after_the_other(case: str) -> None:
    images, table, flips = material()
    wanted = torch.stack([table[channel][images[..., channel].long()] for channel in range(3)], 1)  # [N, 3, H, W]
    settings = CASES[case]
    if settings.get("flips"):
        wanted = torch.where(flips.view(-1, 1, 1, 1), wanted.flip(3), wanted)
    if "erase" in settings:
        for number, box in enumerate(ERASE.boxes):
            if box is not None:
                top, left, height, width = box
                filling = torch.tensor(ERASE.values).view(3, 1, 1)
                wanted[number, :, top : top + height, left : left + width] = filling
    mix = settings.get("mix")
    if mix is not None and mix.rectangle is None:
        wanted = wanted.roll(1, 0) * (1 - mix.share) + wanted * mix.share
    elif mix is not None:
        top, bottom, left, right = mix.rectangle
        wanted[..., top:bottom, left:right] = wanted.roll(1, 0)[..., top:bottom, left:right]
    before = images.clone()
    found = prepare(images, table, **arguments(case))
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(found, wanted)
    assert torch.equal(images, before)


def test_bytes_stay_bytes_without_a_table() -> None:
    images, _, flips = material()
    assert torch.equal(prepare(images, None, flips=flips)[1], images[1].permute(2, 0, 1))
    assert prepare(images, None, mix=Mix(0.5, (0, 4, 0, 4))).dtype == torch.uint8


TRITON = """
import torch
from headrace.gpu.preparation.prepare import prepare_torch
from headrace.gpu.preparation.prepare_kernel import prepare_triton
from test_prepare import CASES, arguments, material
images, table, _ = material()
for case in CASES:
    found = arguments(case)
    options = [found.get(name) for name in ("flips", "erase", "mix")]
    for dtype in (torch.float32, torch.float16):
        values = table.to(dtype)
        assert torch.equal(prepare_triton(images, values, *options), prepare_torch(images, values, *options)), (case, dtype)
    if "mix" not in found or found["mix"].rectangle is not None:
        # Triton's interpreter computes wrongly in bfloat16; its values are moved only, as 16-bit patterns.
        bits = table.to(torch.bfloat16).view(torch.int16)
        options[1] = None
        assert torch.equal(prepare_triton(images, bits, *options), prepare_torch(images, bits, *options)), case
    if case in ("values", "flip", "cutmix"):
        assert torch.equal(prepare_triton(images, None, *options), prepare_torch(images, None, *options)), case
print("equal")
"""


@pytest.mark.slow
def test_the_triton_kernel_equals_its_torch_twin() -> None:
    pytest.importorskip("triton")
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(Path(__file__).parent)}
    run = subprocess.run([sys.executable, "-c", TRITON], env=environment, capture_output=True, text=True, check=False)
    assert run.stdout == "equal\n", run.stderr
