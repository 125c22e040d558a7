"""The batches of a run: which images, how they are cut and changed, at which size; and the size of the next epoch."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.datasets.records import Dataset
from headrace.loading.loader import Loader
from headrace.loading.options import OnError
from headrace.system import machine
from headrace.training.devices import Device
from headrace.training.distributed.ranks import Ranks
from headrace.training.learner import autocast_dtype
from headrace.training.models import factory
from headrace.training.optimization import OptimizationOptions
from headrace.training.options import Options
from headrace.transforms.base import Transform
from headrace.transforms.batch import RandomErasing
from headrace.transforms.compile import Dtype
from headrace.transforms.composition import Compose
from headrace.transforms.geometry import CenterCrop, RandomCrop, RandomHorizontalFlip, RandomResizedCrop, Resize
from headrace.transforms.policies import AutoAugment, RandAugment, TrivialAugmentWide
from headrace.transforms.presets import IMAGENET_MEAN, IMAGENET_STD
from headrace.transforms.values import Normalize

__all__ = ["TrainingInput", "evaluation_loader", "validation_loader"]

SMALL_CROP_PADDING = 4  # CIFAR's usual augmentation: pad by 4, crop back, flip (He et al. 2015, section 4.2)


@dataclass(frozen=True, slots=True)
class TrainingInput:
    """Makes the training loader of any epoch; they differ in image size only (progressive resizing)."""

    options: Options
    data: Dataset
    device: Device
    ranks: Ranks

    def size(self, epoch: int) -> int:
        """Pixels of the images of `epoch`; a run of `--steps` has the sizes of its epochs too."""
        return self.options.optimization.train_size(self.options.image_size, epoch / max(1, self.options.epochs))

    def loader(self, epoch: int) -> Loader:
        """A loader at the beginning of `epoch`."""
        small = self.options.image_size <= factory.SMALL_IMAGE
        steps = _augmentation(self.options.optimization, self.size(epoch), small=small)
        loader = _loader(self.options, self.data, self.device, self.ranks, steps, training=True)
        loader.set_epoch(epoch)
        return loader


def validation_loader(options: Options, data: Dataset, device: Device, ranks: Ranks) -> Loader:
    """Every image once, in order, each rank its share."""
    steps = _undisturbed(options.optimization.test_size(options.image_size), small=options.image_size <= factory.SMALL_IMAGE)
    return _loader(options, data, device, ranks, steps, training=False)


def evaluation_loader(
    data: Dataset,
    image_size: int,
    *,
    small: bool,
    batch_size: int,
    device: Device,
    threads: int | None = None,
    on_error: OnError = "raise",
) -> Loader:
    """The batches on which a trained model is judged: in order, each once, float32, as validation sees them.

    `small`: the model was trained on images of up to SMALL_IMAGE pixels, which are not cut at the border.
    """
    pipeline = _normalized(_undisturbed(image_size, small=small))
    return Loader(
        data,
        batch_size,
        pipeline,
        shuffle=False,
        drop_last=False,
        threads=threads,
        device=device.torch_name,
        dtype="float32",
        on_error=on_error,
    )


def _loader(options: Options, data: Dataset, device: Device, ranks: Ranks, steps: list[Transform], *, training: bool) -> Loader:
    """Normalised on the GPU where there is one; a simulated GPU gets uint8, as a real one would over the bus."""
    dtype: Dtype = "uint8" if device.simulated else "float32"
    if device.kind == "cuda" and (half := autocast_dtype(options.precision, device)) is not None:
        dtype = "bfloat16" if str(half) == "torch.bfloat16" else "float16"
    pipeline = Compose(steps) if device.simulated else _normalized(steps)
    if training and options.optimization.erase and not device.simulated:
        pipeline = Compose([*pipeline.transforms, RandomErasing(p=options.optimization.erase)])
    return Loader(
        data,
        options.batch_size,
        pipeline,
        seed=options.seed,
        shuffle=training,
        drop_last=training,
        rank=ranks.rank,
        world_size=ranks.world_size,
        threads=options.threads or max(1, round(machine.cores().usable) // ranks.local_world_size),
        prefetch=options.prefetch,
        device=device.torch_name,
        dtype=dtype,
        on_error=options.on_error,
    )


def _normalized(steps: list[Transform]) -> Compose:
    return Compose([*steps, Normalize(IMAGENET_MEAN, IMAGENET_STD)])


def _augmentation(optimization: OptimizationOptions, size: int, *, small: bool) -> list[Transform]:
    crop: list[Transform] = [RandomResizedCrop(size), RandomHorizontalFlip()]
    if small:
        padded = RandomCrop(size, padding=SMALL_CROP_PADDING)
        crop = [Resize(size), padded, RandomHorizontalFlip()]
    more: dict[str, list[Transform]] = {
        "crop": [],
        "randaugment": [RandAugment()],
        "trivialaugment": [TrivialAugmentWide()],
        "autoaugment": [AutoAugment("cifar10" if small else "imagenet")],
    }
    return crop + more[optimization.augment]


def _undisturbed(size: int, *, small: bool) -> list[Transform]:
    if small:
        return [Resize(size), CenterCrop(size)]
    return [Resize(round(size / 0.875)), CenterCrop(size)]
