"""nvImageCodec behind the seam of GPU decoders: its interface is a stand-in on the CPU, whose pixels are the CPU kernel's."""

from __future__ import annotations

import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import fake_gpu
import headrace
import numpy as np
import pytest
from headrace.gpu.peers import choice, nvimagecodec
from headrace.gpu.resampling.decoders import NOT_DECODED, Place
from headrace.images.decode import decode_into
from headrace.transforms import RandAugment, imagenet_train
from sample_images import jpeg

torch = pytest.importorskip("torch")

BILINEAR = frozenset({"bilinear"})


class StandIn(ModuleType):
    """The classes and arguments of `nvidia.nvimgcodec` 0.9 that headrace uses; images are tensors, which have __dlpack__."""

    def __init__(self) -> None:
        super().__init__("nvidia.nvimgcodec")
        self.__spec__ = importlib.machinery.ModuleSpec("nvidia.nvimgcodec", None)
        self.made: list[dict[str, Any]] = []
        self.fails: Callable[[bytes], bool] = lambda file: False
        module = self

        class Region:
            def __init__(self, start_y: int, start_x: int, end_y: int, end_x: int) -> None:
                self.start, self.end = (start_y, start_x), (end_y, end_x)

        class CodeStream:
            def __init__(self, file: bytes) -> None:
                self.file, self.region = file, None

            def get_sub_code_stream(self, image_idx: int = 0, region: Any = None) -> Any:
                part = CodeStream(self.file)
                part.region = region
                return part

        class DecodeParams:
            def __init__(self, apply_exif_orientation: bool = True) -> None:
                assert not apply_exif_orientation, "the CPU kernel decodes what has an orientation"

        class Decoder:
            def __init__(self, device_id: int = -1, options: str = "") -> None:
                module.made.append({"device_id": device_id, "options": options})

            def decode(self, sources: Sequence[Any], params: Any = None, cuda_stream: int = 0) -> list[Any]:
                return [module.decoded(source) for source in sources]

        self.Region, self.CodeStream, self.DecodeParams, self.Decoder = Region, CodeStream, DecodeParams, Decoder

    def decoded(self, source: Any) -> Any:
        if self.fails(source.file):
            return None
        (top, left), (bottom, right) = source.region.start, source.region.end
        out = np.empty((1, bottom - top, right - left, 3), np.uint8)
        status = decode_into([source.file], out, boxes=[(left, top, right - left, bottom - top)])
        return None if status.any() else torch.from_numpy(out[0])


@pytest.fixture
def codec(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    module = StandIn()
    monkeypatch.setitem(sys.modules, "nvidia", ModuleType("nvidia"))
    monkeypatch.setitem(sys.modules, "nvidia.nvimgcodec", module)
    return module


def test_crops_are_those_of_the_cpu_kernel_where_the_pixels_are(codec: StandIn) -> None:
    files = [jpeg(213, 160, seed) for seed in range(3)]
    places = [
        Place((0, 0, 213, 160), (56, 40), (0, 0, 56, 40)),
        Place((11, 7, 101, 90), (56, 40), (0, 0, 56, 40), True),
        Place((5, 3, 150, 120), (80, 60), (12, 10, 56, 40)),
    ]
    found = nvimagecodec.NvImageCodecDecoder("cpu", (40, 56), BILINEAR).decode(files, places)
    expected = np.empty((3, 40, 56, 3), np.uint8)
    columns = list(zip(*places, strict=True))
    decode_into(files, expected, boxes=columns[0], flips=columns[3], sizes=columns[1], windows=columns[2])
    assert list(found.statuses) == [0, 0, 0]
    np.testing.assert_array_equal(found.pixels.numpy(), expected)


def test_what_it_does_not_decode_is_left_to_the_cpu(codec: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [jpeg(64, 48, seed) for seed in range(4)]
    codec.fails = lambda file: file in (files[0], files[2])
    place = Place((0, 0, 64, 48), (32, 24), (0, 0, 32, 24))
    decoder = nvimagecodec.NvImageCodecDecoder("cpu", (24, 32), BILINEAR)
    found = decoder.decode(files, [place] * 4)
    assert list(found.statuses) == [NOT_DECODED, 0, NOT_DECODED, 0]
    alone = decoder.decode(files[3:], [place])
    assert torch.equal(found.pixels[3], alone.pixels[0])
    monkeypatch.setattr(codec, "decoded", lambda source: torch.zeros((48, 64, 1), dtype=torch.uint8))
    assert list(decoder.decode(files, [place] * 4).statuses) == [NOT_DECODED] * 4, "gray"
    monkeypatch.setattr(codec, "decoded", lambda source: None)
    assert list(decoder.decode(files, [place] * 4).statuses) == [NOT_DECODED] * 4


def test_a_shorter_answer_is_an_error_and_never_shifts_images(codec: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before 0.7 nvImageCodec left images out of its answer."""
    decoder = nvimagecodec.NvImageCodecDecoder("cpu", (24, 32), BILINEAR)
    monkeypatch.setattr(decoder._decoder, "decode", lambda sources, **options: [])
    with pytest.raises(RuntimeError, match="decoded 0 of 1 files"):
        decoder.decode([jpeg(64, 48)], [Place((0, 0, 64, 48), (32, 24), (0, 0, 32, 24))])


@pytest.mark.parametrize("error", [ValueError("not a JPEG\nand more"), TypeError("not a JPEG")])
def test_what_it_raises_for_a_file_is_the_error_of_every_decoder(
    codec: StandIn, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """The loader then asks for the halves, until the file is found."""

    def raises(source: Any) -> Any:
        raise error

    monkeypatch.setattr(codec, "decoded", raises)
    decoder = nvimagecodec.NvImageCodecDecoder("cpu", (24, 32), BILINEAR)
    with pytest.raises(RuntimeError, match=r"^not a JPEG$"):
        decoder.decode([jpeg(64, 48)], [Place((0, 0, 64, 48), (32, 24), (0, 0, 32, 24))])


def test_each_gpu_has_its_own_decoder(codec: StandIn) -> None:
    assert nvimagecodec.available("cpu", BILINEAR) is None
    nvimagecodec.NvImageCodecDecoder("cuda:1", (24, 32), BILINEAR)
    assert [made["device_id"] for made in codec.made] == [-1, 1]
    assert {made["options"] for made in codec.made} == {":fancy_upsampling=1"}


def test_what_stands_in_the_way_is_one_line(codec: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "not by lanczos" in (nvimagecodec.available("cpu", frozenset({"lanczos"})) or "")
    codec.fails = lambda file: True
    assert nvimagecodec.available("cpu", BILINEAR) == "it does not decode a small JPEG on this GPU"

    def broken(*arguments: Any, **options: Any) -> Any:
        raise RuntimeError("nvImageCodec failure: '#7'\nand a long explanation")

    monkeypatch.setattr(codec, "Decoder", broken)
    assert nvimagecodec.available("cpu", BILINEAR) == "nvImageCodec failure: '#7'"
    if not torch.cuda.is_available():
        assert nvimagecodec.available("cuda:0", BILINEAR) == "torch sees no CUDA device"
    monkeypatch.delattr(codec.CodeStream, "get_sub_code_stream")
    assert nvimagecodec.available("cpu", BILINEAR) == "this nvImageCodec is older than 0.7"
    monkeypatch.setitem(sys.modules, "nvidia.nvimgcodec", None)
    assert nvimagecodec.available("cpu", BILINEAR) == "nvImageCodec is not installed"


def test_a_loader_uses_it_where_it_is_installed(
    codec: StandIn, image_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    root, known = image_folder(classes=2, per_class=8), choice.DECODERS
    transform = headrace.transforms.Compose([imagenet_train(48), RandAugment()])

    def epoch(**options: Any) -> tuple[list[Any], str]:
        with headrace.Loader(root, 8, transform, seed=3, threads=2, **options) as loader:
            return [images.clone() for images, _ in loader], loader.explain()

    expected, _ = epoch()
    fake_gpu.install(monkeypatch)
    monkeypatch.setattr(choice, "DECODERS", known)
    found, words = epoch(device="cuda", decode="gpu")
    assert "decoded on the GPU by nvImageCodec" in words
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    _, words = epoch(device="cuda")
    assert "nvImageCodec: slightly different pixels; decode='gpu' or 'split' allows it" in words


def test_the_installed_nvimagecodec_has_the_interface() -> None:
    module = pytest.importorskip("nvidia.nvimgcodec")
    region = module.Region(1, 2, 3, 4)
    assert tuple(region.start) == (1, 2) and tuple(region.end) == (3, 4)
    part = module.CodeStream(jpeg(64, 48)).get_sub_code_stream(region=region)
    assert part is not None
    module.DecodeParams(apply_exif_orientation=False)
