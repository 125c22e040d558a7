"""One look at a batch: labels, the range of images, digests; unseen by the script's modes, and without a draw."""

from __future__ import annotations

import random
from typing import Any

import numpy
import pytest
from headrace.attach.batches.batch_values import MOST_VALUES, BatchValues, count_of, read_values, records_of

torch = pytest.importorskip("torch")


def seen(data: Any) -> BatchValues:
    found = read_values(data, whole=True)
    assert found is not None
    return found


def images(count: int = 8, channels: int = 3) -> Any:
    return torch.rand(count, channels, 32, 32, generator=torch.Generator().manual_seed(1)) - 0.5


LABELS = torch.tensor([3, 1, 4, 1, 5, 9, 2, 6])


@pytest.mark.parametrize(
    "batch",
    [
        [images(), LABELS],
        (images(), LABELS.to(torch.int32), torch.arange(8)),
        {"image": images(), "label": LABELS, "index": torch.arange(8)},
        {"pixel_values": images(), "labels": LABELS},
        ([images(), images()], LABELS),
        (images().contiguous(memory_format=torch.channels_last), LABELS),
        ((images() * 255).to(torch.uint8).permute(0, 2, 3, 1).contiguous(), LABELS),
    ],
    ids=["pair", "three", "dict", "pixel_values", "two views", "channels last", "bytes"],
)
def test_labels_are_the_integers_beside_the_images(batch: Any) -> None:
    found = seen(batch)
    assert found.labels == (3, 1, 4, 1, 5, 9, 2, 6)
    assert found.images == 8 and found.is_equal is False and not found.is_zero


@pytest.mark.parametrize(
    "batch",
    [
        (images(), torch.zeros(8, 5, dtype=torch.long)),  # several labels each
        (images(), torch.zeros(8)),  # regression
        (images(), torch.zeros(8, 32, 32, dtype=torch.long)),  # masks
        (images(), torch.arange(40), torch.full((8,), 5)),  # texts, and their lengths
        (images(), torch.zeros(8, dtype=torch.bool)),
        (torch.zeros(8, 512, dtype=torch.long), torch.full((8,), 512)),  # tokens and their number
        (torch.rand(8, 40, generator=torch.Generator()), torch.zeros(8, dtype=torch.long)),  # rows of a table
        {"image": images(), "weight": torch.zeros(8, dtype=torch.long)},
        (images(), [{"boxes": torch.zeros(2, 4), "labels": torch.ones(2, dtype=torch.long)}] * 8),
    ],
    ids=["multi-label", "regression", "masks", "text lengths", "bool", "tokens", "table", "other key", "detection"],
)
def test_other_integers_are_no_labels(batch: Any) -> None:
    assert seen(batch).labels is None


def test_an_attention_mask_is_no_image() -> None:
    assert seen((torch.zeros(8, 1, 1, 512), torch.zeros(8, dtype=torch.long))).images is None


def test_zeros_equal_images_and_values_that_are_not_finite() -> None:
    zero = seen(torch.zeros(8, 3, 32, 32))
    assert zero.is_zero and zero.is_equal
    same = seen(images(1).expand(8, 3, 32, 32).contiguous())
    assert same.is_equal and not same.is_zero
    broken = images()
    broken[3, 1] = float("nan")
    found = seen(broken)
    assert found.low is None and 0 < found.not_finite < found.looked <= MOST_VALUES
    assert not found.is_zero and found.is_equal is None
    half = seen(images().half())
    assert half.format == "float16" and half.low is not None and -0.5 <= half.low < 0


def test_one_pixel_that_is_not_looked_at_still_counts() -> None:
    almost_zero = torch.zeros(8, 3, 64, 64)
    almost_zero[5, 2, 33, 17] = 1.0
    assert not seen(almost_zero).is_zero
    almost_same = images(1).expand(8, 3, 32, 32).contiguous()
    almost_same[7, 0, 3, 3] += 1
    assert not seen(almost_same).is_equal


def test_what_is_not_a_plain_tensor_on_the_cpu_is_not_read() -> None:
    class Own(torch.Tensor):
        pass

    learned = images().requires_grad_()
    meta = torch.empty(8, 3, 32, 32, device="meta")
    for data in (images().as_subclass(Own), learned, meta, images()[:, :, ::2], [], None, "text", {"a": [None] * 100}):
        found = seen(data)
        assert found.images is None and found.digest is None


def test_a_look_draws_nothing_and_no_mode_of_the_script_sees_it() -> None:
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    calls: list[Any] = []

    class Functions(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            calls.append(function)
            return function(*args, **(kwargs or {}))

    class Dispatched(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            calls.append(function)
            return function(*args, **(kwargs or {}))

    batch = [images(), LABELS]
    before = random.getstate(), torch.get_rng_state(), batch[0].clone(), batch[0]._version
    with Functions():
        assert seen(batch).digest
    assert not calls
    with Dispatched():
        assert read_values(batch, whole=True) is None
    assert not calls
    assert random.getstate() == before[0] and torch.equal(torch.get_rng_state(), before[1])
    assert torch.equal(batch[0], before[2]) and batch[0]._version == before[3]


@pytest.mark.filterwarnings("ignore:.*jit.trace.*:FutureWarning")
def test_nothing_is_read_while_operations_are_traced_or_transformed() -> None:
    found: list[Any] = []

    def look(images: Any) -> Any:
        found.append(read_values(torch.zeros(4, 3, 8, 8)))
        return images + 1

    torch.jit.trace(look, torch.zeros(2), check_trace=False)
    torch.vmap(look)(torch.zeros(2, 2))
    assert found == [None, None]


def test_records_are_whole_numbers_compared_with_and_without_order() -> None:
    first, other = records_of([1, 2, 3]), records_of((3, 2, 1))
    assert first is not None and other is not None
    assert first[0] != other[0] and first[1] == other[1] and first[2] == 3
    assert records_of(7) == records_of([7])
    for listed in (numpy.array([1, 2, 3]), torch.tensor([1, 2, 3])):
        assert records_of(listed) == first
    for index in ([], ["a"], [None, None], [(1, 2)], [2**70], None, [1, "b"]):
        assert records_of(index) is None


@pytest.mark.parametrize(
    ("index", "count"),
    [([4, 5], 2), ((4,), 1), (7, 1), ("name", 1), (numpy.arange(5), 5), (torch.arange(6), 6), (torch.tensor(3), 1), (None, 1)],
    ids=str,
)
def test_a_sampler_may_give_the_records_of_a_batch_in_an_array(index: Any, count: int) -> None:
    assert count_of(index) == count


def test_no_code_of_a_batch_class_is_run() -> None:
    class Lazy(dict):  # type: ignore[type-arg]
        def refuse(self, *_: Any) -> Any:
            raise AssertionError("loaded")

        values = __getitem__ = __contains__ = refuse

    class Parts(list):  # type: ignore[type-arg]
        def refuse(self, *_: Any) -> Any:
            raise AssertionError("loaded")

        __getitem__ = __iter__ = refuse

    for data in (Lazy(image=images(), label=LABELS), Parts([images(), LABELS])):
        found = seen(data)
        assert found.images == 8 and found.labels == tuple(LABELS.tolist())
