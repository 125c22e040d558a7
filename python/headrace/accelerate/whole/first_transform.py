"""The first transform of a folder dataset, if native decode can apply it as it opens the files: a crop, a resize, or both.

The loader is then taken over in part (`lazy.native_decode`): the script's own objects apply the remaining transforms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace.accelerate.runtime.unsupported import Unsupported, no_equivalent
from headrace.accelerate.transforms.flat_transforms import flatten
from headrace.accelerate.transforms.names import TIMM, V1, V2, display_name, full_name, interpolation_name
from headrace.accelerate.transforms.translate import PILLOW_FILTERS
from headrace.accelerate.whole.folders import FolderDataset, require_native_endings, sampled_paths

__all__ = ["FirstTransform", "first_transform"]

_CROPS = (V1 + "RandomResizedCrop", V2 + "RandomResizedCrop")
_ON_IMAGES = (*_CROPS, V1 + "Resize", V2 + "Resize", TIMM + "transforms.RandomResizedCropAndInterpolation")
_TO_TENSOR = (V2 + "ToImage", V2 + "PILToTensor", V1 + "PILToTensor")


@dataclass(frozen=True, slots=True)
class FirstTransform:
    """The transforms of a folder dataset, of which the first one can be applied natively.

    `resized`: False if the script makes a tensor before it crops and resizes: only the crop is native then, because tensors are
    resized by other arithmetic.
    """

    folder: FolderDataset
    operations: tuple[Any, ...]
    resized: bool

    @property
    def applied(self) -> Any:
        """The transform that is applied natively: the first, or the second if the first makes a tensor (`resized` is False)."""
        return self.operations[0 if self.resized else 1]

    @property
    def name(self) -> str:
        """The name of the transform in messages: "Resize", "RandomResizedCrop (the crop only)"."""
        return f"{display_name(self.applied)}{'' if self.resized else ' (the crop only)'}"


def first_transform(folder: FolderDataset) -> FirstTransform:
    """Return the transforms of a folder dataset. Raise `Unsupported` if native decode cannot apply the first one."""
    require_native_endings(sampled_paths([folder]))
    operations = tuple(flatten(folder.dataset.transform))
    names = [full_name(operation) for operation in operations]
    if not operations:
        raise Unsupported("it has no transform")
    if names[0] in _ON_IMAGES:
        filters = interpolation_name(operations[0].interpolation)
        if not set(filters.split(" or ")) <= PILLOW_FILTERS:
            raise no_equivalent(f"interpolation {filters!r}")
        return FirstTransform(folder, operations, resized=True)
    if len(names) > 1 and names[0] in _TO_TENSOR and names[1] in _CROPS:
        return FirstTransform(folder, operations, resized=False)
    raise Unsupported(
        f"transform {display_name(operations[0])} comes first", "RandomResizedCrop or Resize as the first transform"
    )
