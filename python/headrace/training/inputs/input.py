"""The input of a run: loaders for training and evaluation, with their transforms and image sizes."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.datasets.records.dataset import Dataset
from headrace.loading.feeding.options import OnError
from headrace.loading.loader import Loader
from headrace.system.hardware import machine
from headrace.training.distributed.devices import Device
from headrace.training.distributed.ranks import Ranks
from headrace.training.learning.learner import autocast_dtype
from headrace.training.models import factory
from headrace.training.settings.optimization import OptimizationOptions
from headrace.training.settings.options import Options
from headrace.transforms.base import Transform
from headrace.transforms.batch import RandomErasing
from headrace.transforms.compile import Dtype
from headrace.transforms.composition import IMAGENET_MEAN, IMAGENET_STD, Compose
from headrace.transforms.geometry import CenterCrop, RandomCrop, RandomHorizontalFlip, RandomResizedCrop, Resize
from headrace.transforms.policies import AutoAugment, RandAugment, TrivialAugmentWide
from headrace.transforms.values import Normalize

__all__ = ["TrainingInput", "evaluation_loader", "validation_loader"]

EVALUATION_CROP = 0.875  # side of the central crop as a share of the resized short side: 224 of 256, as usual for ImageNet
SMALL_CROP_PADDING = 4  # CIFAR's usual augmentation: pad by 4, crop back, flip (He et al. 2015, section 4.2)


@dataclass(frozen=True, slots=True)
class TrainingInput:
    """Opens training loaders. Those of different epochs differ only in image size (progressive resizing)."""

    options: Options
    data: Dataset
    device: Device
    ranks: Ranks

    def size(self, epoch: int) -> int:
        """Return the image size of `epoch` in pixels. It depends on --epochs, also in a run that --steps ends earlier."""
        return self.options.optimization.train_size(self.options.image_size, epoch / max(1, self.options.epochs))

    def loader(self, epoch: int) -> Loader:
        """Open a loader at the beginning of `epoch`."""
        small = self.options.image_size <= factory.SMALL_IMAGE
        transforms = _training_transforms(self.options.optimization, self.size(epoch), small=small)
        loader = _open_loader(self.options, self.data, self.device, self.ranks, transforms, training=True)
        loader.set_epoch(epoch)
        return loader


def validation_loader(options: Options, data: Dataset, device: Device, ranks: Ranks) -> Loader:
    """Open the loader for evaluation during training: every image once, in order, each rank its part."""
    transforms = _evaluation_transforms(
        options.optimization.test_size(options.image_size), small=options.image_size <= factory.SMALL_IMAGE
    )
    return _open_loader(options, data, device, ranks, transforms, training=False)


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
    """Open the loader to evaluate trained weights: every image once, in order, float32, with the transforms of validation.

    `small`: the model was trained on images of up to SMALL_IMAGE pixels, which are resized without a margin to crop.
    """
    pipeline = _normalized(_evaluation_transforms(image_size, small=small))
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


def _open_loader(
    options: Options, data: Dataset, device: Device, ranks: Ranks, transforms: list[Transform], *, training: bool
) -> Loader:
    """Open a loader. A GPU normalises; a simulated GPU gets uint8, which is what crosses the bus to a real one."""
    dtype: Dtype = "uint8" if device.simulated else "float32"
    if device.kind == "cuda" and (half := autocast_dtype(options.precision, device)) is not None:
        dtype = "bfloat16" if str(half) == "torch.bfloat16" else "float16"
    pipeline = Compose(transforms) if device.simulated else _normalized(transforms)
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
        decode=options.decode,
        device=device.torch_name,
        dtype=dtype,
        on_error=options.on_error,
        parts="agree" if (options.sharded_data if training else options.sharded_val) else None,
    )


def _normalized(transforms: list[Transform]) -> Compose:
    return Compose([*transforms, Normalize(IMAGENET_MEAN, IMAGENET_STD)])


def _training_transforms(optimization: OptimizationOptions, size: int, *, small: bool) -> list[Transform]:
    crop: list[Transform] = [RandomResizedCrop(size), RandomHorizontalFlip()]
    if small:
        padded = RandomCrop(size, padding=SMALL_CROP_PADDING)
        crop = [Resize(size), padded, RandomHorizontalFlip()]
    policies: dict[str, list[Transform]] = {
        "crop": [],
        "randaugment": [RandAugment()],
        "trivialaugment": [TrivialAugmentWide()],
        "autoaugment": [AutoAugment("cifar10" if small else "imagenet")],
    }
    return crop + policies[optimization.augment]


def _evaluation_transforms(size: int, *, small: bool) -> list[Transform]:
    if small:
        return [Resize(size), CenterCrop(size)]
    return [Resize(round(size / EVALUATION_CROP)), CenterCrop(size)]
