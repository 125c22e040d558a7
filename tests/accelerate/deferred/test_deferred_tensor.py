"""Deferred tensors: shape, type and strides without values, and the exact values as soon as something looks at them."""

from __future__ import annotations

import copy
import pickle
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from deferred_helpers import described
from headrace.accelerate.deferred import filling as deferred_filling
from headrace.accelerate.deferred.batch import computed
from headrace.accelerate.deferred.functions import deferred_tensors
from headrace.accelerate.deferred.tensor import DeferredTensor, is_deferred, real
from headrace.accelerate.lazy.opening import lazy_images
from headrace.accelerate.runtime import first_results
from headrace.attach.record.device_clock import CudaClock, StepClock
from headrace.attach.training import transfers
from PIL import Image
from torch.utils.data import default_collate
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.transforms import functional, v2

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def opened(path: Path, to: Any) -> Any:
    """Return `to(image)` of an image that is cut, resized and flipped."""
    image = Image.open(path).convert("RGB").crop((3, 2, 50, 44)).resize((30, 20), Image.Resampling.BILINEAR)
    return to(image.transpose(Image.Transpose.FLIP_LEFT_RIGHT))


def deferred(path: Path, to: Any) -> Any:
    with lazy_images(), deferred_tensors():
        return opened(path, to)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    values = np.random.default_rng(1).integers(0, 256, (9, 12, 3), dtype=np.uint8)
    path = tmp_path / "image.jpg"
    Image.fromarray(values).resize((80, 60), Image.Resampling.BICUBIC).save(path, quality=90)
    return path


CONTINUED = [
    v1.ToTensor(),
    v1.PILToTensor(),
    v1.Compose([v1.ToTensor(), v1.Normalize(MEAN, STD)]),
    v1.Compose([v1.ToTensor(), v1.Normalize(MEAN, STD, inplace=True)]),
    v1.Compose([v1.PILToTensor(), v1.ConvertImageDtype(torch.float32), v1.Normalize(MEAN, STD)]),
    v1.Compose([v1.PILToTensor(), v1.ConvertImageDtype(torch.float16)]),
    lambda image: functional.to_tensor(image) * 2 - 1,
    lambda image: (functional.to_tensor(image) - 0.5).div_(0.25).half(),
    lambda image: functional.pil_to_tensor(image).float() / 127.5 - 1.0,
    lambda image: functional.to_tensor(image).sub_(torch.tensor(MEAN)[:, None, None]).clone().contiguous(),
    lambda image: functional.to_tensor(image).bfloat16().clamp(0.25, 0.5),
    lambda image: 1 - functional.to_tensor(image),
    lambda image: functional.to_tensor(image).flip(-1).flip([1]),
    v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]),
    v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]),
    v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD, inplace=True), v2.ToPureTensor()]),
    v2.Compose([v2.PILToTensor(), v2.ToDtype(torch.bfloat16, scale=True)]),
    v2.Compose([v2.PILToTensor(), v2.ToDtype(torch.float32), v2.Normalize(MEAN, STD)]),
    v2.Compose([v2.PILToTensor(), v2.ConvertImageDtype(torch.float32), v2.Normalize(MEAN, STD)]),
]


@pytest.mark.parametrize("number", range(len(CONTINUED)))
def test_pointwise_operations_continue_the_description(number: int, file: Path) -> None:
    expected = opened(file, CONTINUED[number])
    found = deferred(file, CONTINUED[number])
    assert is_deferred(found) and isinstance(found, torch.Tensor) and found.__class__ is type(expected)
    facts = (found.shape, found.dtype, found.stride(), found.ndim, found.is_floating_point(), len(found), found.size(1))
    assert facts == (
        *(expected.shape, expected.dtype, expected.stride(), expected.ndim),
        *(expected.is_floating_point(), len(expected), expected.size(1)),
    )
    assert is_deferred(found)
    assert described(real(found)) == described(expected)


@pytest.mark.parametrize("number", range(len(CONTINUED)))
def test_hooks_that_are_installed_later_change_nothing(number: int, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A training that is recorded leaves them in the process."""
    for name in ("item", "cpu", "tolist", "to", "cuda"):
        monkeypatch.setattr(torch.Tensor, name, getattr(torch.Tensor, name))  # undone behind the test
    monkeypatch.setattr(torch.cuda, "synchronize", torch.cuda.synchronize)
    plain = deferred(file, CONTINUED[number])
    assert is_deferred(plain)
    transfers.install(StepClock(CudaClock(), (0, 1, 2), lambda loader, row: None))
    found = deferred(file, CONTINUED[number])
    assert is_deferred(found)
    assert described(real(found)) == described(real(plain))


LOOKS = [
    lambda tensor: tensor[0, 2:4],
    lambda tensor: tensor.numpy(),
    lambda tensor: np.asarray(tensor),
    lambda tensor: repr(tensor),
    lambda tensor: tensor.sum().item(),
    lambda tensor: tensor.flip(-1),
    lambda tensor: torch.nn.functional.pad(tensor, (1, 2)),
    lambda tensor: torch.from_dlpack(tensor),
    lambda tensor: tensor.to(torch.float64),
    lambda tensor: tensor.to(torch.int64) + 1,
    lambda tensor: tensor.to(memory_format=torch.preserve_format),
    lambda tensor: tensor.repeat(2, 1, 1),
    lambda tensor: tensor * torch.linspace(0, 1, 30),
    lambda tensor: tensor.sub(torch.tensor([0.25, 0.5, 0.75])[None, :, None, None]),
    lambda tensor: torch.add(tensor, 1, alpha=2),
    lambda tensor: tensor.tolist(),
    lambda tensor: list(tensor)[1],
    lambda tensor: pickle.loads(pickle.dumps(tensor)),
    lambda tensor: copy.deepcopy(tensor),
    lambda tensor: copy.copy(tensor),
    lambda tensor: torch.equal(tensor, tensor),
    lambda tensor: tensor.data,
    lambda tensor: tensor.view(-1),
    lambda tensor: torch.stack([tensor, tensor], 1),
    lambda tensor: torch.stack([tensor, torch.zeros(3, 20, 30)]).sum(0),
    lambda tensor: torch.cat([tensor, tensor]),
    lambda tensor: tensor.unsqueeze(0),
    lambda tensor: torch.ops.aten.neg(tensor),
    lambda tensor: torch.jit.script(lambda_free_sum)(tensor),
    lambda tensor: tensor.data_ptr() == tensor.numpy().ctypes.data,
    lambda tensor: tensor.untyped_storage().nbytes(),
    lambda tensor: v1.RandomErasing(p=1, value=0.5, scale=(0.3, 0.3))(tensor).shape,
    lambda tensor: tensor.masked_fill_(tensor > 0.5, 0),
    lambda tensor: np.array(functional.to_pil_image(tensor)),
]


def lambda_free_sum(values: torch.Tensor) -> torch.Tensor:
    return values.sum(dim=0)


IMAGES = [
    lambda image: image[0, 2:4],
    lambda image: image + 1,
    lambda image: image.clone(),
    lambda image: image.to(torch.float32),
    lambda image: image.flip(-1),
    lambda image: repr(image),
    lambda image: copy.deepcopy(image),
    lambda image: pickle.loads(pickle.dumps(image)),
    lambda image: v2.RandomResizedCrop(16, scale=(0.5, 0.5), ratio=(1, 1))(image).shape,
    lambda image: v2.Resize(12)(image),
    lambda image: v2.CenterCrop(12)(image),
    lambda image: v2.RandomHorizontalFlip(1.0)(image),
    lambda image: v2.GaussianBlur(3, 1.0)(image),
    lambda image: v2.RandomErasing(1.0)(v2.ToDtype(torch.float32, scale=True)(image)).shape,
    lambda image: v2.FiveCrop(10)(image),
    lambda image: v2.ToDtype(torch.int64, scale=True)(image),
    lambda image: v2.Normalize([1.0], [2.0])(v2.ToDtype(torch.float32)(image)),
    lambda image: v2.functional.to_pil_image(image),
    lambda image: v2.ToImage()(image),
    lambda image: image.as_subclass(torch.Tensor),
    lambda image: default_collate([image, image]),
    lambda image: image.numpy(),
    lambda image: torch.stack([image, image.as_subclass(torch.Tensor)]),
]


@pytest.mark.parametrize("number", range(len(IMAGES)))
def test_any_use_of_torchvisions_image_class(number: int, file: Path) -> None:
    expected = IMAGES[number](opened(file, v2.ToImage()))
    with lazy_images(), deferred_tensors():
        image = opened(file, v2.ToImage())
        assert is_deferred(image) and isinstance(image, tv_tensors.Image)
        found = IMAGES[number](image)
    found = tuple(map(real, found)) if type(found) is tuple else real(found)
    assert described(found) == described(expected)


@pytest.mark.filterwarnings("ignore:`torch.jit.script`:FutureWarning")
@pytest.mark.parametrize("number", range(len(LOOKS)))
def test_any_other_use_has_the_exact_values(number: int, file: Path) -> None:
    expected = LOOKS[number](opened(file, v1.ToTensor()))
    found = LOOKS[number](deferred(file, v1.ToTensor()))
    assert type(found) is not DeferredTensor or real(found) is not None
    assert described(real(found)) == described(expected)


def test_changes_in_place_are_seen_by_every_later_use(file: Path) -> None:
    plain, ours = opened(file, v1.ToTensor()), deferred(file, v1.ToTensor())
    for tensor in (plain, ours):
        alias = tensor.contiguous()
        tensor.mul_(2)
        view = tensor[1]
        view.zero_()
        tensor.add_(1)
        tensor[0, 0] = 7
        assert torch.equal(alias, tensor)
    assert described(real(ours)) == described(plain)


def test_a_stack_of_the_script_collates(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = torch.stack
    monkeypatch.setattr(torch, "stack", lambda *arguments, **options: own(*arguments, **options) + 1)
    with lazy_images(), deferred_tensors():
        one = opened(file, functional.to_tensor)
        batch = default_collate([one, one])
    assert torch.equal(batch, own([one, one]) + 1)


def test_inference_mode_counts_where_a_tensor_is_made(file: Path) -> None:
    with lazy_images(), deferred_tensors():
        before = opened(file, functional.to_tensor)
        with torch.inference_mode():
            inside = opened(file, functional.to_tensor)
            after, batch = before * 2, torch.stack([before, before])
            assert is_deferred(after) and is_deferred(batch) and not before.is_inference()
    assert inside.is_inference() and after.is_inference() and batch.is_inference()
    assert torch.equal(after, before * 2) and torch.equal(inside, before)
    assert not (before + 1).is_inference()


def test_a_batch_is_a_snapshot_of_its_tensors(file: Path) -> None:
    def batch() -> Any:
        buffer = torch.zeros(3, 20, 30)
        first = opened(file, v1.ToTensor())
        stacked = torch.stack([first, buffer, first])
        first.mul_(3)
        buffer.fill_(9)
        return stacked

    expected = batch()
    with lazy_images(), deferred_tensors():
        found = batch()
    assert is_deferred(found)
    assert described(real(found)) == described(expected)


@pytest.mark.parametrize("to", [v1.ToTensor(), v1.PILToTensor()])
def test_collate_and_nested_stacks(to: Any, file: Path) -> None:
    def batches() -> list[Any]:
        views = [torch.stack([opened(file, to), opened(file, to)]) for _ in range(2)]
        nested = [torch.stack(views), torch.cat(views), torch.stack(views).contiguous(), torch.cat([views[0], views[1][:1]])]
        item = {"views": [opened(file, to), opened(file, to)], "label": 3}
        return [default_collate([item, item]), *nested]

    expected = batches()
    with lazy_images(), deferred_tensors():
        found = batches()
    assert is_deferred(found[1]) and is_deferred(found[2])
    assert type(found[0]["views"][0]) is torch.Tensor  # in the main process a batch is computed at once
    assert described([found[0], *map(real, found[1:])]) == described(expected)


class Pair:
    def __init__(self, first: Any, second: Any) -> None:
        self.first, self.second = first, second


def test_a_batch_without_deferred_tensors_keeps_its_containers(file: Path) -> None:
    with lazy_images(), deferred_tensors():
        tensors = [opened(file, v1.ToTensor()) for _ in range(5)]
        inner = [tensors[0], 3]
        pair = Pair(tensors[1], "text")
        batch = {
            "list": inner,
            "pair": pair,
            "tuple": (tensors[2], 5),
            "untouched": (1, [2]),
            "ordered": OrderedDict(a=tensors[3]),
        }
        found = computed(batch)
    assert found is batch and found["list"] is inner and found["pair"] is pair
    values = [inner[0], pair.first, found["tuple"][0], found["ordered"]["a"]]
    assert [type(value) for value in values] == [torch.Tensor] * 4
    assert found["untouched"] == (1, [2]) and pair.second == "text"


def test_tensors_of_other_sizes_raise_torchs_error(file: Path) -> None:
    def batch() -> Any:
        return default_collate([opened(file, v1.ToTensor()), opened(file, v1.ToTensor())[:, :9]])

    with pytest.raises(RuntimeError) as theirs:
        batch()
    with lazy_images(), deferred_tensors(), pytest.raises(RuntimeError) as ours:
        batch()
    assert str(ours.value) == str(theirs.value)


def test_torchvision_and_torch_are_as_before_behind_the_block(file: Path) -> None:
    from torch.utils.data._utils.collate import collate_tensor_fn, default_collate_fn_map
    from torchvision.transforms.v2.functional._utils import _KERNEL_REGISTRY

    registry = {name: dict(kernels) for name, kernels in _KERNEL_REGISTRY.items()}
    before = functional.to_tensor, functional.pil_to_tensor, default_collate_fn_map[torch.Tensor]
    with deferred_tensors(), deferred_tensors():
        assert functional.to_tensor is not before[0]
        assert type(opened(file, v1.ToTensor())) is torch.Tensor  # the image is not lazy
    assert (functional.to_tensor, functional.pil_to_tensor, default_collate_fn_map[torch.Tensor]) == before
    assert before[2] is collate_tensor_fn and registry == _KERNEL_REGISTRY


def test_other_threads_get_plain_tensors(file: Path) -> None:
    """A loop beside a thread that loads batches may show images, or make a Parameter of one."""
    image = Image.open(file).convert("RGB").resize((80, 80))
    found: list[Any] = []
    make = [functional.to_tensor, functional.pil_to_tensor, v2.functional.to_image, v1.PILToTensor()]
    with lazy_images(), deferred_tensors():
        thread = threading.Thread(target=lambda: found.extend(one(image) for one in make))
        thread.start()
        thread.join()
        assert is_deferred(functional.to_tensor(image))
    assert len(found) == len(make)
    assert not any(issubclass(type(one), DeferredTensor) for one in found)


def test_a_function_of_the_script_is_called(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    def to_tensor(image: Any) -> Any:
        calls.append(image.size)
        return torch.zeros(1)

    monkeypatch.setattr(functional, "to_tensor", to_tensor)
    with lazy_images(), deferred_tensors():
        opened(file, v1.ToTensor())
    assert calls == [(30, 20)] and functional.to_tensor is to_tensor


def test_an_image_that_differs_is_made_by_pillow_from_then_on(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    expected = opened(file, v1.ToTensor())

    def black(items: Any, targets: Any, *arguments: Any) -> list[int]:
        for _, memory in targets:
            memory[...] = 0
        return [0] * len(items)

    monkeypatch.setattr(deferred_filling, "fill_items", black)
    monkeypatch.setattr(first_results, "log_line", lines.append)
    monkeypatch.setattr(deferred_filling, "_first_images", first_results.FirstResults(3, "an image came out different"))
    for _ in range(5):
        assert torch.equal(real(deferred(file, v1.ToTensor())), expected)
    assert len(lines) == 1 and "came out different" in lines[0]


def test_an_image_that_is_not_decoded_natively_is_made_by_pillow(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = opened(file, v1.ToTensor())
    monkeypatch.setattr(deferred_filling, "fill_items", lambda items, *arguments: [1] * len(items))
    assert torch.equal(real(deferred(file, v1.ToTensor())), expected)
