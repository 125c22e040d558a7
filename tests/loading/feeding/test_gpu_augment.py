"""The GPU augments what the CPU decoded: the batches are the CPU's, whatever is decided or fails. The GPU is the CPU here."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fake_gpu
import headrace
import pytest
from headrace.errors import DecodeError
from headrace.gpu.augmentation.augment import OPERATIONS
from headrace.gpu.augmentation.augment_check import CheckedOperations
from headrace.gpu.augmentation.cropping import Cropping, cropping
from headrace.transforms import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    CenterCrop,
    ColorJitter,
    Compose,
    CutMix,
    GaussianBlur,
    Normalize,
    Pad,
    PillowBlur,
    RandAugment,
    RandomApply,
    RandomCrop,
    RandomGrayscale,
    RandomHorizontalFlip,
    RandomInvert,
    RandomRotation,
    RandomVerticalFlip,
    Resize,
    TrivialAugmentWide,
    imagenet_train,
)
from headrace.transforms.compile import compile_pipeline

torch = pytest.importorskip("torch")
MakeFolder = Callable[..., Path]

SIMCLR = Compose(
    [imagenet_train(48), RandomApply([ColorJitter(0.8, 0.8, 0.8, 0.2)], p=0.8), RandomGrayscale(0.2), GaussianBlur(5)]
)
TRANSFORMS: dict[str, Any] = {
    "colours, then flips": Compose(
        [imagenet_train(48), ColorJitter(0.4, 0.4, 0.4, 0.1), RandomHorizontalFlip(), RandomVerticalFlip()]
    ),
    "flips, rotation, flips": Compose(
        [imagenet_train(48), RandomVerticalFlip(), RandomRotation(20, interpolation="bilinear"), RandomHorizontalFlip()]
    ),
    "flips after a rotation and colours": Compose(
        [imagenet_train(48), RandomRotation(9), RandomInvert(), RandomVerticalFlip()]
    ),
    "evaluate": Compose([Resize(64), CenterCrop(48), ColorJitter(0.4), RandomHorizontalFlip()]),
    "SimCLR": SIMCLR,
    "RandAugment": Compose([imagenet_train(48), RandAugment()]),
    "strong RandAugment": Compose([imagenet_train(48), RandAugment(4, 30, interpolation="bilinear", fill=(1, 2, 3))]),
    "TrivialAugmentWide": Compose([imagenet_train(48), TrivialAugmentWide(interpolation="bilinear")]),
    "mixed": Compose([imagenet_train(48), RandAugment(), Normalize(IMAGENET_MEAN, IMAGENET_STD), CutMix(num_classes=4)]),
}


class Epoch:
    """The batches of one pass, of which the GPU augments a share of what the CPU decodes."""

    def __init__(self, root: Path, transform: Any, augmented: float | None = None, **options: Any) -> None:
        with headrace.Loader(root, 8, transform, seed=3, threads=2, drop_last=False, **options) as loader:
            gpu: Any = loader._views._gpu
            if augmented is not None:
                gpu.placement.augmented = augmented
            self.batches = [[part.clone() for part in batch] for batch in loader]
            self.words = loader.explain()
            self.placement = None if gpu is None else gpu.placement

    def equals(self, other: Epoch) -> bool:
        return len(self.batches) == len(other.batches) and all(
            torch.equal(a, b)
            for one, another in zip(self.batches, other.batches, strict=True)
            for a, b in zip(one, another, strict=True)
        )


@pytest.mark.matrix
@pytest.mark.parametrize("fuse", ["geometry", "off"])
@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("augmented", [0.3, 1.0])
def test_batches_are_those_of_the_cpu(
    image_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch, name: str, fuse: str, augmented: float
) -> None:
    root, transform = image_folder(classes=4, per_class=11), TRANSFORMS[name]
    options = {"fuse": fuse, "dtype": "float32" if name == "mixed" else "uint8"}
    on_cpu = Epoch(root, transform, **options)
    fake_gpu.install(monkeypatch)
    monkeypatch.setattr("headrace.loading.batches.cuda_transfer.runs_triton", lambda device: True)
    work = counted(monkeypatch)
    assert Epoch(root, transform, augmented, device="cuda", decode="cpu", **options).equals(on_cpu)
    assert work[0] == 44 if augmented == 1 else 0 < work[0] < 44


def counted(patch: pytest.MonkeyPatch) -> list[int]:
    """Return a list whose only number counts the images that the GPU augments."""
    from headrace.loading.feeding import gpu_decode

    real, count = gpu_decode.augment, [0]

    def augment(images: Any, passes: Any, operations: Any) -> Any:
        count[0] += len(images)
        return real(images, passes, operations)

    patch.setattr(gpu_decode, "augment", augment)
    return count


def test_the_placement_is_told_the_rates_of_both_sides(image_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_gpu.install(monkeypatch)
    found = Epoch(image_folder(classes=4, per_class=20), SIMCLR, 1.0, device="cuda", decode="cpu")
    rates = found.placement.rates()
    assert rates is not None and {"cpu", "compute", "augmenter"} <= rates.measured
    assert rates.augmenter_img_s > 0 and "GPU augmentation" in found.words


def test_decoding_on_the_gpu_and_augmenting_what_the_cpu_decodes_go_together(
    image_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = image_folder(classes=4, per_class=11)
    on_cpu = Epoch(root, SIMCLR)
    made = fake_gpu.install(monkeypatch, trouble=lambda files: {0})
    work = counted(monkeypatch)
    assert Epoch(root, SIMCLR, 0.5, device="cuda", decode="split").equals(on_cpu)
    decoded = sum(made[0].calls)
    assert 0 < decoded < 44 and work[0] > decoded - len(made[0].calls), "both parts are augmented there"


def test_packed_data_is_cropped_by_the_cpu_too(
    image_folder: MakeFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    headrace.pack(image_folder(classes=2, per_class=10), tmp_path / "pack")
    on_cpu = Epoch(tmp_path / "pack", SIMCLR)
    fake_gpu.install(monkeypatch)
    assert Epoch(tmp_path / "pack", SIMCLR, 1.0, device="cuda", decode="cpu").equals(on_cpu)


def test_a_damaged_file_is_the_cpus_to_judge(image_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    root = image_folder(classes=2, per_class=8)
    victim = sorted(root.rglob("*.jpg"))[3]
    victim.write_bytes(victim.read_bytes()[:-200])
    skipping = Epoch(root, SIMCLR, on_error="skip")
    fake_gpu.install(monkeypatch)
    with pytest.raises(DecodeError, match=victim.stem):
        Epoch(root, SIMCLR, 1.0, device="cuda", decode="cpu")
    assert Epoch(root, SIMCLR, 1.0, device="cuda", decode="cpu", on_error="skip").equals(skipping)


def test_out_of_memory_is_said_once_and_the_cpu_augments(image_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    root = image_folder(classes=4, per_class=16)
    on_cpu = Epoch(root, SIMCLR)

    fake_gpu.install(monkeypatch)
    monkeypatch.setattr("headrace.loading.feeding.gpu_decode.augment", fake_gpu.fill_memory)
    with pytest.warns(RuntimeWarning) as caught:
        found = Epoch(root, SIMCLR, 1.0, device="cuda", decode="cpu")
    assert found.equals(on_cpu)
    assert [str(one.message) for one in caught] == ["the GPU could not augment a batch (out of GPU memory): the CPU does"]
    assert "the GPU failed in" in found.words


def test_out_of_memory_beside_a_damaged_file_leaves_the_batch_to_the_cpu(
    image_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sound images of a batch are selected, which takes memory too."""
    root = image_folder(classes=2, per_class=8)
    victim = sorted(root.rglob("*.jpg"))[3]
    victim.write_bytes(victim.read_bytes()[:-200])
    skipping = Epoch(root, SIMCLR, on_error="skip")
    fake_gpu.install(monkeypatch)
    fake_gpu.fill_memory_for_selections(monkeypatch)
    with pytest.warns(RuntimeWarning) as caught:
        found = Epoch(root, SIMCLR, 1.0, device="cuda", decode="cpu", on_error="skip")
    assert found.equals(skipping) and found.placement.failures == 1
    assert [str(one.message) for one in caught] == ["the GPU could not augment a batch (out of GPU memory): the CPU does"]


def test_a_batch_whose_decoding_and_augmenting_fail_is_one_failure(
    image_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = image_folder(classes=2, per_class=4)
    on_cpu = Epoch(root, SIMCLR)

    made = fake_gpu.install(monkeypatch, trouble=fake_gpu.fill_memory)
    monkeypatch.setattr("headrace.loading.feeding.gpu_decode.augment", fake_gpu.fill_memory)
    with pytest.warns(RuntimeWarning) as caught:
        found = Epoch(root, SIMCLR, 1.0, device="cuda", decode="split")
    assert found.equals(on_cpu) and made[0].calls == [4]
    words = "headrace's CUDA decoder could not decode a batch (out of GPU memory): the CPU does"
    assert [str(one.message) for one in caught] == [words]
    assert found.placement.failures == 1 and "the GPU failed in 1 batch," in found.words


def test_the_decoder_is_not_blamed_for_augmentation_that_fails(
    image_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = image_folder(classes=2, per_class=4)
    on_cpu = Epoch(root, SIMCLR)

    fake_gpu.install(monkeypatch)
    monkeypatch.setattr("headrace.loading.feeding.gpu_decode.augment", fake_gpu.fill_memory)
    for decode in ("split", "gpu"):
        with pytest.warns(RuntimeWarning) as caught:
            assert Epoch(root, SIMCLR, 1.0, device="cuda", decode=decode).equals(on_cpu)
        words = "the GPU could not augment a batch (out of GPU memory): the CPU does"
        assert [str(one.message) for one in caught] == [words]


def test_out_of_memory_while_operations_are_tried_is_tried_again(
    image_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = image_folder(classes=4, per_class=16)
    on_cpu = Epoch(root, SIMCLR)
    answers = [None, CheckedOperations(OPERATIONS)]
    fake_gpu.install(monkeypatch)
    monkeypatch.setattr("headrace.loading.feeding.gpu_decode._tried", lambda device: answers.pop(0))
    work = counted(monkeypatch)
    with pytest.warns(RuntimeWarning, match="out of GPU memory") as caught:
        assert Epoch(root, SIMCLR, 1.0, device="cuda", decode="cpu").equals(on_cpu)
    assert len(caught) == 1 and not answers and work[0] > 0


def test_a_gpu_with_other_pixels_leaves_augmenting_to_the_cpu(
    image_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = image_folder()
    on_cpu = Epoch(root, SIMCLR)
    fake_gpu.install(monkeypatch)
    reason = "hue on this GPU gives other pixels than the CPU"
    monkeypatch.setattr(
        "headrace.loading.feeding.gpu_decode.CheckedOperations", lambda *_: CheckedOperations(OPERATIONS, refusal=reason)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = Epoch(root, SIMCLR, 1.0, device="cuda", decode="cpu")
    assert found.equals(on_cpu) and found.placement.augmented == 0
    assert f"what the CPU decodes it also augments: {reason}" in found.words


def test_explain_says_who_augments(image_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_gpu.install(monkeypatch)
    root = image_folder()
    for augmented, words in ((0.0, "augmented by the CPU"), (0.25, "augmented 25 % by the GPU"), (1.0, "augmented by the GPU")):
        found = Epoch(root, SIMCLR, augmented, device="cuda", decode="cpu").words
        assert f"what the CPU decodes is {words}, with the same pixels" in found
        assert "decoded on the CPU (decode='cpu'): as asked" in found and "GaussianBlur(5)" in found
    assert "  the GPU can augment in torch: RandomApply([ColorJitter(" in found
    with headrace.Loader(root, 8, SIMCLR, device="cuda", decode="cpu") as loader:
        assert "  the GPU can augment: RandomApply([ColorJitter(" in loader.explain(), "nothing was tried yet"
    refused = Epoch(root, Compose([imagenet_train(48), PillowBlur(2.0)]), device="cuda", decode="cpu").words
    assert "what the CPU decodes it also augments: PillowBlur is done by the CPU threads" in refused
    plain = Epoch(root, imagenet_train(48), device="cuda", decode="cpu").words
    assert "what the CPU decodes" not in plain and "augmentation" not in plain


def test_resuming_gives_the_remaining_batches(image_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    root = image_folder(classes=4, per_class=8)
    fake_gpu.install(monkeypatch)
    options = {"seed": 3, "threads": 2, "device": "cuda", "decode": "cpu"}
    with headrace.Loader(root, 8, SIMCLR, **options) as loader:
        loader._views._gpu.placement.augmented = 1.0
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        rest = [images.clone() for images, _ in batches]
    with headrace.Loader(root, 8, SIMCLR, **options) as again:
        again.load_state_dict(state)
        assert all(torch.equal(a, b) for a, (b, _) in zip(rest, again, strict=True))


def test_a_pass_that_is_left_early_leaves_nothing_behind(image_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    fake_gpu.install(monkeypatch)
    loader = headrace.Loader(image_folder(classes=4, per_class=16), 4, SIMCLR, device="cuda", decode="cpu")
    loader._views._gpu.placement.augmented = 1.0
    for _ in range(3):
        next(iter(loader))
    loader.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("headrace-gpu-decode")]
    assert len(list(loader)) == 16
    loader.close()


@pytest.mark.parametrize(
    ("transform", "fuse", "reason"),
    [
        (imagenet_train(48), "geometry", ""),
        (Compose([imagenet_train(48), PillowBlur(2.0)]), "geometry", "PillowBlur is done by the CPU threads"),
        (Compose([Resize(64), CenterCrop(48), RandomRotation(9)]), "geometry", "with fuse='off' the GPU does both"),
        (Compose([RandomCrop(48), RandomRotation(9)]), "geometry", "with fuse='off' the GPU does both"),
        (Compose([RandomApply([RandomCrop(48)]), CenterCrop(48), RandomInvert()]), "off", "inside RandomApply"),
        (Compose([RandomRotation(9), Resize((48, 48))]), "off", "a crop or resize after a rotation"),
        (Compose([imagenet_train(48), RandAugment(), lambda image: image]), "off", "Python functions"),
        (Compose([imagenet_train(44), RandAugment(), Pad(2)]), "off", "Pad is done by the CPU threads"),
        (Compose([Resize(30), CenterCrop(48), RandomInvert(1.0)]), "off", "a padded crop"),
        (Compose([imagenet_train(8), GaussianBlur(23)]), "off", "a blur that is larger than the image"),
    ],
)
def test_what_the_cpu_does_itself_has_a_reason(transform: Any, fuse: Any, reason: str) -> None:
    found = cropping(compile_pipeline(transform, fuse=fuse))
    assert found == "" if reason == "" else isinstance(found, str) and reason in found


def test_what_is_left_does_not_depend_on_the_size_of_the_image() -> None:
    for name, transform in TRANSFORMS.items():
        pipeline = compile_pipeline(transform, dtype="float32" if name == "mixed" else "uint8")
        found = cropping(pipeline)
        assert isinstance(found, Cropping), name
        for draw in range(20):
            own = found.passes(3, 0, draw)
            for size in ((500, 375), (90, 300)):
                (*_, flip_x, flip_y), passes = pipeline.program.split(*size, 3, 0, draw)
                *_, crop_x, crop_y = found.program.place(*size, 3, 0, draw)
                flips = [("flip_x", [])] * (flip_x != crop_x) + [("flip_y", [])] * (flip_y != crop_y)
                assert own == [*flips, *passes], name
