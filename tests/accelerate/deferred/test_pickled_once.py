"""The script's own reducers and states: they run as often, and in the same process and thread, as without headrace."""

from __future__ import annotations

import gc
import re
import threading
import weakref
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate_helpers import own_batches
from deferred_helpers import always_lazy, described, seeded
from headrace.accelerate.deferred import loader as deferred_loader
from headrace.accelerate.deferred.batch import DescribedBatch, HandedOver, new_memory
from headrace.accelerate.deferred.shared_bytes import SharedBytes
from headrace.accelerate.lazy.loader import trial_of
from headrace.accelerate.lazy.trial import TrialState
from headrace.accelerate.runtime.unsupported import Refusal
from headrace.accelerate.whole.recognition import Recognition
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.transforms import v2

pytestmark = pytest.mark.usefixtures("items_refused")


@pytest.fixture(autouse=True)
def taken_over_in_part_only(monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = Refusal("this test looks at loaders that are taken over in part")
    monkeypatch.setattr(Recognition, "folders", refusal)


def here() -> tuple[bool, str]:
    """Return whether this is a worker process, and the name of the thread without its number."""
    return torch.utils.data.get_worker_info() is not None, re.sub(r"-\d+", "", threading.current_thread().name)


class Stated:
    """A value that notes each use of its state."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def __getstate__(self) -> Any:
        self.seen.append(("pickled", *here()))
        return {"seen": list(self.seen)}

    def __setstate__(self, state: Any) -> None:
        self.seen = [*state["seen"], ("unpickled", *here())]


class Sample:
    """A value with a reducer that changes it, as mmengine's samples have."""

    def __init__(self, label: Any) -> None:
        self.label = label


def reduced(sample: Sample) -> Any:
    kind = type(sample.label).__name__
    if isinstance(sample.label, torch.Tensor):
        sample.label = sample.label.numpy()
    return rebuilt, (sample.label, kind, here())


def rebuilt(label: Any, kind: str, where: Any) -> Any:
    sample = Sample(torch.from_numpy(label) if kind == "Tensor" else label)
    sample.found = (kind, where, here())  # type: ignore[attr-defined]
    return sample


ForkingPickler.register(Sample, reduced)


class Witnesses(Dataset[Any]):
    """Items with such values. `kind`: what else is in them."""

    def __init__(self, paths: list[str], kind: str) -> None:
        self.paths, self.kind = paths, kind

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        image = Image.open(self.paths[index]).convert("RGB").resize((96, 96))
        if self.kind == "deferred":
            value: Any = v1.ToTensor()(image)
        elif self.kind == "class":
            value = v2.ToImage()(image)
        elif self.kind == "arrays":
            value = np.array(image)
        else:
            value = image
        return value, Sample(torch.tensor([index])), Stated()


def as_lists(items: list[Any]) -> Any:
    return [list(one) for one in zip(*items, strict=True)]


def stacked(items: list[Any]) -> Any:
    values, samples, states = as_lists(items)
    return torch.stack(values), {"samples": samples, "states": states}


def witnessed(value: Any) -> Any:
    if isinstance(value, Sample):
        return value.label.tolist(), type(value.label), value.found  # type: ignore[attr-defined]
    if isinstance(value, Stated):
        return value.seen
    if isinstance(value, dict):
        return {key: witnessed(one) for key, one in value.items()}
    return [witnessed(one) for one in value] if isinstance(value, list | tuple) else described(value)


@pytest.mark.parametrize(("kind", "collate"), [(kind, as_lists) for kind in ("deferred", "class", "arrays", "images")]
                         + [("deferred", stacked)])  # fmt: skip
@pytest.mark.parametrize("state", [TrialState.LAZY, TrialState.MEASURING])
def test_reducers_and_states_run_as_without_headrace(
    kind: str, collate: Any, state: TrialState, folder: Path, taken_over: list[str]
) -> None:
    paths = sorted(str(path) for path in folder.rglob("*.jpg"))
    loader = DataLoader(Witnesses(paths, kind), 5, num_workers=2, collate_fn=collate)
    theirs = [witnessed(batch) for batch in own_batches(loader)]
    trial_of(loader).give_up(state)
    ours = [witnessed(batch) for batch in loader]
    assert "taken over in part" in taken_over[0]
    assert ours == theirs
    assert theirs[0][1] if collate is as_lists else theirs[0]


class Refusing:
    """A value that cannot be unpickled."""

    def __getstate__(self) -> Any:
        return {"a": 1}

    def __setstate__(self, state: Any) -> None:
        raise KeyError("of the script")


def with_refusing(items: list[Any]) -> Any:
    return [stacked(items), Refusing()]


def test_an_error_while_a_batch_is_unpickled_is_the_scripts_own(folder: Path, taken_over: list[str]) -> None:
    paths = sorted(str(path) for path in folder.rglob("*.jpg"))
    loader = DataLoader(Witnesses(paths, "deferred"), 5, num_workers=1, collate_fn=with_refusing)
    for batches in (own_batches, lambda loader: list(always_lazy(loader))):
        with pytest.raises(KeyError, match="of the script") as caught:
            batches(loader)
        assert not any("headrace/accelerate" in str(one.path) for one in caught.traceback if "/tests/" not in str(one.path))


def test_torchs_thread_for_pinned_memory_unpickles(
    folder: Path, taken_over: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    monkeypatch.setattr(torch.accelerator, "set_device_index", lambda index: None)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor, device=None: tensor)
    monkeypatch.setattr(deferred_loader, "_pinned_tensor", lambda shape, dtype: torch.empty(shape, dtype=dtype))
    paths = sorted(str(path) for path in folder.rglob("*.jpg"))
    loader = DataLoader(Witnesses(paths, "deferred"), 5, num_workers=2, collate_fn=stacked, pin_memory=True)
    theirs = [witnessed(batch) for batch in own_batches(loader)]
    for _ in range(2):
        assert [witnessed(batch) for batch in always_lazy(loader)] == theirs
    assert theirs[0][1]["states"][0][-1][2].startswith("Thread (_pin_memory_loop)")


def test_a_batch_that_torchs_thread_takes_itself_is_complete(
    folder: Path, taken_over: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may wait in the queue when headrace takes its place there."""
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor, device=None: tensor)
    from headrace.accelerate.deferred.functions import deferred_tensors
    from headrace.accelerate.lazy.opening import lazy_images

    paths = sorted(str(path) for path in folder.rglob("*.jpg"))
    shared = SharedBytes(1, 3)

    def batch() -> Any:
        return stacked([Witnesses(paths, "deferred")[number] for number in range(4)])

    with lazy_images(), deferred_tensors():
        sent = ForkingPickler.loads(ForkingPickler.dumps(HandedOver(batch(), shared, 0)))
    assert isinstance(sent, DescribedBatch) and sent.place is not None
    found = torch.utils.data._utils.pin_memory.pin_memory(sent)
    seeded(1)
    assert described(found[0]) == described(batch()[0])


def test_objects_over_the_same_values_share_their_memory_as_without_headrace() -> None:
    image = Image.new("RGB", (96, 96), (1, 2, 3))
    from headrace.accelerate.deferred.functions import deferred_tensors

    shared = SharedBytes(1, 1)
    with deferred_tensors():
        tensor = v2.ToImage()(image)
        pickled = ForkingPickler.dumps(HandedOver([tensor, tensor, tensor.as_subclass(torch.Tensor)], shared, 0))
    sent = ForkingPickler.loads(pickled)
    first, again, plain = sent.open(None, new_memory).unpickled()
    assert first is again and type(first) is tv_tensors.Image and type(plain) is torch.Tensor
    plain.add_(1)
    assert first.flatten()[:3].tolist() == [2, 2, 2] and first.data_ptr() == plain.data_ptr()


def test_a_reducer_that_the_script_has_put_in_place_of_torchs_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace.accelerate.deferred.functions import deferred_tensors

    monkeypatch.setitem(ForkingPickler._extra_reducers, torch.Tensor, lambda tensor: (str, (f"{tuple(tensor.shape)}",)))
    with deferred_tensors():
        batch = [v1.ToTensor()(Image.new("RGB", (96, 96), (1, 2, 3)))]
    sent = ForkingPickler.loads(ForkingPickler.dumps(HandedOver(batch, SharedBytes(1, 1), 0)))
    assert sent.open(None, new_memory).unpickled() == ["(3, 96, 96)"]


def test_a_batch_is_gone_as_soon_as_it_is_pickled() -> None:
    gc.disable()
    try:
        batch = [Sample(np.zeros(3)), Stated()]
        gone = weakref.ref(batch[0])
        pickled = ForkingPickler.dumps(HandedOver(batch, SharedBytes(1, 1), 0))
        del batch
        assert gone() is None and len(pickled)
    finally:
        gc.enable()
