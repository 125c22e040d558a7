"""Workers that are not forked import the script anew: what its `main` has set does not reach them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from headrace.accelerate.runtime.unsupported import Refusal
from headrace.accelerate.whole.folders import RecognisedLoader
from headrace.accelerate.whole.recognition import Recognition
from PIL import Image, ImageFile, ImageOps
from torch.utils.data import DataLoader
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

SEED = 3


class Solarized:
    """Its `main` may set another probability."""

    p = 0.5

    def __call__(self, image: Any) -> Any:
        return ImageOps.solarize(image) if torch.rand(1) < self.p else image


def seeds(worker: int) -> None:
    torch.manual_seed(torch.initial_seed() % 2**32 + worker)


def seeds_by_a_variable(worker: int) -> None:
    torch.manual_seed(SEED + worker)


STEPS = [v1.RandomResizedCrop(24), v1.ToTensor()]
OWN = [Solarized(), *STEPS]
APPLIED = [v1.RandomApply([Solarized()]), *STEPS]


def recognised(folder: Path, method: str, steps: Any = STEPS, worker_init_fn: Any = None) -> Any:
    dataset = ImageFolder(str(folder), v1.Compose(steps))
    loader = DataLoader(dataset, 4, num_workers=1, multiprocessing_context=method, worker_init_fn=worker_init_fn)
    return Recognition(loader).folders


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("init", [None, seeds])
def test_a_loader_that_depends_on_no_variable_is_taken_over(method: str, init: Any, folder: Path) -> None:
    assert isinstance(recognised(folder, method, worker_init_fn=init), RecognisedLoader)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("steps", [OWN, APPLIED])
def test_own_transforms_stay_in_workers_that_are_not_forked(method: str, steps: Any, folder: Path) -> None:
    assert isinstance(recognised(folder, method, steps), Refusal) == (method != "fork")


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_seed_in_a_variable_is_that_of_the_worker(method: str, folder: Path) -> None:
    assert isinstance(recognised(folder, method, worker_init_fn=seeds_by_a_variable), Refusal) == (method != "fork")


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize(
    ("module", "name", "value"),
    [(ImageFile, "LOAD_TRUNCATED_IMAGES", True), (Image, "MAX_IMAGE_PIXELS", None)],
    ids=lambda value: str(value) if isinstance(value, str) else "",
)
def test_a_setting_of_pillow_is_that_of_the_worker(
    method: str, module: Any, name: str, value: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, name, value)
    assert isinstance(recognised(folder, method), Refusal) == (method != "fork")


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_default_type_is_that_of_the_worker(method: str, folder: Path) -> None:
    torch.set_default_dtype(torch.bfloat16)
    try:
        assert isinstance(recognised(folder, method, [v1.Resize((20, 20)), v1.ToTensor()]), Refusal) == (method != "fork")
    finally:
        torch.set_default_dtype(torch.float32)
