"""The loader where others put a DataLoader: DLPack, Lightning, Accelerate, timm. What is absent is skipped."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import headrace
import numpy as np
import pytest
from headrace.transforms import imagenet_eval, imagenet_train

MakeFolder = Callable[..., Path]

#: These packages warn of their own dependencies.
pytestmark = pytest.mark.filterwarnings("ignore")


def loader(root: Path, **options: Any) -> headrace.Loader:
    defaults: dict[str, Any] = {
        "batch_size": 4,
        "transform": imagenet_train(16, normalize=True),
        "dtype": "float32",
        "threads": 2,
    }
    return headrace.Loader(root, **(defaults | options))


def model() -> Any:
    torch = pytest.importorskip("torch")
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 16 * 16, 3))


def test_dlpack_without_a_copy_keeps_the_batch(image_folder: MakeFolder) -> None:
    torch = pytest.importorskip("torch")
    data = loader(image_folder(), output="numpy")
    kept = []
    for images, _ in data:
        tensor = torch.from_dlpack(images)
        assert tensor.data_ptr() == images.ctypes.data
        kept.append((tensor, images.copy()))
        del images
    for _ in data:
        pass
    assert all(np.array_equal(tensor.numpy(), copy) for tensor, copy in kept)
    images, _ = next(iter(loader(image_folder(name="more"))))
    array = np.from_dlpack(images)
    assert array.shape == (4, 3, 16, 16) and array.ctypes.data == images.data_ptr()


def test_a_plain_loop_learns(image_folder: MakeFolder) -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    data, network = loader(image_folder(), transform=imagenet_eval(16, normalize=True)), model()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    losses = []
    for _ in range(20):
        for images, labels in data:
            loss = torch.nn.functional.cross_entropy(network(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
    assert np.mean(losses[-3:]) < np.mean(losses[:3]) / 2  # twelve images that never change are learned by heart


def test_lightning(image_folder: MakeFolder, tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning")
    torch = pytest.importorskip("torch")
    seen: list[int] = []

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = model()

        def training_step(self, batch: Any, number: int) -> Any:
            images, labels = batch
            seen.append(len(labels))
            return torch.nn.functional.cross_entropy(self.network(images), labels)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    data = loader(image_folder())
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
    )
    trainer.fit(Module(), data)
    assert seen == [4] * 6 and data.epoch == 2


def test_accelerate(image_folder: MakeFolder) -> None:
    pytest.importorskip("accelerate.utils", reason="no accelerate")  # tests/accelerate may pass for the bare name
    accelerate = pytest.importorskip("accelerate")
    torch = pytest.importorskip("torch")
    accelerator = accelerate.Accelerator(cpu=True)
    network = model()
    network, optimizer = accelerator.prepare(network, torch.optim.SGD(network.parameters(), lr=0.01))
    # rank and world size are torch.distributed's, so the loader is not for `prepare` to wrap
    data = loader(image_folder())
    for images, labels in data:
        with accelerator.accumulate(network):
            accelerator.backward(torch.nn.functional.cross_entropy(network(images), labels))
            optimizer.step()
            optimizer.zero_grad()
    assert data.epoch == 1


def test_timm(image_folder: MakeFolder) -> None:
    timm = pytest.importorskip("timm")
    torch = pytest.importorskip("torch")
    network = timm.create_model("test_vit", num_classes=3, img_size=32)
    mixed = headrace.transforms.Compose([imagenet_train(32, normalize=True), headrace.transforms.MixUp(alpha=0.2)])
    loss = importlib.import_module("timm.loss").SoftTargetCrossEntropy()
    for images, labels in loader(image_folder(), transform=mixed):
        assert torch.isfinite(loss(network(images), labels))
