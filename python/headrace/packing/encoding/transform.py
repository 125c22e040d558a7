"""`--transform`: deterministic operations, parsed from a line of text, that packing applies instead of training.

Names and arguments are torchvision's: `Resize(size)`, `CenterCrop(size)`, `Grayscale(num_output_channels=1)`, `RGB()`.
Random operations are refused: they belong in training, where each epoch draws again.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headrace.errors import UsageError

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["parsed"]

Operation = Callable[["Image.Image"], "Image.Image"]


def parsed(text: str) -> Operation:
    """Return the function that applies the operations in `text`. Raise UsageError for unknown ones or wrong arguments."""
    try:
        tree = ast.parse(f"[{text}]", mode="eval").body
    except SyntaxError as error:
        raise UsageError(f"transform {text!r} cannot be read", hint=_HINT) from error
    assert isinstance(tree, ast.List)
    operations = [_operation(node, text) for node in tree.elts]
    if not operations:
        raise UsageError("transform is empty", hint=_HINT)

    def apply(image: Image.Image) -> Image.Image:
        for operation in operations:
            image = operation(image)
        return image

    return apply


_HINT = 'for example --transform "Resize(256), CenterCrop(224)"'


def _operation(node: ast.expr, text: str) -> Operation:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        raise UsageError(f"transform {text!r}: {ast.unparse(node)} is not an operation", hint=_HINT)
    make = _MAKERS.get(node.func.id)
    if make is None:
        names = ", ".join(_MAKERS)
        raise UsageError(f"transform: {node.func.id} is not possible when packing; possible: {names}", hint=_HINT)
    try:
        arguments = [ast.literal_eval(argument) for argument in node.args]
        named = {keyword.arg: ast.literal_eval(keyword.value) for keyword in node.keywords if keyword.arg}
        return make(*arguments, **named)
    except (TypeError, ValueError) as error:
        raise UsageError(f"transform: {ast.unparse(node)}: {error}", hint=_HINT) from error


def _pair(size: Any) -> tuple[int, int]:
    """Return (height, width) in pixels from one number or a pair of them. Raises ValueError outside 1 to 65535."""
    values = (size, size) if isinstance(size, int) else tuple(size)
    if len(values) != 2 or not all(isinstance(value, int) and 1 <= value <= 65535 for value in values):
        raise ValueError(f"size {size!r} is not a number of pixels or a pair of them")
    return values[0], values[1]


def _resize(size: Any) -> Operation:
    """Return torchvision's Resize. A number is the shorter side (the other is rounded down), a pair is (height, width)."""
    pair = _pair(size)

    def apply(image: Image.Image) -> Image.Image:
        width, height = image.size
        if isinstance(size, int):
            small = size
            target = (small, int(small * height / width)) if width <= height else (int(small * width / height), small)
        else:
            target = (pair[1], pair[0])
        return image.resize(target, 2)  # 2 = PIL.Image.Resampling.BILINEAR, torchvision's default

    return apply


def _center_crop(size: Any) -> Operation:
    height, width = _pair(size)

    def first(length: int, wanted: int) -> int:
        """Return the offset of a centre crop in pixels, as torchvision computes it: negative where a shorter side is padded."""
        return round((length - wanted) / 2.0) if length >= wanted else -((wanted - length) // 2)

    def apply(image: Image.Image) -> Image.Image:
        left, top = first(image.width, width), first(image.height, height)
        return image.crop((left, top, left + width, top + height))  # black outside the image, as in torchvision

    return apply


def _grayscale(num_output_channels: int = 1) -> Operation:
    if num_output_channels not in (1, 3):
        raise ValueError("num_output_channels is 1 or 3")
    return lambda image: image.convert("L") if num_output_channels == 1 else image.convert("L").convert("RGB")


def _rgb() -> Operation:
    return lambda image: image.convert("RGB")


_MAKERS: dict[str, Callable[..., Operation]] = {
    "Resize": _resize,
    "CenterCrop": _center_crop,
    "Grayscale": _grayscale,
    "RGB": _rgb,
}
