"""Under Triton's interpreter, the augmentation kernels return exactly the values of the torch operations they replace."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

DRAWN = """
import torch
from headrace.gpu.augmentation import augment_kernels
from headrace.gpu.augmentation.augment import OPERATIONS, augment
from headrace.transforms import CenterCrop, Compose
from headrace.transforms.compile import compile_pipeline
from test_augment import ALL, HEIGHT, SEED, WIDTH, pictures

names = ["hue", "jitter", "as SimCLR", "blur 3", "blur 5", "blur 23", "blur 63×5", "rotations, another fill", "two rotations",
         "three times", "strong RandAugment", "bilinear TrivialAugmentWide"]
names += [name for name in ALL if name.endswith(", bilinear")]
augment_kernels.BLOCK = 8192  # an image in one program: the interpreter's time goes by programs
used, images = set(), torch.from_numpy(pictures()[:10])
for name in names:
    for fuse in ("geometry", "off") if "rotations" in name or "three" in name else ("geometry",):
        program = compile_pipeline(Compose([CenterCrop((HEIGHT, WIDTH)), ALL[name]]), fuse=fuse).program
        passes = [program.split(WIDTH, HEIGHT, SEED, 0, record)[1] for record in range(10)]
        used |= {name for own in passes for name, _ in own}
        found = augment(images.clone(), passes, OPERATIONS | augment_kernels.OPERATIONS)
        assert torch.equal(found, augment(images.clone(), passes, OPERATIONS)), (name, fuse)
assert set(augment_kernels.OPERATIONS) <= used
print("equal")
"""

EDGES = """
import numpy as np, torch
from headrace.gpu.augmentation import augment_kernels
from headrace.gpu.augmentation.augment import OPERATIONS
from headrace.gpu.augmentation.augment_check import SAMPLES, different_operations

for name, kernel in augment_kernels.OPERATIONS.items():
    for row in SAMPLES[name]:
        kernel(torch.zeros((1, 22, 30, 3), dtype=torch.uint8), np.array([row]))  # an error of its own, if there is one
assert different_operations("cpu", augment_kernels.OPERATIONS) == []
levels = torch.arange(0, 256, 15, dtype=torch.uint8)  # all pairs of channels that are equal, 0 or 255 are among them
cube = torch.cartesian_prod(levels, levels, levels).view(1, 18, 324, 3)
for shift in (0.0, 1.0, 42.0, 43.0, 128.0, 255.0):
    numbers = np.array([[shift]])
    assert torch.equal(augment_kernels.hue(cube, numbers), OPERATIONS["hue"](cube, numbers)), shift
noise = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (2, 9, 7, 3), dtype=np.uint8))
planes = noise.permute(0, 3, 1, 2).contiguous().permute(0, 2, 3, 1)
for size in ((1, 1), (2, 9), (9, 2), (9, 7)):
    images = planes[:, : size[0], : size[1]]
    for name, kernel in augment_kernels.OPERATIONS.items():
        if name == "blur" and min(size) < 3:
            continue  # its border cannot be reflected
        for row in SAMPLES[name]:
            numbers = np.array([row, row])
            assert torch.equal(kernel(images, numbers), OPERATIONS[name](images, numbers)), (name, size)
# Weights whose sums lie on halves: they round to even.
halves = [[3.0, 0.25, 0.25, 0.5, 0.0, 1.0, 0.0], [3.0, 0.5, 0.5, 0.0, 0.5, 0.0, 0.5]]
assert torch.equal(augment_kernels.blur(noise, np.array(halves)), OPERATIONS["blur"](noise, np.array(halves)))
# Maps far outside, and edges that cut everything, nothing, and along each axis.
far = [1e300, 0.0, 0.0, 0.0, 1.0, 0.0, 9.0, 90.0, 200.0]
plain = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 9.0, 90.0, 200.0]
edges = [[0.0, 0.0, -1.0], [0.0, 0.0, 1.0], [0.0, 1.0, -4.0], [0.0, -1.0, 4.0]]
for edge in [*edges, [1.0, 0.0, -3.5], [-1.0, 0.0, 3.5], [1e-300, 1.0, 0.0]]:
    numbers = np.array([far + edge, plain + edge])
    assert torch.equal(augment_kernels.bilinear(noise, numbers), OPERATIONS["bilinear"](noise, numbers)), edge
print("equal")
"""


@pytest.mark.slow
@pytest.mark.parametrize("program", [DRAWN, EDGES], ids=["drawn", "edges"])
def test_the_kernels_equal_their_torch_twins(program: str) -> None:
    pytest.importorskip("triton")
    paths = [str(Path(__file__).parent), str(Path(__file__).parents[2] / "helpers")]
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(paths)}
    run = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert run.stdout == "equal\n", run.stderr[-2000:]
