"""torchcodec behind the seam of GPU decoders: on the CPU, where its pixels are libjpeg-turbo's, and with a stand-in for it."""

from __future__ import annotations

import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from types import ModuleType
from typing import Any

import fake_gpu
import headrace
import numpy as np
import pytest
from headrace._native import image_size
from headrace.gpu.peers import choice, torchcodec_jpeg
from headrace.gpu.resampling.decoders import NOT_DECODED, Place
from headrace.images.decode import decode_into
from headrace.transforms import RandAugment, imagenet_train
from PIL import Image
from sample_images import jpeg

torch = pytest.importorskip("torch")

BILINEAR = frozenset({"bilinear"})
PLACES = [
    Place((0, 0, 213, 160), (56, 40), (0, 0, 56, 40)),
    Place((11, 7, 101, 90), (56, 40), (0, 0, 56, 40), True),
    Place((5, 3, 150, 120), (80, 60), (12, 10, 56, 40)),
]


class StandIn(ModuleType):
    """`torchcodec.decoders` as headrace uses it: a list of files, the mode and the device by name."""

    def __init__(self) -> None:
        super().__init__("torchcodec.decoders")
        self.calls: list[tuple[int, str]] = []
        self.fails: Callable[[bytes], bool] = lambda file: False
        self.error: Exception = RuntimeError("nvjpegDecode failed: 3")

    def decode_jpeg(self, source: Sequence[Any], *, mode: str = "RGB", device: Any = "cpu") -> list[Any]:
        self.calls.append((len(source), mode))
        return [self.decoded(one.numpy().tobytes()) for one in source]

    def decoded(self, file: bytes) -> Any:
        if self.fails(file):
            raise self.error
        width, height = image_size(file)
        whole = np.empty((1, height, width, 3), np.uint8)
        assert not decode_into([file], whole).any()
        return torch.from_numpy(whole[0]).permute(2, 0, 1).contiguous()


@pytest.fixture
def codec(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    package, module = ModuleType("torchcodec"), StandIn()
    package.__spec__ = importlib.machinery.ModuleSpec("torchcodec", None)
    monkeypatch.setitem(sys.modules, "torchcodec", package)
    monkeypatch.setitem(sys.modules, "torchcodec.decoders", module)
    return module


def expected(files: list[bytes]) -> np.ndarray:
    out = np.empty((len(files), 40, 56, 3), np.uint8)
    columns = list(zip(*PLACES, strict=True))
    decode_into(files, out, boxes=columns[0], flips=columns[3], sizes=columns[1], windows=columns[2])
    return out


def turned(file: bytes, orientation: int) -> bytes:
    """Return the picture with an EXIF orientation."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    found = BytesIO()
    Image.open(BytesIO(file)).save(found, "JPEG", exif=exif, quality=95)
    return found.getvalue()


def test_crops_are_those_of_the_cpu_kernel_where_the_pixels_are(codec: StandIn) -> None:
    files = [jpeg(213, 160, seed) for seed in range(3)]
    found = torchcodec_jpeg.TorchcodecDecoder("cpu", (40, 56), BILINEAR).decode(files, PLACES)
    assert list(found.statuses) == [0, 0, 0]
    np.testing.assert_array_equal(found.pixels.numpy(), expected(files))
    assert codec.calls == [(3, "RGB")], "one call for the whole batch"


def test_files_that_torchcodec_would_turn_are_left_to_the_cpu(codec: StandIn) -> None:
    files = [jpeg(213, 160, 0), turned(jpeg(213, 160, 1), 6), turned(jpeg(213, 160, 2), 1)]
    decoder = torchcodec_jpeg.TorchcodecDecoder("cpu", (40, 56), BILINEAR)
    found = decoder.decode(files, PLACES)
    assert list(found.statuses) == [0, NOT_DECODED, 0]
    np.testing.assert_array_equal(found.pixels.numpy()[[0, 2]], expected(files)[[0, 2]])
    assert codec.calls == [(2, "RGB")]
    assert list(decoder.decode([files[1]], PLACES[:1]).statuses) == [NOT_DECODED]
    assert len(codec.calls) == 1


def test_what_stands_in_the_way_is_one_line(codec: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    assert torchcodec_jpeg.available("cpu", BILINEAR) is None
    assert "not by lanczos" in (torchcodec_jpeg.available("cpu", frozenset({"lanczos"})) or "")
    codec.fails = lambda file: True
    assert torchcodec_jpeg.available("cpu", BILINEAR) == "nvjpegDecode failed: 3"
    for error, words in ((RuntimeError(), "RuntimeError"), (ValueError("\nmore"), "more")):
        codec.error = error
        assert torchcodec_jpeg.available("cpu", BILINEAR) == words

    def broken(*arguments: Any, **options: Any) -> Any:
        raise RuntimeError("decode_jpeg: torchcodec was not compiled with nvJPEG support\nand a long explanation")

    monkeypatch.setattr(codec, "decode_jpeg", broken)
    assert torchcodec_jpeg.available("cpu", BILINEAR) == "decode_jpeg: torchcodec was not compiled with nvJPEG support"
    if not torch.cuda.is_available():
        assert torchcodec_jpeg.available("cuda:0", BILINEAR) == "torch sees no CUDA device"
    monkeypatch.setitem(sys.modules, "torchcodec.decoders", ModuleType("torchcodec.decoders"))
    assert torchcodec_jpeg.available("cpu", BILINEAR) == "this torchcodec decodes no JPEGs; 0.17 does"
    monkeypatch.setitem(sys.modules, "torchcodec.decoders", None)
    assert (torchcodec_jpeg.available("cpu", BILINEAR) or "").startswith("torchcodec cannot be loaded: ")


def test_without_torchcodec_that_is_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert torchcodec_jpeg.available("cpu", BILINEAR) == "torchcodec is not installed"


@pytest.mark.parametrize("error", [RuntimeError("nvjpegDecode failed: 3"), ValueError("not a JPEG"), TypeError()])
def test_a_loader_uses_it_where_it_is_installed(
    codec: StandIn, image_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    root, known = image_folder(classes=2, per_class=8), choice.DECODERS
    transform = headrace.transforms.Compose([imagenet_train(48), RandAugment()])
    poison = sorted(root.rglob("*.jpg"))[5].read_bytes()
    codec.fails, codec.error = lambda file: file == poison, error

    def epoch(**options: Any) -> tuple[list[Any], str]:
        with headrace.Loader(root, 8, transform, seed=3, threads=2, **options) as loader:
            return [images.clone() for images, _ in loader], loader.explain()

    wanted, _ = epoch()
    fake_gpu.install(monkeypatch)
    name = "nvJPEG through torchcodec"
    monkeypatch.setattr(choice, "DECODERS", {name: known[name]})
    found, words = epoch(device="cuda", decode="gpu")
    assert f"decoded on the GPU by {name}" in words
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
    _, words = epoch(device="cuda")
    assert f"{name}: slightly different pixels; decode='gpu' or 'split' allows it" in words


def test_the_installed_torchcodec_gives_the_crops() -> None:
    """On the CPU torchcodec decodes by libjpeg-turbo, whose pixels are the CPU kernel's."""
    pytest.importorskip("torchcodec")
    assert torchcodec_jpeg.available("cpu", BILINEAR) is None
    files = [jpeg(213, 160, 0), turned(jpeg(213, 160, 1), 8), jpeg(213, 160, 2)]
    found = torchcodec_jpeg.TorchcodecDecoder("cpu", (40, 56), BILINEAR).decode(files, PLACES)
    assert list(found.statuses) == [0, NOT_DECODED, 0]
    np.testing.assert_array_equal(found.pixels.numpy()[[0, 2]], expected(files)[[0, 2]])
