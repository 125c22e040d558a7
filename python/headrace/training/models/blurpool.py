"""BlurPool: a small low-pass filter before each subsampling, so that a shifted image gives nearly the same scores.

Zhang 2019, "Making Convolutional Networks Shift-Invariant Again" (arXiv 1904.11486). As in FFCV's and Composer's ResNet
recipes: the 3 × 3 binomial filter before every strided convolution of 16 or more input channels, and for max pooling
after the maximum. The names of a model's weights stay as they were.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = ["add_blurpool"]

FEWEST_CHANNELS = 16


def add_blurpool(model: nn.Module) -> int:
    """Put a low-pass filter before each subsampling of `model`, in place; return the number of layers that got one."""
    from torch import nn

    count = 0
    for module in list(model.modules()):
        if isinstance(module, nn.Conv2d) and max(module.stride) > 1 and module.in_channels >= FEWEST_CHANNELS:
            module.register_forward_pre_hook(_blur_input)
        elif isinstance(module, nn.MaxPool2d) and max(_pair(module.stride)) > 1:
            module.blur_stride, module.stride = module.stride, 1
            module.register_forward_hook(_blur_output)
        else:
            continue
        # A buffer, so that it moves to the device with the model. Not persistent, so that the saved weights do not contain it.
        module.register_buffer("blur_kernel", _kernel(), persistent=False)
        count += 1
    return count


def _pair(value: Any) -> tuple[int, int]:
    return value if isinstance(value, tuple) else (value, value)


def _kernel() -> torch.Tensor:
    """Return [1, 2, 1]ᵀ [1, 2, 1] / 16, float32 [1, 1, 3, 3]."""
    import torch

    line = torch.tensor([1.0, 2.0, 1.0])
    return (line[:, None] * line[None, :] / 16)[None, None]


def _blur_input(module: Any, given: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return (_blurred(given[0], module.blur_kernel, 1), *given[1:])


def _blur_output(module: Any, given: tuple[torch.Tensor, ...], found: torch.Tensor) -> torch.Tensor:
    return _blurred(found, module.blur_kernel, module.blur_stride)


def _blurred(images: torch.Tensor, kernel: torch.Tensor, stride: Any) -> torch.Tensor:
    """Return each channel convolved with `kernel`, with zeros beyond the border."""
    from torch.nn.functional import conv2d

    channels = images.shape[1]
    return conv2d(images, kernel.expand(channels, 1, 3, 3).to(images.dtype), stride=stride, padding=1, groups=channels)
