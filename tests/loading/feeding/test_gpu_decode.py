"""decode="gpu": the batches are the CPU's, whatever the decoder does or leaves undone. The decoder is a fake on the CPU."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import fake_gpu
import headrace
import pytest
from headrace.errors import DecodeError, HeadraceError, UsageError
from headrace.gpu import decoder
from headrace.gpu.augmentation.augment import OPERATIONS
from headrace.gpu.augmentation.augment_check import CheckedOperations
from headrace.gpu.decoder import batch_decoder
from headrace.loading.batches import cuda_transfer
from headrace.loading.feeding import gpu_decode
from headrace.transforms import (
    CenterCrop,
    ColorJitter,
    Compose,
    CutMix,
    GaussianBlur,
    MixUp,
    PillowBlur,
    RandAugment,
    RandomApply,
    RandomChoice,
    RandomErasing,
    RandomGrayscale,
    RandomHorizontalFlip,
    RandomRotation,
    RandomVerticalFlip,
    Resize,
    TrivialAugmentWide,
    imagenet_train,
)

torch = pytest.importorskip("torch")
MakeFolder = Callable[..., Path]
TRANSFORMS = {
    "train": imagenet_train(48),
    "evaluate": Compose([Resize(64), CenterCrop(48), RandomHorizontalFlip()]),
    "normalized": imagenet_train(48, normalize=True),
    "upside down": Compose([imagenet_train(48), RandomVerticalFlip()]),
    "colours": Compose([imagenet_train(48), ColorJitter(0.4, 0.4, 0.4, 0.1), RandomGrayscale(0.2), GaussianBlur(5)]),
    "SimCLR": Compose([imagenet_train(48), RandomApply([ColorJitter(0.8, 0.8, 0.8, 0.2)], p=0.8), GaussianBlur(5)]),
    "rotation": Compose([imagenet_train(48), RandomRotation(20, interpolation="bilinear"), RandomHorizontalFlip()]),
    "RandAugment": Compose([imagenet_train(48), RandAugment()]),
    "TrivialAugmentWide": Compose([imagenet_train(48), TrivialAugmentWide(interpolation="bilinear")]),
}


def epoch(root: Path, transform: Any, **options: Any) -> list[Any]:
    with headrace.Loader(root, 8, transform, seed=3, threads=2, drop_last=False, **options) as loader:
        return [[part.clone() for part in batch] for batch in loader]


def are_equal(left: list[Any], right: list[Any]) -> bool:
    return len(left) == len(right) and all(
        torch.equal(a, b) for one, other in zip(left, right, strict=True) for a, b in zip(one, other, strict=True)
    )


@pytest.mark.matrix
@pytest.mark.parametrize("decode", ["auto", "cpu", "gpu", "split"])
@pytest.mark.parametrize("name", [name for name in TRANSFORMS if name != "normalized"])
def test_batches_are_those_of_the_cpu(
    image_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch, decode: str, name: str
) -> None:
    root = image_folder(classes=4, per_class=11)
    on_cpu = epoch(root, TRANSFORMS[name])
    made = fake_gpu.install(monkeypatch)
    assert are_equal(epoch(root, TRANSFORMS[name], device="cuda", decode=decode), on_cpu)
    decoded = sum(sum(one.calls) for one in made)
    assert decoded == {"gpu": 44, "cpu": 0, "auto": 0}.get(decode, decoded)
    if decode == "split":
        assert 0 < decoded < 44


def test_normalized_floats_are_those_of_the_cpu(image_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    root = image_folder(classes=2, per_class=8)
    on_cpu = epoch(root, TRANSFORMS["normalized"], dtype="float32")
    fake_gpu.install(monkeypatch)
    on_gpu = epoch(root, TRANSFORMS["normalized"], dtype="float32", device="cuda", decode="split")
    for (images, _), (expected, _) in zip(on_gpu, on_cpu, strict=True):
        torch.testing.assert_close(images, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.matrix
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "uint8"])
@pytest.mark.parametrize(
    "steps",
    [
        [],
        [RandomErasing(p=0.7, value=(0.1, 0.2, 0.3))],
        [MixUp(num_classes=4)],
        [RandomErasing(p=0.7), CutMix(num_classes=4)],
        [RandomChoice([MixUp(num_classes=4), CutMix(num_classes=4)]), RandomErasing(p=0.7)],
        [RandomErasing(p=0.7), RandomErasing(p=0.7), RandomErasing(p=0.7, value="random"), MixUp(num_classes=4)],
    ],
)
def test_one_pass_over_the_batch_gives_the_batches_of_the_cpu(
    image_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch, dtype: str, steps: list[Any]
) -> None:
    """The kernel's part is its torch twin here; the draws, the order of the steps and the labels are the loader's."""
    if dtype == "uint8":
        black = RandomErasing(p=0.7)
        steps = [step for step in steps if isinstance(step, CutMix) or step == black]
    root = image_folder(classes=4, per_class=5)
    transform = Compose([imagenet_train(32, normalize=dtype != "uint8"), *steps])
    on_cpu = epoch(root, transform, dtype=dtype)
    fake_gpu.install(monkeypatch)
    monkeypatch.setattr("headrace.loading.batches.cuda_transfer.runs_triton", lambda device: True)
    assert are_equal(epoch(root, transform, dtype=dtype, device="cuda", decode="split"), on_cpu)


def test_files_that_the_decoder_leaves_come_from_the_cpu(image_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    root = image_folder(classes=4, per_class=8)
    on_cpu = epoch(root, TRANSFORMS["train"])
    fake_gpu.install(monkeypatch, trouble=lambda files: set(range(0, len(files), 3)))
    assert are_equal(epoch(root, TRANSFORMS["train"], device="cuda", decode="gpu"), on_cpu)


def test_a_file_that_makes_the_decoder_raise_costs_only_itself(
    image_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = image_folder(classes=2, per_class=8)
    on_cpu = epoch(root, TRANSFORMS["train"])
    poison = sorted(root.rglob("*.jpg"))[5].read_bytes()

    def trouble(files: Sequence[bytes]) -> set[int]:
        if poison in files:
            raise RuntimeError("CUDA error: 3")
        return set()

    made = fake_gpu.install(monkeypatch, trouble=trouble)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert are_equal(epoch(root, TRANSFORMS["train"], device="cuda", decode="gpu"), on_cpu)
    assert sum(made[0].calls) < 60


def test_a_driver_that_refuses_a_launch_in_mid_epoch_leaves_the_batches_to_the_cpu(
    image_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = image_folder(classes=4, per_class=16)
    on_cpu = epoch(root, TRANSFORMS["train"])

    def trouble(files: Sequence[bytes]) -> set[int]:
        raise HeadraceError(
            "the CUDA driver's cuLaunchKernel failed: CUDA_ERROR_LAUNCH_FAILED"
        )  # no RuntimeError, as torch's are

    fake_gpu.install(monkeypatch, trouble=trouble)
    monkeypatch.setattr("headrace.loading.feeding.gpu_decode.MOST_CALLS", 4)
    with pytest.warns(RuntimeWarning, match="CUDA_ERROR_LAUNCH_FAILED") as caught:
        found = epoch(root, TRANSFORMS["train"], device="cuda", decode="gpu")
    assert are_equal(found, on_cpu)
    assert len([one for one in caught if "cuLaunchKernel" in str(one.message)]) == 1


def test_out_of_memory_is_said_once_and_the_cpu_decodes(image_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    root = image_folder(classes=4, per_class=16)
    on_cpu = epoch(root, TRANSFORMS["train"])

    made = fake_gpu.install(monkeypatch, trouble=fake_gpu.fill_memory)
    loader = headrace.Loader(root, 8, TRANSFORMS["train"], seed=3, threads=2, drop_last=False, device="cuda", decode="gpu")
    with loader, pytest.warns(RuntimeWarning, match="out of GPU memory") as caught:
        found = [[part.clone() for part in batch] for batch in loader]
        words = loader.explain()
    assert are_equal(found, on_cpu)
    assert len([one for one in caught if "GPU memory" in str(one.message)]) == 1
    assert "the GPU failed in" in words
    assert len(made[0].calls) < len(on_cpu), "failures pause GPU decoding"


def test_out_of_memory_while_augmenting_is_said_once_and_the_cpu_makes_the_batches(
    image_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = image_folder(classes=4, per_class=16)
    on_cpu = epoch(root, TRANSFORMS["RandAugment"])

    fake_gpu.install(monkeypatch)
    monkeypatch.setattr("headrace.loading.feeding.gpu_decode.augment", fake_gpu.fill_memory)
    with pytest.warns(RuntimeWarning, match="out of GPU memory") as caught:
        assert are_equal(epoch(root, TRANSFORMS["RandAugment"], device="cuda", decode="gpu"), on_cpu)
    assert len([one for one in caught if "GPU memory" in str(one.message)]) == 1


def test_out_of_memory_beside_a_file_that_is_left_leaves_the_batch_to_the_cpu(
    image_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The decoded images of a batch are selected, which takes memory too."""
    root = image_folder(classes=2, per_class=8)
    on_cpu = epoch(root, TRANSFORMS["train"])
    fake_gpu.install(monkeypatch, trouble=lambda files: {0})
    fake_gpu.fill_memory_for_selections(monkeypatch)
    with pytest.warns(RuntimeWarning) as caught:
        assert are_equal(epoch(root, TRANSFORMS["train"], device="cuda", decode="gpu"), on_cpu)
    assert [str(one.message) for one in caught] == ["the GPU could not make a batch (out of GPU memory): the CPU does"]


def test_out_of_memory_is_not_counted_as_files_that_the_decoder_left(
    image_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = image_folder(classes=4, per_class=16)
    monkeypatch.setattr("headrace.loading.feeding.gpu_decode.ENOUGH_FILES", 8)

    fake_gpu.install(monkeypatch, trouble=fake_gpu.fill_memory)
    with headrace.Loader(root, 8, TRANSFORMS["train"], device="cuda", decode="gpu") as loader:
        with pytest.warns(RuntimeWarning) as caught:
            assert len(list(loader)) == 8
        assert "decoded on the GPU by headrace's CUDA decoder" in loader.explain()
    words = "headrace's CUDA decoder could not decode a batch (out of GPU memory): the CPU does"
    assert [str(one.message) for one in caught] == [words]


@pytest.mark.parametrize("decode", ["gpu", "split", "auto"])
def test_other_pixels_that_are_found_late_leave_decoding_to_the_cpu_too(
    image_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch, decode: str
) -> None:
    """The GPU was out of memory when its operations were to be tried first."""
    root = image_folder(classes=4, per_class=16)
    on_cpu = epoch(root, TRANSFORMS["colours"])
    reason = "hue on this GPU gives other pixels than the CPU"
    answers = [None, CheckedOperations(OPERATIONS, refusal=reason)]
    made = fake_gpu.install(monkeypatch)
    monkeypatch.setattr("headrace.loading.feeding.gpu_decode._tried", lambda device: answers.pop(0))
    options: dict[str, Any] = {"seed": 3, "threads": 2, "drop_last": False, "device": "cuda", "decode": decode}
    with headrace.Loader(root, 8, TRANSFORMS["colours"], **options) as loader, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        placement = loader._views._gpu.placement
        placement.share = placement.share or 1.0
        found = [[part.clone() for part in batch] for batch in loader]
        words = loader.explain()
    assert are_equal(found, on_cpu) and not made[0].calls
    assert placement.on_gpu(8) == 0 and placement.failures == 0
    said = [] if decode == "auto" else [f"decode={decode!r}: the CPU decodes from now on, because {reason}"]
    assert [str(one.message) for one in caught if one.category is RuntimeWarning] == said
    assert f"decoded on the CPU (decode={decode!r}): {reason}" in words


def test_explain_says_who_augments(image_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_gpu.install(monkeypatch)
    root = image_folder()
    for decode in ("gpu", "split", "auto"):
        with headrace.Loader(root, 4, TRANSFORMS["SimCLR"], device="cuda", decode=decode) as loader:
            words = loader.explain()
        assert "what the GPU decodes it also augments, in torch, with the CPU's pixels: RandomApply([ColorJitter(" in words
        assert "GaussianBlur(5)" in words.split("CPU's pixels: ")[1]
    for name, decode in (("train", "gpu"), ("SimCLR", "cpu")):
        with headrace.Loader(root, 4, TRANSFORMS[name], device="cuda", decode=decode) as loader:
            assert "also augments" not in loader.explain()


def test_a_gpu_with_other_pixels_does_not_augment(image_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    root = image_folder()
    on_cpu = epoch(root, TRANSFORMS["colours"])
    made = fake_gpu.install(monkeypatch)
    reason = "hue on this GPU gives other pixels than the CPU"
    refused = CheckedOperations(OPERATIONS, refusal=reason)
    monkeypatch.setattr("headrace.loading.feeding.gpu_decode.checked_operations", lambda device: refused)
    monkeypatch.setattr("headrace.loading.feeding.gpu_decode.on_gpu", lambda device: True)
    with pytest.warns(RuntimeWarning, match=f"decode='gpu': the CPU decodes, because {reason}") as caught:
        assert are_equal(epoch(root, TRANSFORMS["colours"], device="cuda", decode="gpu"), on_cpu)
    assert len(caught) == 1 and not made[0].calls
    with headrace.Loader(root, 4, TRANSFORMS["colours"], device="cuda") as loader:
        assert reason in loader.explain()


def test_a_damaged_file_is_the_cpus_to_judge(image_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    root = image_folder(classes=2, per_class=8)
    victim = sorted(root.rglob("*.jpg"))[3]
    victim.write_bytes(victim.read_bytes()[:-200])
    skipping = epoch(root, TRANSFORMS["train"], on_error="skip")
    fake_gpu.install(monkeypatch)
    with pytest.raises(DecodeError, match=victim.stem):
        epoch(root, TRANSFORMS["train"], device="cuda", decode="gpu")
    assert are_equal(epoch(root, TRANSFORMS["train"], device="cuda", decode="gpu", on_error="skip"), skipping)


def test_other_formats_are_decoded_by_the_cpu(image_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import Image

    root = image_folder(classes=2, per_class=8)
    for number, path in enumerate(sorted(root.rglob("*.jpg"))[:6]):
        picture = Image.open(path).convert("RGB")
        picture.save(path.with_suffix(".png")) if number % 2 else picture.save(path, progressive=True)
        if number % 2:
            path.unlink()
    on_cpu = epoch(root, TRANSFORMS["train"])
    fake_gpu.install(monkeypatch)
    assert are_equal(epoch(root, TRANSFORMS["train"], device="cuda", decode="gpu"), on_cpu)


def test_a_decoder_that_leaves_most_files_is_given_up(image_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    root = image_folder(classes=2, per_class=8)
    monkeypatch.setattr("headrace.loading.feeding.gpu_decode.ENOUGH_FILES", 8)
    made = fake_gpu.install(monkeypatch, trouble=lambda files: set(range(len(files))))
    loader = headrace.Loader(root, 4, TRANSFORMS["train"], device="cuda", decode="gpu")
    with loader, pytest.warns(RuntimeWarning, match="decoded only 0 of"):
        for _ in range(3):
            assert len(list(loader)) == 4
        assert "decoded on the CPU" in loader.explain()
    assert sum(made[0].calls) < 48


def test_resuming_gives_the_remaining_batches(image_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    root = image_folder(classes=4, per_class=8)
    fake_gpu.install(monkeypatch)
    options = {"seed": 3, "threads": 2, "device": "cuda", "decode": "split"}
    with headrace.Loader(root, 8, TRANSFORMS["train"], **options) as loader:
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        rest = [images.clone() for images, _ in batches]
    with headrace.Loader(root, 8, TRANSFORMS["train"], **options | {"decode": "cpu"}) as again:
        again.load_state_dict(state)
        assert all(torch.equal(a, b) for a, (b, _) in zip(rest, again, strict=True))


def test_another_filter_is_the_cpus_and_one_line_says_so(image_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    root, transform = image_folder(), Compose([Resize(64, interpolation="bicubic"), CenterCrop(48)])
    on_cpu = epoch(root, transform)
    made = fake_gpu.install(monkeypatch)
    with pytest.warns(RuntimeWarning, match="it resizes by bilinear, not by bicubic") as caught:
        assert are_equal(epoch(root, transform, device="cuda", decode="gpu"), on_cpu)
    assert len(caught) == 1 and not made


@pytest.mark.parametrize(
    "reason",
    [
        "the CUDA driver cannot be loaded: libcuda.so.1 is not found",
        "NVRTC, CUDA's run-time compiler, cannot be loaded: gone",
        "the CUDA driver's cuModuleLoadData failed: CUDA_ERROR_OUT_OF_MEMORY",
        "there is no device cuda:1: the number of CUDA devices that torch sees is 1",
        "the CUDA decoder's first batch failed: CUDA error: an illegal memory access was encountered",
    ],
)
def test_each_reason_against_the_decoder_is_one_line_with_the_same_batches(
    image_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    root = image_folder()
    on_cpu = epoch(root, TRANSFORMS["RandAugment"])
    fake_gpu.install(monkeypatch)

    def refuse(device: Any) -> Any:
        raise HeadraceError(reason)

    monkeypatch.setattr(gpu_decode, "available", decoder.available)
    monkeypatch.setattr(batch_decoder, "_launcher", refuse)
    with pytest.warns(RuntimeWarning) as caught:
        assert are_equal(epoch(root, TRANSFORMS["RandAugment"], device="cuda", decode="gpu"), on_cpu)
    [words] = [str(one.message) for one in caught]
    assert words == f"decode='gpu': the CPU decodes, because the GPU decoder cannot be used here ({reason})"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with headrace.Loader(root, 8, TRANSFORMS["RandAugment"], device="cuda") as loader:
            assert reason in loader.explain()


def test_of_several_gpus_the_current_one_is_used_also_by_the_decoding_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert [str(cuda_transfer.cuda_device(name)) for name in ("cuda", "cuda:0", "cuda:1")] == ["cuda:1", "cuda:0", "cuda:1"]
    with pytest.raises(UsageError, match="'cuda:2': torch sees 2 CUDA devices, numbered from 0"):
        cuda_transfer.cuda_device("cuda:2")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(UsageError, match="'cuda:1': torch sees 1 CUDA device, numbered from 0") as caught:
        cuda_transfer.cuda_device("cuda:1")
    assert "a MIG slice is one device" in str(caught.value.hint)


def test_the_decoder_is_asked_for_on_the_device_of_the_batches(
    image_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def refuse(device: str) -> str:
        asked.append(device)
        return "not here"

    root = image_folder()
    fake_gpu.install(monkeypatch)
    monkeypatch.setattr(gpu_decode, "available", refuse)
    with headrace.Loader(root, 4, TRANSFORMS["RandAugment"], device="cuda"):
        pass
    assert asked == [str(cuda_transfer.cuda_device("cuda"))], "the device of the transfer, which has an index"


def test_a_gpu_is_needed_for_gpu_decoding(image_folder: MakeFolder) -> None:
    root = image_folder()
    for decode in ("gpu", "split"):
        with pytest.raises(UsageError, match="needs a GPU") as caught:
            headrace.Loader(root, 4, TRANSFORMS["train"], decode=decode)
        assert "device='cuda'" in str(caught.value.hint)
    with pytest.raises(UsageError, match="decode must be"):
        headrace.Loader(root, 4, TRANSFORMS["train"], decode="hardware")
    for decode in ("auto", "cpu"):
        assert len(epoch(root, TRANSFORMS["train"], decode=decode)) == 2


@pytest.mark.parametrize(
    ("transform", "reason"),
    [
        (Compose([imagenet_train(48), PillowBlur(2.0)]), "PillowBlur is done by the CPU threads"),
        (Compose([Resize(64), CenterCrop(48), RandomRotation(9)]), "fuse='off' the GPU does both"),
        (Compose([imagenet_train(48), lambda image: image]), "Python functions"),
    ],
)
def test_what_a_gpu_decoder_cannot_do_is_refused_in_words(
    image_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch, transform: Any, reason: str
) -> None:
    root = image_folder()
    fake_gpu.install(monkeypatch)
    with pytest.raises(UsageError, match=reason):
        headrace.Loader(root, 4, transform, device="cuda", decode="gpu")
    with headrace.Loader(root, 4, transform, device="cuda") as loader:
        assert reason in loader.explain()
        assert len(list(loader)) == 3


def test_no_thread_survives_the_loader(image_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    fake_gpu.install(monkeypatch)
    loader = headrace.Loader(image_folder(), 4, TRANSFORMS["train"], device="cuda", decode="gpu")
    next(iter(loader))
    loader.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("headrace-gpu-decode")]
    assert len(list(loader)) == 3
    loader.close()
