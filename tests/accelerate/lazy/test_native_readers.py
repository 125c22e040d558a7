"""OpenCV's and torchvision's readers with native decode: the same arrays and tensors, and nothing left behind."""

from __future__ import annotations

import copy
import io
import pickle
import random
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate_helpers import own_batches
from headrace.accelerate.lazy import native_readers
from headrace.accelerate.lazy.native_readers import Reader, natively_read, readers_imported
from headrace.accelerate.runtime import data_map, first_results
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import io as vision

native = native_readers.native_readers
FLAGS = [-1, 0, 1, 2, 3, 4, 5, 6, 7, 128, 129, 132, 256, 258, 384]
MODES = [vision.ImageReadMode.UNCHANGED, vision.ImageReadMode.GRAY, vision.ImageReadMode.RGB]


def photograph(seed: int = 0, width: int = 57, height: int = 43) -> Image.Image:
    """An image with gradients, edges and noise."""
    noise = np.random.default_rng(seed).integers(0, 40, (height, width, 3))
    values = np.add.outer(np.arange(height) * 3, np.arange(width) * 2)[..., None] * np.array([1, 2, 3]) + noise
    return Image.fromarray((values % 256).astype(np.uint8))


def jpeg(image: Image.Image | None = None, orientation: int | None = None, **options: Any) -> bytes:
    file = io.BytesIO()
    exif = Image.Exif()
    if orientation is not None:
        exif[0x0112] = orientation
    (image or photograph()).save(file, "JPEG", exif=exif, **{"quality": 88, **options})
    return file.getvalue()


def damaged(seed: int) -> bytes:
    data = bytearray(jpeg(quality=95))
    draw = random.Random(seed)
    for _ in range(3):
        data[draw.randrange(2, len(data))] ^= 1 << draw.randrange(8)
    return bytes(data)


FILES: dict[str, bytes] = {
    "420": jpeg(subsampling=2),
    "422": jpeg(subsampling=1),
    "444": jpeg(subsampling=0),
    "restart markers": jpeg(restart_marker_blocks=3),
    "gray": jpeg(photograph().convert("L")),
    "one pixel": jpeg(photograph(1, 1, 1)),
    "progressive": jpeg(progressive=True),
    "cmyk": jpeg(photograph().convert("CMYK")),
    "png": b"\x89PNG\r\n\x1a\n" + b"\0" * 20,
    "empty": b"",
    "header only": jpeg()[:30],
    "truncated": jpeg()[:-300],
    "no end marker": jpeg()[:-2],
    "garbage behind": jpeg() + b"hello",
    "xmp and turned": jpeg(orientation=6, xmp=b"<x/>"),
    **{f"orientation {number}": jpeg(orientation=number) for number in range(10)},
    **{f"gray, orientation {number}": jpeg(photograph().convert("L"), orientation=number) for number in (3, 6)},
    **{f"damaged {seed}": damaged(seed) for seed in range(30)},
}


def outcome(call: Callable[[], Any]) -> Any:
    """Return what can be compared of a result or an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            value = call()
        except Exception as error:
            return type(error), str(error)
    if isinstance(value, np.ndarray):
        return "array", value.dtype, value.shape, value.strides, value.flags.num, value.tobytes()
    if isinstance(value, torch.Tensor):
        return (
            "tensor",
            value.dtype,
            value.shape,
            value.untyped_storage().resizable(),
            value.stride(),
            value.is_contiguous(),
            value.tolist(),
        )
    return list(map(lambda one: outcome(lambda: one), value)) if isinstance(value, list) else value


def compare_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trust every result, so that what is native is what the caller gets."""
    monkeypatch.setattr(native_readers, "COMPARED_READS", 0)


@pytest.fixture
def cv2() -> Any:
    return pytest.importorskip("cv2")


@pytest.mark.parametrize("name", FILES)
def test_opencv_returns_the_same_arrays(name: str, cv2: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compare_nothing(monkeypatch)
    path = str(tmp_path / f"ünï {name}.jpg")
    Path(path).write_bytes(FILES[name])
    calls: list[Callable[[], Any]] = [
        lambda: cv2.imread(path),
        lambda: cv2.imread(filename=path),
        lambda: cv2.imdecode(np.fromfile(path, np.uint8)[None], 1),
        lambda: cv2.imread(path, cv2.IMREAD_REDUCED_COLOR_2),
    ]
    for flags in FLAGS:
        calls.append(lambda flags=flags: cv2.imread(path, flags))  # type: ignore[misc]
        calls.append(lambda flags=flags: cv2.imdecode(np.fromfile(path, np.uint8), flags))  # type: ignore[misc]
    for call in calls:
        expected = outcome(call)
        with native():
            assert outcome(call) == expected


@pytest.mark.parametrize("name", FILES)
def test_torchvision_returns_the_same_tensors(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compare_nothing(monkeypatch)
    path = tmp_path / f"ünï {name}.jpg"
    path.write_bytes(FILES[name])
    data = torch.from_numpy(np.fromfile(path, np.uint8))
    for mode in MODES:
        for turned in (False, True):
            calls: list[Callable[[], Any]] = [
                lambda: vision.decode_jpeg(data, mode, apply_exif_orientation=turned),  # noqa: B023
                lambda: vision.decode_jpeg([data, data], mode, apply_exif_orientation=turned),  # noqa: B023
                lambda: vision.decode_image(data, mode, apply_exif_orientation=turned),  # noqa: B023
                lambda: vision.read_image(str(path), mode, apply_exif_orientation=turned),  # noqa: B023
            ]
            for call in calls:
                expected = outcome(call)
                with native():
                    assert outcome(call) == expected


def test_sound_files_are_decoded_natively(cv2: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compare_nothing(monkeypatch)
    path = str(tmp_path / "a.jpg")
    for name, expected in [
        ("420", 4),
        ("gray", 4),
        ("restart markers", 4),
        ("orientation 6", 4),
        ("progressive", 0),
        ("cmyk", 0),
    ]:
        Path(path).write_bytes(FILES[name])
        data = np.fromfile(path, np.uint8)
        before = natively_read()
        with native():
            cv2.imread(path)
            cv2.imdecode(data, cv2.IMREAD_GRAYSCALE)
            outcome(lambda: vision.read_image(path, apply_exif_orientation=True))
            outcome(lambda data=data: vision.decode_jpeg(torch.from_numpy(data)))  # type: ignore[misc]
        assert natively_read() - before == expected, name


ODD: list[Callable[[Any, str], Any]] = [
    lambda cv2, path: cv2.imread(path + ".missing"),
    lambda cv2, path: cv2.imread(str(Path(path).parent)),
    lambda cv2, path: cv2.imread(path, 257),
    lambda cv2, path: cv2.imread(path, np.int64(0)),
    lambda cv2, path: cv2.imread(path, True),
    lambda cv2, path: cv2.imread(path, 1.0),
    lambda cv2, path: cv2.imread(path, None),
    lambda cv2, path: cv2.imread(path, "1"),
    lambda cv2, path: cv2.imread(path, 1 << 40),
    lambda cv2, path: cv2.imread(path.encode()),
    lambda cv2, path: cv2.imread(Path(path)),
    lambda cv2, path: cv2.imread(3),
    lambda cv2, path: cv2.imread(),
    lambda cv2, path: cv2.imread(path, 1, 2, 3),
    lambda cv2, path: cv2.imread(path, nonsense=1),
    lambda cv2, path: cv2.imread("a\0b"),
    lambda cv2, path: cv2.imdecode(np.fromfile(path, np.uint8)),
    lambda cv2, path: cv2.imdecode(np.fromfile(path, np.uint8)[::2], 1),
    lambda cv2, path: cv2.imdecode(np.fromfile(path, np.uint8)[:, None], 1),
    lambda cv2, path: cv2.imdecode(np.fromfile(path, np.uint8).view(np.int8), 1),
    lambda cv2, path: cv2.imdecode(np.frombuffer(Path(path).read_bytes(), np.uint8), 1),
    lambda cv2, path: cv2.imdecode(Path(path).read_bytes(), 1),
    lambda cv2, path: cv2.imdecode(None, 1),
    lambda cv2, path: cv2.imdecode(np.zeros(0, np.uint8), 1),
    lambda _, path: vision.decode_jpeg(torch.from_numpy(np.fromfile(path, np.uint8))[None]),
    lambda _, path: vision.decode_jpeg(torch.from_numpy(np.fromfile(path, np.uint8)).float()),
    lambda _, path: vision.decode_jpeg(torch.zeros(0, dtype=torch.uint8)),
    lambda _, path: vision.decode_jpeg(torch.frombuffer(Path(path).read_bytes(), dtype=torch.uint8)),
    lambda _, path: vision.decode_jpeg([]),
    lambda _, path: vision.decode_jpeg(torch.from_numpy(np.fromfile(path, np.uint8)), mode="gray"),
    lambda _, path: vision.decode_image(torch.from_numpy(np.fromfile(path, np.uint8)), vision.ImageReadMode.RGB_ALPHA),
    lambda _, path: vision.decode_image(path, "RGB"),
    lambda _, path: torch.ops.image.decode_jpeg(torch.from_numpy(np.fromfile(path, np.uint8)), 0),
    lambda _, path: torch.ops.image.decode_jpeg.default(torch.from_numpy(np.fromfile(path, np.uint8)), 0),
    lambda _, path: vision.read_image(path + ".missing"),
]


@pytest.mark.parametrize("number", range(len(ODD)))
def test_odd_calls_have_the_same_results_and_errors(
    number: int, cv2: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare_nothing(monkeypatch)
    path = str(tmp_path / "a.jpg")
    Path(path).write_bytes(FILES["420"])
    expected = outcome(lambda: ODD[number](cv2, path))
    with native():
        assert outcome(lambda: ODD[number](cv2, path)) == expected


def test_the_gpu_decoder_is_not_replaced() -> None:
    data = torch.from_numpy(np.frombuffer(FILES["420"], np.uint8).copy())
    expected = outcome(lambda: vision.decode_jpeg(data, device="cuda"))
    with native():
        assert outcome(lambda: vision.decode_jpeg(data, device="cuda")) == expected


def test_nothing_stays_replaced_and_other_threads_are_not_served(cv2: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "a.jpg")
    Path(path).write_bytes(FILES["420"])
    own = cv2.imread, cv2.imdecode, torch.ops.image.decode_jpeg, torch.ops.image.decode_image
    before = natively_read()
    with native(), native():
        assert type(cv2.imread) is Reader and cv2.imread.__name__ == "imread" and cv2.imread.__doc__ == own[0].__doc__
        kept = cv2.imread
        assert copy.deepcopy(kept) is kept and copy.copy(kept) is kept
        pickled = pickle.dumps(kept)
        thread = threading.Thread(target=lambda: kept(path))
        thread.start()
        thread.join()
        assert natively_read() == before
        kept(path)
        assert natively_read() == before + 1
    assert (cv2.imread, cv2.imdecode, torch.ops.image.decode_jpeg, torch.ops.image.decode_image) == own
    assert pickle.loads(pickled) is own[0]
    assert outcome(lambda: kept(path)) == outcome(lambda: own[0](path))
    assert natively_read() == before + 1


def test_what_the_script_has_put_in_place_is_left_there(cv2: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def own(path: str, flags: int = 1) -> Any:
        return "the script's"

    monkeypatch.setattr(cv2, "imread", own)
    with native():
        assert cv2.imread is own
        monkeypatch.setattr(cv2, "imdecode", own)
    assert cv2.imdecode is own


def test_a_reader_whose_result_differs_is_not_used_again(cv2: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(first_results, "log_line", said.append)
    monkeypatch.setattr(native_readers, "_readers", {})
    monkeypatch.setattr(native_readers, "_pixels", lambda data, shape, channels: np.zeros((*shape, 3), np.uint8))
    path = str(tmp_path / "a.jpg")
    Path(path).write_bytes(FILES["420"])
    expected = outcome(lambda: cv2.imread(path))
    with native():
        assert outcome(lambda: cv2.imread(path)) == expected
        before = natively_read()
        assert outcome(lambda: cv2.imread(path)) == expected
    assert natively_read() == before
    assert len(said) == 1 and "cv2.imread came out different" in said[0]


def test_limits_of_the_script_keep_opencvs_readers(cv2: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENCV_IO_MAX_IMAGE_PIXELS", "100")
    assert "OpenCV" not in readers_imported()
    own = cv2.imread
    with native():
        assert cv2.imread is own


def test_mapped_files_are_read(cv2: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compare_nothing(monkeypatch)
    for folder, name in [("a", "420"), ("b", "gray")]:
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.jpg").write_bytes(FILES[name])
    monkeypatch.setattr(data_map, "_pairs", [(f"{tmp_path}/a/", f"{tmp_path}/b/")])
    with native():
        found = cv2.imread(str(tmp_path / "a" / "x.jpg"), cv2.IMREAD_UNCHANGED)
    assert found.ndim == 2


class Files(Dataset[Any]):
    """A dataset as people write it for a library."""

    def __init__(self, paths: list[str], library: str, transform: Any = None) -> None:
        self.paths, self.library, self.transform = paths, library, transform

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        path = self.paths[index]
        if self.library == "torchvision":
            return vision.read_image(path, vision.ImageReadMode.RGB)[:, :30, :40], index
        import cv2

        if self.library == "threads":
            results: list[Any] = []
            thread = threading.Thread(target=lambda: results.append(cv2.imread(path)))
            thread.start()
            thread.join()
            return results[0][:30, :40], index
        image = cv2.imdecode(np.fromfile(path, np.uint8), cv2.IMREAD_COLOR) if index % 2 else cv2.imread(path)
        image = cv2.cvtColor(image, cv2.COLOR_BGR2RGB)
        if self.transform is not None:
            return self.transform(image=image)["image"], index
        return image[:30, :40], index


def compared(batches: Iterator[Any] | list[Any]) -> list[Any]:
    return [[outcome(lambda value=value: value) for value in batch] for batch in batches]  # type: ignore[misc]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("library", ["opencv", "torchvision"])
@pytest.mark.filterwarnings("ignore:.*deprecated:UserWarning")
def test_each_batch_equals_the_scripts_own(
    library: str, workers: int, folder: Path, taken_over: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if library == "opencv":
        pytest.importorskip("cv2")
    compare_nothing(monkeypatch)
    paths = sorted(str(path) for path in folder.rglob("*.jpg"))
    loader = DataLoader(Files(paths, library), 2, shuffle=True, num_workers=workers)
    torch.manual_seed(4)
    theirs = compared([*own_batches(loader), *own_batches(loader)])
    torch.manual_seed(4)
    before = natively_read()
    assert compared([*loader, *loader]) == theirs
    assert "taken over in part: " in taken_over[0] and "torchvision.io" in taken_over[0], taken_over
    assert workers or natively_read() > before


def test_albumentations_draws_the_same(folder: Path, taken_over: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cv2")
    albumentations = pytest.importorskip("albumentations")
    compare_nothing(monkeypatch)
    paths = sorted(str(path) for path in folder.rglob("*.jpg"))
    steps = [albumentations.RandomResizedCrop(size=(32, 32)), albumentations.HorizontalFlip(), albumentations.ColorJitter()]

    def batches(make: Callable[[Any], Any]) -> Any:
        transform = albumentations.Compose([*copy.deepcopy(steps), albumentations.Normalize()], seed=7)
        return compared(make(DataLoader(Files(paths, "opencv", transform), 2)))

    theirs = batches(own_batches)
    before = natively_read()
    assert batches(list) == theirs
    assert natively_read() > before


def test_a_loader_that_reads_in_threads_of_its_own_is_said_to_open_no_jpeg(
    cv2: Any, folder: Path, taken_over: list[str], reported_when_known: None
) -> None:
    paths = sorted(str(path) for path in folder.rglob("*.jpg"))
    list(DataLoader(Files(paths, "threads"), 1))
    said = [line for line in taken_over if "open no JPEG with Pillow, OpenCV or torchvision.io" in line]
    assert len(said) == 1
    assert type(cv2.imread) is not Reader
