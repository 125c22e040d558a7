"""The lists of operations of trials, for torchvision on Pillow images and for headrace: the same operations, in the same order.

With `fixed` every random operation has one outcome, so that the pixels of different loaders can be compared.
"""

from __future__ import annotations

from typing import Any

__all__ = ["MEAN", "SIDE", "STD", "headrace_transform", "operations", "torchvision_transform"]

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
SIDE = 224

WORDS = {
    "augmentation-load": "{load} × (RandomHorizontalFlip, RandomVerticalFlip, RandomRotation(5)) on the whole image, then "
    "RandomResizedCrop(224), Normalize",
    "caltech": "Resize((256, 256)), RandomCrop(224), float 0 to 1",
    "imagenet": "RandomResizedCrop(224), RandomHorizontalFlip, Normalize",
    "small": "Resize((36, 36)), RandomCrop(32), RandomHorizontalFlip, Normalize",
}
"""Transform → the operations of a training image, in words. `{load}` is replaced."""


def operations(transform: str, load: int | str) -> str:
    """Return the operations on a training image, in words. load: the augmentation load, a number or a word for it."""
    return WORDS[transform].format(load=load)


def torchvision_transform(transform: str, load: int, *, validation: bool, fixed: bool = False) -> Any:
    """Return the torchvision transform for Pillow images. With `fixed` its result is uint8 (3, H, W), else float32."""
    from torchvision import transforms as T

    return T.Compose([*_geometry(T, transform, load, validation, fixed), *_torch_ending(T, transform, fixed)])


def _torch_ending(T: Any, transform: str, fixed: bool) -> list[Any]:
    if fixed:
        return [T.PILToTensor()]
    return [T.ToTensor()] if transform == "caltech" else [T.ToTensor(), T.Normalize(MEAN, STD)]


def headrace_transform(transform: str, load: int, *, validation: bool, fixed: bool = False) -> Any:
    """Return the same operations as a headrace transform. With `fixed` the result is uint8, else as that of torchvision's."""
    import headrace.transforms as T

    ending = [] if fixed or transform == "caltech" else [T.Normalize(MEAN, STD)]
    return T.Compose([*_geometry(T, transform, load, validation, fixed), *ending])


def _geometry(T: Any, transform: str, load: int, validation: bool, fixed: bool) -> list[Any]:
    """Return the operations on pixels. `T`: torchvision's transforms or headrace's; names and arguments are the same."""
    # No box of this area and shape fits an image that is not square: after ten tries both take the same box in its middle.
    crop = T.RandomResizedCrop(SIDE, scale=(1.0, 1.0), ratio=(1.0, 1.0)) if fixed else T.RandomResizedCrop(SIDE)
    share = 1.0 if fixed else 0.5
    if transform == "augmentation-load":
        angle = (5.0, 5.0) if fixed else 5.0
        once = [T.RandomHorizontalFlip(share), T.RandomVerticalFlip(share), T.RandomRotation(angle)]
        return [crop] if validation else [*once * load, crop]
    if transform == "caltech":
        return [T.Resize((256, 256)), T.CenterCrop(SIDE) if fixed else T.RandomCrop(SIDE)]
    if transform == "small":
        cut = T.CenterCrop(32) if fixed or validation else T.RandomCrop(32)
        steps = [T.Resize((36, 36)), cut]
    else:
        steps = [crop]
    return steps if validation else [*steps, T.RandomHorizontalFlip(share)]
