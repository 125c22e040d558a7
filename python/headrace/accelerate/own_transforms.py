"""Transform classes of the script's own that only apply operations which headrace knows.

Recipes of self-supervised learning have such classes, with random numbers of their own: `GaussianBlur` and `Solarization` of
MoCo, SimSiam, DINO, Barlow Twins. The code of such a class is run once for each way through it, rewritten by `item_code`, with
stand-ins for the image and for its random numbers. The stand-ins note which operations are applied, from which range each
parameter is drawn, and with which probability. Nothing is drawn and nothing is changed. Whatever else the code does is refused.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from types import MappingProxyType
from typing import Any, NoReturn

import numpy as np
import torch

from headrace.accelerate.item_calls import ItemCalls
from headrace.accelerate.pillow_blur import blurs_alike
from headrace.accelerate.planned_images import NotUnderstood, refusal_of
from headrace.accelerate.transform_names import display_name
from headrace.accelerate.translate import NativeTransform, Unsupported, trace_with

__all__ = ["trace"]

Steps = tuple[NativeTransform, ...]
Translate = Callable[[Any], Steps]


def trace(operation: Any, translate: Translate) -> Steps:
    """Return the operations of a callable object of the script as transforms of headrace.

    `translate` returns the steps of a transform of a library that the code calls. Raise `Unsupported` if the code does anything
    else than applying operations on Pillow images, or has more than two ways through it.
    """
    unknown = Unsupported(f"the script's own transform {display_name(operation)} has no exact native equivalent")
    taken, skipped = _run(operation, translate, way=True), None
    if taken is not None and taken.probabilities:
        skipped = _run(operation, translate, way=False)
    if taken is None or len(taken.probabilities) > 1:
        raise unknown
    if not taken.probabilities:
        return taken.steps
    if skipped is None or len(skipped.probabilities) != 1 or (taken.steps and skipped.steps):
        raise unknown
    probability = taken.probabilities[0] if taken.steps else 1 - taken.probabilities[0]
    steps = taken.steps or skipped.steps
    return (_native("RandomApply", transforms=steps, p=probability),) if steps else ()


class _Way:
    """One way through the code: each decision by a random number goes the same way, and its probability is noted."""

    def __init__(self, *, way: bool) -> None:
        self.way = way
        self.probabilities: list[float] = []
        self.steps: Steps = ()

    def decide(self, probability: float) -> bool:
        """Return the outcome of a comparison that is true with this probability."""
        if not 0 < probability < 1:
            return probability >= 1
        self.probabilities.append(probability)
        return self.way


def _run(operation: Any, translate: Translate, *, way: bool) -> _Way | None:
    """Run the code of an object. None if something in it is refused."""
    found = _Way(way=way)
    calls = _TracedCalls(found, translate)
    try:
        result, refusal = refusal_of(lambda: calls.call(operation, _Image(())))
    except Exception:  # the stand-ins lack what the code asks for
        return None
    if refusal is not None or type(result) is not _Image:
        return None
    found.steps = result.steps
    return found


class _Image:
    """Stands for the image: knows the steps that were applied to it. Its pixels and its size are not known."""

    def __init__(self, steps: Steps) -> None:
        self.steps = steps

    def _refuse(self, *_: Any) -> NoReturn:
        raise NotUnderstood("it looks at the image")

    __eq__ = __ne__ = __hash__ = __str__ = __repr__ = __format__ = __array__ = _refuse

    def after(self, *steps: NativeTransform) -> _Image:
        """Return the image after further steps."""
        return _Image((*self.steps, *steps))


class _Drawn:
    """Stands for a random number, uniform between two bounds. It may be used once: a second use would depend on the first."""

    def __init__(self, way: _Way, low: float, high: float, used: list[bool] | None = None) -> None:
        self._way, self._low, self._high = way, low, high
        self._used = [] if used is None else used

    def bounds(self) -> tuple[float, float]:
        """Return the smallest and the largest value, for the one use of the number."""
        if self._used:
            raise NotUnderstood("a random number is used twice")
        self._used.append(True)
        return min(self._low, self._high), max(self._low, self._high)

    def _moved(self, change: Callable[[float], float]) -> _Drawn:
        return _Drawn(self._way, change(self._low), change(self._high), self._used)

    def __add__(self, other: float) -> _Drawn:
        return self._moved(lambda value: value + _number(other))

    def __sub__(self, other: float) -> _Drawn:
        return self._moved(lambda value: value - _number(other))

    def __mul__(self, other: float) -> _Drawn:
        return self._moved(lambda value: value * _number(other))

    def __truediv__(self, other: float) -> _Drawn:
        return self._moved(lambda value: value / _number(other))

    def __rsub__(self, other: float) -> _Drawn:
        return self._moved(lambda value: _number(other) - value)

    __radd__, __rmul__ = __add__, __mul__

    def __lt__(self, other: float) -> bool:
        return self._way.decide(self._share_below(_number(other)))

    def __gt__(self, other: float) -> bool:
        return self._way.decide(1 - self._share_below(_number(other)))

    __le__, __ge__ = __lt__, __gt__

    def _share_below(self, limit: float) -> float:
        low, high = self.bounds()
        if low == high:
            raise NotUnderstood("a random number has one value")
        return min(1.0, max(0.0, (limit - low) / (high - low)))

    def _refuse(self, *_: Any) -> NoReturn:
        raise NotUnderstood("a random number is used in another way")

    __eq__ = __ne__ = __bool__ = __float__ = __int__ = __index__ = __round__ = _refuse
    __hash__ = __format__ = __repr__ = __str__ = __array__ = _refuse


class _Blur:
    """Stands for `ImageFilter.GaussianBlur`."""

    def __init__(self, step: NativeTransform) -> None:
        self.step = step


class _TracedCalls(ItemCalls):
    """Decides about the calls of such code."""

    _refuses_ahead = False  # each way through the code is run

    def __init__(self, way: _Way, translate: Translate) -> None:
        self._way, self._translate = way, translate
        super().__init__()

    def attribute(self, thing: Any, name: str, /) -> Any:
        """Decide about an attribute that is read."""
        if type(thing) is _Image and name == "mode":
            return "RGB"
        if isinstance(thing, _STAND_INS):
            raise self.refuse(f"it reads {name}")
        return super().attribute(thing, name)

    def method(self, thing: Any, name: str, /, *arguments: Any, **named: Any) -> Any:
        """Decide about a call of a method."""
        if type(thing) is _Image:
            return self._image_method(thing, name, arguments, named)
        if type(thing) is _Drawn and name == "item" and not (arguments or named):
            return thing
        return super().method(thing, name, *arguments, **named)

    def _image_method(self, image: _Image, name: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> _Image:
        if named or len(arguments) > 1:
            raise self.refuse(f"it uses Image.{name}")
        if name == "filter" and len(arguments) == 1 and type(arguments[0]) is _Blur:
            return image.after(arguments[0].step)
        if name == "transpose" and arguments in ((0,), (1,)):  # FLIP_LEFT_RIGHT, FLIP_TOP_BOTTOM
            return image.after(_native("RandomVerticalFlip" if arguments[0] else "RandomHorizontalFlip", p=1.0))
        if (name == "convert" and arguments == ("RGB",)) or (name == "copy" and not arguments):
            return image
        raise self.refuse(f"it uses Image.{name}")

    def _apply(self, operation: Any, /, *arguments: Any, **named: Any) -> Any:
        if len(arguments) == 1 and not named and type(arguments[0]) is _Image:
            try:
                return arguments[0].after(*self._translate(operation))
            except Unsupported:
                pass
        return super()._apply(operation, *arguments, **named)

    def _isinstance(self, thing: Any, kinds: Any) -> bool:
        if type(thing) is not _Image:
            if isinstance(thing, _STAND_INS):
                raise self.refuse("it asks for the type of a number")
            return super()._isinstance(thing, kinds)
        image = sys.modules["PIL.Image"].Image
        for kind in kinds if isinstance(kinds, tuple) else (kinds,):
            if kind is image:
                return True
            if kind not in (torch.Tensor, np.ndarray, list, tuple, dict):
                raise self.refuse(f"it asks for {kind}")
        return False

    def _special(self) -> list[tuple[Any, Callable[..., Any]]]:
        special: list[tuple[Any, Callable[..., Any]]] = [
            *((function, self._unit) for function in (random.random, np.random.random, np.random.rand)),
            (np.random.random_sample, self._unit),
            (torch.rand, self._unit_tensor),
            (random.uniform, self._uniform),
            (np.random.uniform, self._uniform),
        ]
        if (filters := sys.modules.get("PIL.ImageFilter")) is not None:
            special.append((filters.GaussianBlur, self._blur))
        if (operations := sys.modules.get("PIL.ImageOps")) is not None:
            special += [(getattr(operations, name), make) for name, make in _IMAGE_OPS.items()]
        return [*super()._special(), *special]

    def _unit(self) -> _Drawn:
        return _Drawn(self._way, 0.0, 1.0)

    def _unit_tensor(self, size: Any = 1) -> _Drawn:
        if size not in (1, (1,), [1], ()):
            raise self.refuse("it draws several numbers")
        return self._unit()

    def _uniform(self, low: Any = 0.0, high: Any = 1.0) -> _Drawn:
        return _Drawn(self._way, _number(low), _number(high))

    def _blur(self, radius: Any = 2) -> _Blur:
        low, high = radius.bounds() if type(radius) is _Drawn else (_number(radius),) * 2
        if not blurs_alike(low, high):
            raise self.refuse("its blur differs")
        return _Blur(_native("PillowBlur", radius=(low, high)))


_STAND_INS = (_Image, _Drawn, _Blur)


def _native(name: str, **arguments: Any) -> NativeTransform:
    return NativeTransform(name, MappingProxyType(arguments))


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise NotUnderstood("it computes with other things than numbers")
    return float(value)


def _image_op(name: str, **arguments: Any) -> Callable[[_Image], _Image]:
    return lambda image: image.after(_native(name, p=1.0, **arguments))


def _solarize(image: _Image, threshold: int = 128) -> _Image:
    return image.after(_native("RandomSolarize", threshold=_number(threshold), p=1.0))


def _posterize(image: _Image, bits: int) -> _Image:
    return image.after(_native("RandomPosterize", bits=int(_number(bits)), p=1.0))


#: The functions of Pillow's ImageOps that are known, with the arguments that are.
_IMAGE_OPS: dict[str, Callable[..., _Image]] = {
    "solarize": _solarize,
    "posterize": _posterize,
    "invert": _image_op("RandomInvert"),
    "equalize": _image_op("RandomEqualize"),
    "autocontrast": _image_op("RandomAutocontrast"),
    "mirror": _image_op("RandomHorizontalFlip"),
    "flip": _image_op("RandomVerticalFlip"),
}

trace_with(trace)
