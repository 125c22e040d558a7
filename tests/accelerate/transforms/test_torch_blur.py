"""torchvision's GaussianBlur: taken over whole, equal in every value."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from headrace._native import give_blur_weights
from headrace.accelerate.runtime.unsupported import Unsupported
from headrace.accelerate.transforms import torch_blur
from headrace.accelerate.transforms.torch_blur import blurs_alike
from headrace.accelerate.transforms.translate import translate
from headrace.accelerate.whole import iterator
from headrace.accelerate.whole.folders import RecognisedLoader
from headrace.accelerate.whole.recognition import Recognition
from seeded import require_equal_passes
from torch.utils.data import DataLoader, Subset, dataloader
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

#: Kernel (width, height), sigmas, image (height, width).
CASES = (
    ((3, 3), (0.1, 2.0), (32, 32)),
    ((23, 23), (0.1, 2.0), (61, 97)),
    ((5, 9), (0.5, 0.5), (7, 41)),
    ((9, 9), (0.1, 2.0), (5, 5)),
    ((1, 1), (1.0, 2.0), (1, 3)),
    ((1, 7), (0.2, 30.0), (40, 1)),
    ((127, 3), (10.0, 30.0), (20, 64)),
)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(("kernel", "sigmas", "size"), CASES)
def test_the_sums_of_the_blur_have_torchs_bits(version: int, kernel: Any, sigmas: Any, size: Any) -> None:
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    assert blurs_alike(version, kernel, sigmas, size)
    assert torch.get_num_threads() == threads and torch.equal(torch.get_rng_state(), state)


def test_another_arithmetic_of_torch_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    case = (1, (5, 5), (0.5, 2.0), (31, 33))
    assert blurs_alike(*case)
    own = torch_blur._weights
    torch_blur._compared.cache_clear()
    monkeypatch.setattr(torch_blur, "_weights", lambda *key: own(*key).T[::-1] * 1.000001)
    assert not blurs_alike(*case)
    with pytest.raises(Unsupported, match="its results differ here"):
        translate(v1.Compose([v1.CenterCrop((31, 33)), v1.GaussianBlur(5, (0.5, 2.0)), v1.ToTensor()]))
    torch_blur._compared.cache_clear()


def test_other_settings_of_torch_are_compared_anew() -> None:
    case = (1, (5, 5), (0.5, 2.0), (31, 33))
    assert blurs_alike(*case)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not blurs_alike(*case)
    assert blurs_alike(*case)


def test_diagnose_computes_no_blur(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_blur, "_equal", lambda *case: False)
    torch_blur._compared.cache_clear()
    with torch_blur.without_comparison():
        translate(v1.Compose([v1.CenterCrop((31, 33)), v1.GaussianBlur(5, (0.5, 2.0)), v1.ToTensor()]))
    torch_blur._compared.cache_clear()


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("item_code", [False, True])
def test_autocast_after_the_first_batch_changes_what_it_changes_without_headrace(
    workers: int, item_code: bool, image_folder: Any, taken_over: list[str]
) -> None:
    """torch convolves in bfloat16 under autocast. Workers were started before, and keep float32."""
    steps = v1.Compose([v1.Resize((32, 32)), v1.GaussianBlur(5, 1.3), v1.PILToTensor()])
    kind = Named if item_code else ImageFolder
    loader = DataLoader(kind(str(image_folder(2, 12)), steps), 2, num_workers=workers)

    def batches(iterator: Any) -> list[torch.Tensor]:
        found = [next(iterator)[0].clone()]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return found + [batch[0].clone() for batch in iterator]

    own = dataloader._MultiProcessingDataLoaderIter if workers else dataloader._SingleProcessDataLoaderIter
    theirs, ours = batches(own(loader)), batches(iter(loader))
    assert "taken over: " in taken_over[-1]
    assert len(ours) == len(theirs) == 12
    known = [0, *range(6, 12)] if workers == 0 else range(12)  # without workers, batches are made some batches ahead
    assert all(torch.equal(ours[number], theirs[number]) for number in known)


class Named(ImageFolder):
    """Its items are the script's own code."""

    def __getitem__(self, index: int) -> Any:
        image, label = super().__getitem__(index)
        return image, label, self.samples[index][0]


def test_drawn_sigmas_under_autocast_raise_nothing(image_folder: Any, taken_over: list[str]) -> None:
    steps = v1.Compose([v1.Resize((32, 32)), v1.GaussianBlur(5, (0.1, 2.0)), v1.PILToTensor()])
    loader = DataLoader(ImageFolder(str(image_folder(2, 12)), steps), 2, num_workers=1)
    iterator = iter(loader)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert len(list(iterator)) == 12
    assert "taken over: " in taken_over[-1]


def simclr(module: Any, *, size: Any = 48, kernel: Any = 5) -> list[Any]:
    """Return SimCLR's steps on a Pillow image."""
    return [
        module.RandomResizedCrop(size, scale=(0.2, 1.0)),
        module.RandomHorizontalFlip(),
        module.RandomApply([module.ColorJitter(0.8, 0.8, 0.8, 0.2)], p=0.8),
        module.RandomGrayscale(p=0.2),
        module.RandomApply([module.GaussianBlur(kernel, (0.1, 2.0))], p=0.5),
    ]


FLOATS = [v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5, 0.4, 0.3], [0.2, 0.3, 0.4])]
TAKEN = {
    "SimCLR": v1.Compose([*simclr(v1), v1.ToTensor()]),
    "SimCLR, v2": v2.Compose([*simclr(v2), v2.ToImage(), *FLOATS]),
    "odd size": v1.Compose([*simclr(v1, size=(37, 51), kernel=23), v1.PILToTensor()]),
    "always, one sigma": v1.Compose([v1.Resize((33, 35)), v1.GaussianBlur((3, 7), 1.5), v1.ToTensor()]),
    "flip behind": v1.Compose([v1.Resize((33, 35)), v1.GaussianBlur(3), v1.RandomHorizontalFlip(), v1.ToTensor()]),
    "tensor": v1.Compose([v1.RandomCrop(30, pad_if_needed=True), v1.PILToTensor(), v1.GaussianBlur(9)]),
    "tensor, v2": v2.Compose([v2.ToImage(), v2.RandomResizedCrop(40), v2.GaussianBlur(9), *FLOATS]),
    "tensor, at random": v2.Compose([v2.ToImage(), v2.RandomResizedCrop(40), v2.RandomApply([v2.GaussianBlur(23)]), *FLOATS]),
}


@pytest.mark.parametrize("name", TAKEN)
def test_a_blur_is_taken_over_equal_in_every_value(folder: Path, name: str) -> None:
    require_equal_passes(DataLoader(ImageFolder(str(folder), TAKEN[name]), 5))


class Views:
    """SimCLR's two views of an image."""

    def __init__(self, transform: Any) -> None:
        self.transform = transform

    def __call__(self, image: Any) -> Any:
        return [self.transform(image) for _ in range(2)]


def test_two_views_with_a_blur_are_taken_over_whole(folder: Path) -> None:
    require_equal_passes(DataLoader(ImageFolder(str(folder), Views(v1.Compose([*simclr(v1), v1.ToTensor()]))), 5), items=True)


def test_without_the_service_the_script_makes_the_images(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iterator, "serve_weights", lambda: None)
    torch_blur._end_service()
    transform = v1.Compose([v1.Resize((31, 32)), v1.GaussianBlur(3, (0.11, 2.3)), v1.ToTensor()])
    require_equal_passes(DataLoader(Subset(ImageFolder(str(folder), transform), range(6)), 5))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_service_that_fails_leaves_the_images_to_the_script(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*key: Any) -> Any:
        raise SystemExit  # which a thread ends with, without a message

    transform = v1.Compose([v1.Resize((31, 32)), v1.GaussianBlur(3, (0.12, 2.4)), v1.ToTensor()])
    loader = DataLoader(Subset(ImageFolder(str(folder), transform), range(6)), 5)
    assert isinstance(Recognition(loader).folders, RecognisedLoader)
    torch_blur._end_service()
    monkeypatch.setattr(torch_blur, "_weights", fail)
    require_equal_passes(loader)
    torch_blur._end_service()


LEFT = {
    "kernel too large": ([v1.CenterCrop(10), v1.GaussianBlur(21), v1.ToTensor()], "a kernel too large for 10 × 10 pixels"),
    "no fixed size": ([v1.Resize(32), v1.GaussianBlur(3), v1.ToTensor()], "without a fixed size"),
    "padded": ([v1.CenterCrop(9), v1.Pad(1), v1.GaussianBlur(3), v1.ToTensor()], "without a fixed size"),
    "floats": ([v1.CenterCrop(9), v1.ToTensor(), v1.GaussianBlur(3)], "GaussianBlur on a tensor"),
    "floats at random": (
        [v2.CenterCrop(9), v2.ToImage(), *FLOATS, v2.RandomApply([v2.GaussianBlur(3)])],
        "GaussianBlur on a tensor",
    ),
}


@pytest.mark.parametrize("name", LEFT)
def test_other_blurs_are_left_to_the_script(name: str) -> None:
    steps, words = LEFT[name]
    with pytest.raises(Unsupported, match=words):
        translate(v2.Compose(steps))


@pytest.mark.slow
def test_a_child_that_is_forked_while_weights_are_given_can_give_some_itself() -> None:
    ended = threading.Event()
    weights = bytes(4 * 63 * 63)

    def give() -> None:
        while not ended.is_set():
            give_blur_weights((63, 63), 0.5, 1, weights)

    threads = [threading.Thread(target=give) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(40):
            child = os.fork()
            if child == 0:
                signal.alarm(60)
                give_blur_weights((63, 63), 0.5, 1, weights)
                os._exit(7)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
            time.sleep(0.001)
    finally:
        ended.set()
        for thread in threads:
            thread.join()
