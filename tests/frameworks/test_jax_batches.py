"""`Loader.to_jax` with the real JAX (`make test-frameworks`)."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import headrace
import numpy as np
import pytest
from headrace.transforms import Compose, CutMix, Views, imagenet_eval, imagenet_train

MakeFolder = Callable[..., Path]
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(400)]
jax = pytest.importorskip("jax", reason="JAX is not installed (make test-frameworks)")


def loader(root: Path, **options: Any) -> headrace.Loader:
    defaults: dict[str, Any] = {"batch_size": 4, "transform": imagenet_train(16), "output": "numpy", "threads": 2}
    return headrace.Loader(root, **(defaults | options))


def test_jax_arrays_have_the_loaders_values(image_folder: MakeFolder) -> None:
    root = image_folder()
    batches, plain = loader(root).to_jax(), loader(root)
    assert len(batches) == 3
    for _ in range(2):  # epochs
        for (images, labels), (pixels, expected) in zip(batches, plain, strict=True):
            assert isinstance(images, jax.Array) and images.dtype == np.uint8 and images.shape == (4, 16, 16, 3)
            assert labels.dtype == np.int32 and labels.tolist() == expected.tolist()
            assert np.array_equal(np.asarray(images), pixels)


def test_arrays_share_the_loaders_memory_and_stay_as_they_are(image_folder: MakeFolder) -> None:
    root = image_folder(per_class=8)
    data = loader(root, prefetch=1)
    ring = data.stats().ring_batches
    kept = [images for _ in range(3) for images, _ in data.to_jax()]
    assert data.stats().ring_batches >= 18 > ring  # all 18 are held: none was copied
    plain = loader(root)
    for array, (pixels, _) in zip(kept, [batch for _ in range(3) for batch in plain], strict=True):
        assert np.array_equal(np.asarray(array), pixels)
    del kept, array
    gc.collect()
    next(iter(data.to_jax()))
    assert data.stats().ring_batches <= ring + 4  # the memory came back


def test_a_jitted_step_takes_them(image_folder: MakeFolder) -> None:
    @jax.jit
    def mean(images: Any) -> Any:
        return jax.numpy.mean(images.astype(jax.numpy.float32))

    for images, _ in loader(image_folder()).to_jax():
        assert float(mean(images)) == pytest.approx(float(np.asarray(images).mean()), rel=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_floats_of_torch_loaders(image_folder: MakeFolder, dtype: str) -> None:
    root = image_folder()
    options: dict[str, Any] = {"dtype": dtype, "output": "torch", "transform": imagenet_eval(16, normalize=True)}
    for (ours, _), (theirs, _) in zip(loader(root, **options).to_jax(), loader(root, **options), strict=True):
        assert str(ours.dtype) == dtype
        assert np.array_equal(np.asarray(ours.astype(jax.numpy.float32)), theirs.permute(0, 2, 3, 1).float().numpy())


def test_views_mixed_labels_and_a_device(image_folder: MakeFolder) -> None:
    root = image_folder()
    (one, two), _ = next(iter(loader(root, transform=Views([imagenet_train(16), imagenet_train(8)])).to_jax()))
    assert one.shape == (4, 16, 16, 3) and two.shape == (4, 8, 8, 3)
    mixed = Compose([imagenet_train(16, normalize=True), CutMix(alpha=1.0)])
    images, shares = next(iter(loader(root, transform=mixed, dtype="float32", output="torch").to_jax()))
    assert images.shape == (4, 16, 16, 3) and shares.shape == (4, 3)
    device = jax.devices("cpu")[0]
    images, labels = next(iter(loader(root).to_jax(device)))
    assert images.devices() == labels.devices() == {device}


def test_a_program_ends_while_jax_still_computes(image_folder: MakeFolder, tmp_path: Path) -> None:
    """JAX frees a batch in its own thread, which must not need an interpreter that is gone."""
    script = tmp_path / "train.py"
    script.write_text(
        f"""
import headrace, jax
loader = headrace.Loader({str(image_folder())!r}, 4, headrace.transforms.imagenet_train(224), output="numpy", seed=0)
step = jax.jit(lambda images: jax.numpy.tanh(images.astype("float32") @ jax.numpy.ones((3, 64))).mean())
for images, labels in loader.to_jax():
    result = step(images)
images = None
"""
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
