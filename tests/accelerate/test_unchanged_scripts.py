"""`headrace run` calls nothing of the script that the script would not call, and keeps what its objects look like."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate_helpers import assert_same, own_batches
from headrace.accelerate import hook
from headrace.accelerate.lazy import native_decode
from headrace.accelerate.settings import CHECK
from headrace.accelerate.whole.iterator import NativeIterator
from PIL import Image, ImageOps
from torch.utils.data import DataLoader, default_collate
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

TENSOR = [v1.Resize((32, 32)), v1.ToTensor()]


class Counting:
    """A transform that counts its calls in this process, and in all processes."""

    def __init__(self) -> None:
        self.calls = 0
        self.everywhere = multiprocessing.Value("i", 0)

    def __call__(self, image: Any) -> Any:
        self.calls += 1
        with self.everywhere.get_lock():
            self.everywhere.value += 1
        return image


@pytest.mark.parametrize("workers", [0, 1])
def test_a_transform_sees_exactly_as_many_calls_as_plain(folder: Path, taken_over: list[str], workers: int) -> None:
    counting = Counting()
    loader = DataLoader(ImageFolder(str(folder), v1.Compose([*TENSOR, counting])), 5, num_workers=workers)
    iterator = iter(loader)
    assert "taken over in part" in taken_over[-1]
    assert (counting.calls, counting.everywhere.value) in ([(0, 0)] if workers == 0 else [(0, n) for n in range(21)])
    list(iterator)
    assert (counting.calls, counting.everywhere.value) == (0 if workers else 20, 20)


class CountingTarget:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, target: int) -> int:
        self.calls += 1
        return target + self.calls


@pytest.mark.parametrize("workers", [0, 1])
def test_a_target_transform_with_a_state_is_left_to_its_workers(folder: Path, taken_over: list[str], workers: int) -> None:
    def loader(target: CountingTarget) -> Any:
        return DataLoader(ImageFolder(str(folder), v1.Compose(TENSOR), target), 5, num_workers=workers)

    target, other = CountingTarget(), CountingTarget()
    theirs = [*own_batches(loader(other)), *own_batches(loader(other))]
    made = loader(target)
    assert_same([*made, *made], theirs)
    assert target.calls == other.calls == (0 if workers else 40)
    assert "in part" in taken_over[-1] and "its target_transform CountingTarget" in taken_over[-1]


class CountingCollate:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, batch: list[Any]) -> Any:
        self.calls += 1
        return default_collate(batch)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_collate_function_with_a_state_is_left_to_its_workers(folder: Path, taken_over: list[str], workers: int) -> None:
    collate = CountingCollate()
    loader = DataLoader(ImageFolder(str(folder), v1.Compose(TENSOR)), 5, num_workers=workers, collate_fn=collate)
    assert_same(list(loader), own_batches(loader))
    assert collate.calls == (0 if workers else 8)
    assert "in part" in taken_over[-1] and "collate_fn CountingCollate" in taken_over[-1]


class DrawingTarget:
    def __init__(self) -> None:
        self.generator = np.random.default_rng(7)

    def __call__(self, target: int) -> float:
        return target + float(self.generator.random())


def test_a_generator_that_workers_copy_is_left_to_them(folder: Path, taken_over: list[str]) -> None:
    def loader(workers: int) -> Any:
        return DataLoader(ImageFolder(str(folder), v1.Compose(TENSOR), DrawingTarget()), 5, num_workers=workers)

    for workers in (2, 0):
        assert_same(list(loader(workers)), own_batches(loader(workers)))
        assert "in part" in taken_over[-1] and "its items call Generator.random" in taken_over[-1]


def test_string_targets_stay_tuples(folder: Path, taken_over: list[str]) -> None:
    data = ImageFolder(str(folder), v1.Compose(TENSOR), target_transform=lambda target: f"class {target}")
    loader = DataLoader(data, 6, shuffle=True)
    torch.manual_seed(3)
    theirs = own_batches(loader)
    torch.manual_seed(3)
    iterator = iter(loader)
    assert isinstance(iterator, NativeIterator)
    for (images, names), (other, expected) in zip(iterator, theirs, strict=True):
        assert torch.equal(images, other)
        assert type(names) is type(expected) is tuple and names == expected


def as_they_are(batch: list[Any]) -> list[Any]:
    return batch


def test_pillow_images_are_compared_by_pixels_mode_and_size(folder: Path, taken_over: list[str]) -> None:
    """`info` too, which a transform behind the first one may read: EXIF, colour profile, resolution."""
    rotated = Image.Exif()
    rotated[0x0112] = 6
    for number, path in enumerate(sorted(folder.glob("*/*.jpg"))[:3]):
        Image.open(path).convert("RGB").resize((90, 60)).save(path, "JPEG", exif=rotated, dpi=(72 + number, 72))
    transform = v1.Compose([v1.RandomResizedCrop((40, 30)), v1.Lambda(ImageOps.exif_transpose)])
    loader = DataLoader(ImageFolder(str(folder), transform), 5, collate_fn=as_they_are)
    torch.manual_seed(1)
    theirs = own_batches(loader)
    torch.manual_seed(1)
    ours = list(loader)
    assert "taken over in part" in taken_over[-1]
    pairs = [pair for mine, other in zip(ours, theirs, strict=True) for pair in zip(mine, other, strict=True)]
    assert {image.size for (image, _), _ in pairs} == {(30, 40), (40, 30)}
    for (image, label), (expected, other) in pairs:
        assert type(image) is type(expected) and (image.mode, image.size) == (expected.mode, expected.size)
        assert image.tobytes() == expected.tobytes() and image.info == expected.info and label == other


def test_images_with_other_metadata_are_not_equal(folder: Path) -> None:
    image = Image.open(next(folder.glob("*/*.jpg"))).convert("RGB")
    assert native_decode.equal_images(image, image.copy())
    for other in (image.convert("L"), image.resize((8, 8)), Image.eval(image, lambda value: 255 - value)):
        assert not native_decode.equal_images(image, other)
    labelled = image.copy()
    labelled.info["dpi"] = (1, 2)
    assert not native_decode.equal_images(image, labelled)


@pytest.mark.parametrize(("kind", "workers"), [("whole", 0), ("whole", 1), ("part", 0), ("own", 1)])
def test_warnings_name_the_same_line(folder: Path, taken_over: list[str], kind: str, workers: int) -> None:
    transform = v1.Compose([v1.RandomResizedCrop(32), *([v1.RandomPerspective()] if kind == "part" else []), v1.ToTensor()])
    data: Any = torch.utils.data.TensorDataset(torch.zeros(4, 1)) if kind == "own" else ImageFolder(str(folder), transform)
    loader = DataLoader(data, 4, num_workers=workers, pin_memory=True)
    places = []
    for walk in (own_batches, iter):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            iterator = walk(loader)
        places.append([(str(one.message), one.category, one.filename, one.lineno) for one in found])
        del iterator
    assert places[0] == places[1] and (places[0] or torch.cuda.is_available())


WARNING = """
import sys, torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from torchvision import transforms as T
from torchvision.datasets import ImageFolder

class Lying(IterableDataset):
    def __repr__(self):
        return "Lying()"
    def __len__(self):
        return 2
    def __iter__(self):
        return iter([1.0, 2.0, 3.0, 4.0])

data = ImageFolder(sys.argv[1], T.Compose([T.Resize((32, 32)), T.ToTensor()]))
for _ in range(2):
    list(DataLoader(data, 10, pin_memory=True))
lying = DataLoader(Lying(), 1)
len(lying)
for batch in lying:
    pass
"""


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["run", "diagnose"])
def test_a_watched_script_prints_the_same_warnings(tmp_path: Path, folder: Path, verb: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(WARNING)
    command = [sys.executable, str(script), str(folder)]
    plain = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100).stderr
    options = ["--no-report", "--out", str(tmp_path / "session")] if verb == "diagnose" else []
    ours = subprocess.run(
        [sys.executable, "-m", "headrace", verb, *options, "--", *command],
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    ).stderr
    shown = [line for line in ours.splitlines() if not line.startswith("headrace ")]
    assert "Length of IterableDataset" in plain
    assert [line for line in shown if "Warning" in line] == [line for line in plain.splitlines() if "Warning" in line]


class _FakeLoader:
    """What fastai gives to PyTorch's iterators: the attributes of `fastai/data/load.py`, and no others."""

    def __init__(self, d: Any) -> None:
        self.dataset, self.default, self.d = self, d, d
        self._IterableDataset_len_called, self._auto_collation, self.drop_last = None, False, False
        self.collate_fn, self.generator, self.prefetch_factor = (lambda batch: batch), None, 2
        self._index_sampler, self.worker_init_fn = range(10**9), None
        self.dataset_kind = self._dataset_kind = torch.utils.data.dataloader._DatasetKind.Iterable
        self.pin_memory, self.num_workers, self.timeout, self.persistent_workers = False, 0, 0, False
        self.pin_memory_device, self.in_order = "", True
        self.multiprocessing_context = None

    def __iter__(self) -> Any:
        return iter(torch.utils.data.default_collate([item]) for item in self.d.dataset)


class FastaiLoader:
    def __init__(self, dataset: Any) -> None:
        self.dataset, self.bs = dataset, 1
        self.fake_l = _FakeLoader(self)

    def __iter__(self) -> Any:
        return iter(_SingleProcessDataLoaderIter(self.fake_l))


def test_fastais_stand_in_is_recognised_and_said(folder: Path, taken_over: list[str]) -> None:
    data = ImageFolder(str(folder), v1.Compose(TENSOR))
    assert len(list(FastaiLoader(data))) == len(list(FastaiLoader(data))) == 20
    (line,) = taken_over
    assert f"ImageFolder({folder}) not taken over: fastai's DataLoader makes its own batches" in line


STAND_IN = textwrap.dedent(
    """
    import sys
    sys.path[:0] = [{tests!r}, {helpers!r}]
    import torch
    import test_unchanged_scripts as fake
    torch.set_num_threads(1)
    if {broken}:
        fake._FakeLoader.__hash__ = None
    loader = fake.FastaiLoader(fake.ImageFolder(sys.argv[1], fake.v1.Compose(fake.TENSOR)))
    model = torch.nn.Linear(3 * 32 * 32, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for images, labels in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images.flatten(1)), labels).backward()
        optimizer.step()
    print("done")
    """
)


@pytest.mark.slow
@pytest.mark.parametrize("broken", [False, True])
def test_diagnose_times_a_stand_in_or_says_that_its_hook_failed(tmp_path: Path, folder: Path, broken: bool) -> None:
    script = tmp_path / "train.py"
    here = Path(__file__).parent
    script.write_text(STAND_IN.format(tests=str(here), helpers=str(here.parent / "helpers"), broken=broken))
    command = [sys.executable, "-m", "headrace", "diagnose", "--json", "--no-report", "--out", str(tmp_path / "session"), "--"]
    done = subprocess.run([*command, sys.executable, str(script), str(folder)], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0 and "done" in done.stderr, done.stderr
    if broken:
        assert "a hook of headrace failed" in done.stdout and "no DataLoader was iterated" not in done.stdout
        assert '"confidence": 0.1' in done.stdout
        return
    assert "INSUFFICIENT_DATA" not in done.stdout and "is off in process" not in done.stderr
    assert "fastai's DataLoader makes its own batches" in done.stdout or "headrace_run" not in done.stdout


def test_a_refusal_says_each_reason_once_and_what_would_help(
    folder: Path, taken_over: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hook, "PARTIAL_WAYS", (native_decode.with_native_decode,))

    class Rows(torch.utils.data.TensorDataset):
        """Of the script's own, so that the rules apply."""

    list(DataLoader(Rows(torch.zeros(4, 1)), 2))
    list(DataLoader(ImageFolder(str(folder), v1.Compose([v1.RandomHorizontalFlip(), v1.Resize(8), v1.ToTensor()])), 1))
    assert taken_over[0].count("is not an image folder") == 1
    assert taken_over[0].endswith("(it would be with torchvision's ImageFolder or timm's ImageDataset)")
    assert "does not fix the image size; not in part either: transform RandomHorizontalFlip comes first" in taken_over[1]
    assert taken_over[1].endswith("(it would be with CenterCrop, RandomCrop or RandomResizedCrop in it)")


def test_a_method_that_the_script_replaced_is_not_called_for_it(
    folder: Path, taken_over: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []
    original: Callable[..., Any] = v1.ToTensor.__call__

    def counted(self: Any, image: Any) -> Any:
        calls.append(self)
        return original(self, image)

    monkeypatch.setattr(v1.ToTensor, "__call__", counted)
    iterator = iter(DataLoader(ImageFolder(str(folder), v1.Compose(TENSOR)), 5))
    assert not isinstance(iterator, NativeIterator) and "ToTensor.__call__ is replaced" in taken_over[-1]
    list(iterator)
    assert len(calls) == 20


def test_check_reports_loaders_that_are_taken_over_in_part(
    folder: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setenv(CHECK, "12")
    lines: list[str] = request.getfixturevalue("taken_over")
    next(
        iter(
            DataLoader(
                ImageFolder(str(folder), v1.Compose([v1.RandomResizedCrop(32), v1.RandomPerspective(), v1.ToTensor()])), 5
            )
        )
    )
    assert "taken over in part" in lines[0]
    assert lines[1].startswith("headrace run:   check: 12 images and the random draws equal; ")


@pytest.mark.parametrize("workers", [0, 1])
def test_the_scripts_own_limit_on_pixels_holds(
    folder: Path, taken_over: list[str], workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    loader = DataLoader(ImageFolder(str(folder), v1.Compose(TENSOR)), 5, num_workers=workers)
    with pytest.raises(Image.DecompressionBombError, match="exceeds limit of 20 pixels"):
        next(iter(loader))
    assert "the script has lowered PIL.Image.MAX_IMAGE_PIXELS" in taken_over[-1]


class Failing:
    def __call__(self, image: Any) -> Any:
        raise LookupError("a transform of the script that fails")


def test_an_error_in_a_worker_has_no_context_of_ours(folder: Path, taken_over: list[str]) -> None:
    """A worker that is forked while an exception is handled would print that exception before each error of the script."""
    loader = DataLoader(ImageFolder(str(folder), v1.Compose([Failing(), *TENSOR])), 5, num_workers=1)
    with pytest.raises(LookupError) as caught:
        next(iter(loader))
    assert "taken over in part" in taken_over[-1] and "the script's own transform Failing" in taken_over[-1]
    assert "another exception" not in str(caught.value) and "Unsupported" not in str(caught.value)
