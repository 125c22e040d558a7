"""Models by name: classifiers of torchvision and timm, small ResNets for 32 × 32 images, or the user's own factory."""

from __future__ import annotations

import difflib
import importlib
import shlex
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from headrace.errors import MissingDependencyError, UsageError
from headrace.system.text.foreign_errors import first_line
from headrace.system.text.install_hints import extra_hint
from headrace.training.models.blurpool import add_blurpool

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = ["SMALL_IMAGE", "SMALL_RESNETS", "build_model", "build_stand_in", "check_model_of_file", "shapes_of"]

# Pixels. Images up to this size are too small for ImageNet's stem (stride 4 before the first block), which is replaced.
SMALL_IMAGE = 64
# Name → blocks per stage: He et al., "Deep Residual Learning for Image Recognition", section 4.2 (CIFAR-10).
SMALL_RESNETS = {"resnet20": 3, "resnet32": 5, "resnet44": 7, "resnet56": 9}


def build_model(name: str, *, classes: int, image_size: int, blurpool: bool = False) -> nn.Module:
    """Build the model `name` with `classes` outputs, randomly initialised from torch's current seed.

    `module:factory` calls `factory(num_classes=classes)` from an importable module. A torchvision ResNet for images of up to
    64 pixels gets a 3 × 3 stem without pooling, as is usual for CIFAR. `blurpool` adds a low-pass filter before strided
    convolutions and in max pooling. Raises UsageError for an unknown name, and for `blurpool` in a model without either.
    """
    model = _build_plain(name, classes, image_size)
    if blurpool and not add_blurpool(model):
        raise UsageError(f"--blurpool: {name} has no strided convolution and no max pooling", hint="--no-blurpool")
    return model


def check_model_of_file(name: str, *, given: str | None, where: str) -> None:
    """Raise UsageError if a file (options or weights) names code as its model, `MODULE:FACTORY`, and `--model` does not.

    The error is also raised for a `--model` that differs from the file's.

    `MODULE:FACTORY` is code: importing it runs it. Whoever wrote the file would choose what runs here, so the user names the
    same model on the command line. name: what the file says. given: `--model` of the command line, None without it. where: the
    file, for messages.
    """
    if given is not None and given != name:
        problem = f"--model {given} does not fit: the weights in {where} are of the model {name!r}"
        raise UsageError(problem, hint="leave out --model, or give the weights of that model")
    if ":" in name and given is None:
        raise UsageError(
            f"{where} names code as its model: {name!r}, which would be imported and called",
            hint=f"if you trust that code, say so: --model {shlex.quote(name)}",
        )


def shapes_of(build: Callable[[], nn.Module]) -> dict[str, torch.Size] | None:
    """Return the shapes of the tensors of the model that `build` makes, without allocating them; None if that fails."""
    import torch
    from torch.overrides import TorchFunctionMode

    class OnlyParameters(TorchFunctionMode):
        """For models that compute with numbers while they are built, such as torchvision's RegNets."""

        def __torch_function__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return call(*args, **{**(kwargs or {}), **({"device": "meta"} if call is torch.empty else {})})

    for without_memory in (torch.device("meta"), OnlyParameters()):
        with suppress(NotImplementedError, RuntimeError), without_memory:
            return {name: tensor.shape for name, tensor in build().state_dict().items()}
    return None


def _build_plain(name: str, classes: int, image_size: int) -> nn.Module:
    if ":" in name:
        return _call_user_factory(name, classes)
    if name in SMALL_RESNETS:
        return _small_resnet(SMALL_RESNETS[name], classes)
    try:
        from torchvision import models
    except ImportError as error:
        raise MissingDependencyError("models need torchvision", hint=extra_hint("train")) from error
    known = models.list_models(module=models)
    if name in known:
        extra = {"aux_logits": False, "init_weights": True} if name in ("googlenet", "inception_v3") else {}
        model = models.get_model(name, weights=None, num_classes=classes, **extra)
        if image_size <= SMALL_IMAGE and isinstance(model, models.ResNet):
            _small_stem(model)
        return model
    return _from_timm(name, classes, known)


def _call_user_factory(name: str, classes: int) -> nn.Module:
    module_name, _, attribute = name.partition(":")
    try:
        factory: Callable[..., nn.Module] = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"--model {name}: {error}", hint="MODULE:FACTORY, importable from here (PYTHONPATH)") from error
    return factory(num_classes=classes)


def _from_timm(name: str, classes: int, known: list[str]) -> nn.Module:
    try:
        import timm
    except ImportError:
        timm = None
    if timm is not None and timm.is_model(name):
        try:
            model: nn.Module = timm.create_model(name, pretrained=False, num_classes=classes)
        except (RuntimeError, ValueError, TypeError) as error:  # for example an unknown tag behind the name
            if isinstance(error, NotImplementedError):
                raise
            raise UsageError(f"timm cannot build {name!r}: {first_line(error)}") from error
        return model
    near = difflib.get_close_matches(name, [*SMALL_RESNETS, *known], n=3)
    where = "torchvision" + (" and timm" if timm is not None else " (timm is not installed)")
    hint = f"did you mean {' or '.join(near)}?" if near else "for example resnet18, resnet50, resnet152, resnet20"
    raise UsageError(f"there is no model {name!r} in {where}", hint=hint)


def _small_stem(model: Any) -> None:
    from torch import nn

    model.conv1 = nn.Conv2d(3, model.conv1.out_channels, 3, stride=1, padding=1, bias=False)
    nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")
    model.maxpool = nn.Identity()


def _small_resnet(blocks: int, classes: int) -> nn.Module:
    """Build the CIFAR ResNet of He et al., section 4.2: 16, 32 and 64 channels with `blocks` basic blocks each.

    Shortcuts are those of torchvision's BasicBlock, with a 1 × 1 projection where the shape changes (option B of the paper).
    """
    from torch import nn
    from torchvision.models.resnet import BasicBlock

    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True)]
    channels = 16
    for width in (16, 32, 64):
        for index in range(blocks):
            stride = 2 if width > 16 and index == 0 else 1
            project = None
            if stride > 1:
                project = nn.Sequential(nn.Conv2d(channels, width, 1, stride=2, bias=False), nn.BatchNorm2d(width))
            layers.append(BasicBlock(channels, width, stride, project))
            channels = width
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return model


def build_stand_in(classes: int) -> nn.Module:
    """Build the model of simulated devices: a linear classifier on a 7 × 7 grid of pixels, which costs almost no compute."""
    from torch import nn

    class StandIn(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3 * 7 * 7, classes)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            rows, columns = (_grid(size) for size in images.shape[2:])
            pixels = images[:, :, rows, :][:, :, :, columns].flatten(1).float()
            result: torch.Tensor = self.linear((pixels - 127.5) / 63.75)
            return result

    return StandIn()


def _grid(size: int) -> slice:
    """Return seven evenly spaced positions of `size` (at least 7)."""
    step = size // 7
    return slice(step // 2, step // 2 + 7 * step, step)
