"""Translate transform classes of the script itself, if they only apply operations that headrace knows.

Recipes of self-supervised learning have such classes, with random numbers of their own: `GaussianBlur` and `Solarization` of
MoCo, SimSiam, DINO, Barlow Twins. The code of such a class runs once for each outcome of its random decision, rewritten by
`script_code.rewrite`, with stand-ins for the image and for its random numbers. The stand-ins record which operations are
applied, and from which generator each parameter and decision is drawn. No number is drawn and nothing is changed. Any other
code is refused.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NoReturn

import numpy as np
import torch

from headrace.accelerate.runtime.unsupported import Refusal, Unsupported, attempt, required
from headrace.accelerate.script_code.calls import ItemCalls
from headrace.accelerate.script_code.planned_images import NotUnderstood, refusal_of
from headrace.accelerate.transforms.draws import FIXED, Draw, single
from headrace.accelerate.transforms.names import display_name
from headrace.accelerate.transforms.pillow_blur import blurs_alike
from headrace.accelerate.transforms.translate import NativeTransform, Steps, draws
from headrace.accelerate.workers.errors import is_of_handler

__all__ = ["Tracer", "trace"]

Translate = Callable[[Any], Steps]


class Tracer:
    """Translates transforms of the script's own, as `trace` does, but runs the code of each object once."""

    def __init__(self) -> None:
        self._found: dict[int, tuple[Any, Steps | Refusal]] = {}  # the object is kept, so that its id stays its own

    @property
    def is_used(self) -> bool:
        """Whether a transform of the script's own has been translated."""
        return any(not isinstance(found, Refusal) for _, found in self._found.values())

    def __call__(self, operation: Any, translate: Translate) -> Steps:
        """Return the native transforms that `trace` finds, or raise its `Unsupported`."""
        if id(operation) not in self._found:
            self._found[id(operation)] = operation, attempt(lambda: trace(operation, translate))
        return required(self._found[id(operation)][1])


def trace(operation: Any, translate: Translate) -> Steps:
    """Return the native transforms that a callable object of the script applies to a Pillow image.

    `translate` returns the steps of a library's transform that the code calls. Raise `Unsupported` if the code does anything
    else than apply operations to Pillow images, or if it makes more than one random decision.
    """
    reason = f"the script's own transform {display_name(operation)} has no exact native equivalent"
    unknown = Unsupported(reason, kind="code")
    taken = _run(operation, translate, way=True)
    if taken is None or len(taken.decisions) > 1:
        raise unknown
    if not taken.decisions:
        return taken.steps
    decision = taken.decisions[0]
    if decision.is_certain:
        if not taken.steps:
            raise unknown
        return (_native("RandomApply", ("decision", decision.numbers()), transforms=taken.steps, p=1.0),)
    skipped = _run(operation, translate, way=False)
    if skipped is None or len(skipped.decisions) != 1 or bool(taken.steps) == bool(skipped.steps):
        raise unknown
    if taken.steps:
        numbers, probability = decision.numbers(), decision.probability
    else:
        numbers, probability = decision.numbers(negated=True), 1 - decision.probability
    return (_native("RandomApply", ("decision", numbers), transforms=taken.steps or skipped.steps, p=probability),)


#: The code of each comparison in `headrace._native.DrawPlan`, and of its negation.
_COMPARISONS = {"<": (0.0, 3.0), "<=": (1.0, 2.0), ">": (2.0, 1.0), ">=": (3.0, 0.0)}


@dataclass(frozen=True, slots=True)
class _Decision:
    """A comparison of a random number that decides whether an operation is applied. `probability`: of the result True."""

    drawn: _Drawn
    comparison: str
    limit: float
    probability: float

    @property
    def is_certain(self) -> bool:
        return self.probability in (0.0, 1.0)

    def numbers(self, *, negated: bool = False) -> tuple[float, ...]:
        """Return the decision for `DrawPlan`: number of the generator, the comparison, its limit, then the arithmetic."""
        generator, *arithmetic = self.drawn.numbers()
        return (generator, _COMPARISONS[self.comparison][negated], self.limit, *arithmetic)


class _Way:
    """One run through the code, in which each random decision has the same outcome.

    `filters`: those that draw and were not applied so far. `open`: random numbers that were drawn and not used so far. Each is
    used before the next is drawn, so that they are drawn in the order of the steps.
    """

    def __init__(self, *, way: bool) -> None:
        self.way = way
        self.decisions: list[_Decision] = []
        self.open: list[_Drawn] = []
        self.filters: list[_Blur] = []
        self.steps: Steps = ()

    def decide(self, decision: _Decision) -> bool:
        """Return whether the compared random number meets the condition in this run through the code."""
        self.decisions.append(decision)
        return decision.probability >= 1 if decision.is_certain else self.way

    def close(self, drawn: _Drawn | None) -> None:
        """Mark a random number as used; None for a step that draws its own. No other number may be unused."""
        if [id(one) for one in self.open] != ([] if drawn is None else [id(drawn.root)]):
            raise NotUnderstood("random numbers are not used in the order in which they are drawn")
        self.open = []


def _run(operation: Any, translate: Translate, *, way: bool) -> _Way | None:
    """Run the code of an object with stand-ins. None if something in it is refused."""
    found = _Way(way=way)
    calls = _TracedCalls(found, translate)
    try:
        result, refusal = refusal_of(lambda: calls.call(operation, _Image(())))
    except Exception as error:  # the stand-ins lack what the code asks for
        if is_of_handler(error):
            raise
        return None
    if refusal is not None or type(result) is not _Image:
        return None
    found.steps = result.steps
    return None if found.open or found.filters else found


class _Image:
    """Stand-in for the image: records the steps applied to it. Its pixels and size are unknown."""

    def __init__(self, steps: Steps) -> None:
        self.steps = steps

    def _refuse(self, *_: Any) -> NoReturn:
        raise NotUnderstood("it looks at the image")

    __eq__ = __ne__ = __hash__ = __str__ = __repr__ = __format__ = __array__ = _refuse

    def after(self, *steps: NativeTransform) -> _Image:
        """Return a stand-in to which `steps` are applied after those of this one."""
        return _Image((*self.steps, *steps))


class _Drawn:
    """Stand-in for a uniform random number between two bounds. It may be used once: a second use would depend on the first.

    `generator`: 0 torch's, 1 Python's, 2 NumPy's. `arithmetic`: the operations that the code has applied to it, for `DrawPlan`.
    `is_tensor`: torch computes with it, in single precision.
    """

    def __init__(
        self,
        way: _Way,
        generator: float,
        bounds: tuple[float, float] = (0.0, 1.0),
        arithmetic: tuple[float, ...] = (),
        *,
        is_tensor: bool = False,
        root: _Drawn | None = None,
    ) -> None:
        self._way, self._generator, self._arithmetic = way, generator, arithmetic
        self._low, self._high = bounds
        self.is_tensor = is_tensor
        self.root: _Drawn = self if root is None else root
        if root is None:
            way.open.append(self)

    def bounds(self) -> tuple[float, float]:
        """Return the smallest and the largest value of the number. It may be used once."""
        self._way.close(self)
        return min(self._low, self._high), max(self._low, self._high)

    def numbers(self) -> tuple[float, ...]:
        """Return the number of the generator, then the codes and operands of the arithmetic, for `DrawPlan`."""
        return (self._generator, *self._arithmetic)

    def item(self) -> _Drawn:
        """Return the stand-in for `tensor.item()`: the same draw as a Python number."""
        bounds = (self._low, self._high)
        return _Drawn(self._way, self._generator, bounds, self._arithmetic, root=self.root)

    def _moved(self, code: float, other: Any, change: Callable[[float, float], float]) -> _Drawn:
        if self.is_tensor:
            raise NotUnderstood("torch computes with a random number")
        value = _number(other)
        bounds = (change(self._low, value), change(self._high, value))
        return _Drawn(self._way, self._generator, bounds, (*self._arithmetic, code, value), root=self.root)

    def __add__(self, other: float) -> _Drawn:
        return self._moved(0.0, other, lambda number, value: number + value)

    def __sub__(self, other: float) -> _Drawn:
        return self._moved(1.0, other, lambda number, value: number - value)

    def __rsub__(self, other: float) -> _Drawn:
        return self._moved(2.0, other, lambda number, value: value - number)

    def __mul__(self, other: float) -> _Drawn:
        return self._moved(3.0, other, lambda number, value: number * value)

    def __truediv__(self, other: float) -> _Drawn:
        return self._moved(4.0, other, lambda number, value: number / value)

    __radd__, __rmul__ = __add__, __mul__

    def __lt__(self, other: float) -> bool:
        return self._compared("<", other)

    def __le__(self, other: float) -> bool:
        return self._compared("<=", other)

    def __gt__(self, other: float) -> bool:
        return self._compared(">", other)

    def __ge__(self, other: float) -> bool:
        return self._compared(">=", other)

    def _compared(self, comparison: str, other: Any) -> bool:
        limit = single(_number(other)) if self.is_tensor else _number(other)
        low, high = self.bounds()
        if low == high:
            raise NotUnderstood("a random number has one value")
        below = min(1.0, max(0.0, (limit - low) / (high - low)))
        probability = below if comparison in ("<", "<=") else 1 - below
        return self._way.decide(_Decision(self, comparison, limit, probability))

    def _refuse(self, *_: Any) -> NoReturn:
        raise NotUnderstood("a random number is used in another way")

    __eq__ = __ne__ = __bool__ = __float__ = __int__ = __index__ = __round__ = _refuse
    __hash__ = __format__ = __repr__ = __str__ = __array__ = _refuse


class _Blur:
    """Stand-in for `ImageFilter.GaussianBlur`."""

    def __init__(self, step: NativeTransform) -> None:
        self.step = step


class _TracedCalls(ItemCalls):
    """Executes the calls of a transform class of the script with stand-ins, or raises `NotUnderstood` (`Decisions`)."""

    _refuses_ahead = False  # each way through the code is run

    def __init__(self, way: _Way, translate: Translate) -> None:
        self._way, self._translate = way, translate
        super().__init__(trace)

    def attribute(self, thing: Any, name: str, /) -> Any:
        """Return the attribute `thing.name`. Raise `NotUnderstood` for an attribute of an image or of a random number."""
        if type(thing) is _Image and name == "mode":
            return "RGB"
        if isinstance(thing, _STAND_INS):
            raise self.refuse(f"it reads the attribute {name} of an image or of a random number")
        return super().attribute(thing, name)

    def method(self, thing: Any, name: str, /, *arguments: Any, **named: Any) -> Any:
        """Return the result of `thing.name(*arguments)`, or the stand-in after it. Raise `NotUnderstood` if it is refused."""
        if type(thing) is _Image:
            return self._image_method(thing, name, arguments, named)
        if type(thing) is _Drawn and name == "item" and not (arguments or named):
            return thing.item()
        return super().method(thing, name, *arguments, **named)

    def _image_method(self, image: _Image, name: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> _Image:
        if named or len(arguments) > 1:
            raise self.refuse(f"it uses Image.{name}")
        if name == "filter" and len(arguments) == 1 and type(arguments[0]) is _Blur:
            self._way.filters = [one for one in self._way.filters if one is not arguments[0]]
            return image.after(arguments[0].step)
        if name == "transpose" and arguments in ((0,), (1,)):  # FLIP_LEFT_RIGHT, FLIP_TOP_BOTTOM
            return image.after(_native("RandomVerticalFlip" if arguments[0] else "RandomHorizontalFlip", p=1.0))
        if (name == "convert" and arguments == ("RGB",)) or (name == "copy" and not arguments):
            return image
        raise self.refuse(f"it uses Image.{name}")

    def _apply(self, operation: Any, /, *arguments: Any, **named: Any) -> Any:
        if len(arguments) == 1 and not named and type(arguments[0]) is _Image:
            try:
                steps = self._translate(operation)
            except Unsupported:
                return super()._apply(operation, *arguments, **named)
            if any(map(draws, steps)):
                self._way.close(None)
            return arguments[0].after(*steps)
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
            (random.random, lambda: self._unit(_PYTHON)),
            *((function, lambda: self._unit(_NUMPY)) for function in (np.random.random, np.random.rand)),
            (np.random.random_sample, lambda: self._unit(_NUMPY)),
            (torch.rand, self._unit_tensor),
            (random.uniform, lambda low, high: self._uniform(_PYTHON, low, high)),
            (np.random.uniform, lambda low=0.0, high=1.0: self._uniform(_NUMPY, low, high)),
        ]
        if (filters := sys.modules.get("PIL.ImageFilter")) is not None:
            special.append((filters.GaussianBlur, self._blur))
        if (operations := sys.modules.get("PIL.ImageOps")) is not None:
            special += [(getattr(operations, name), make) for name, make in _IMAGE_OPS.items()]
        return [*super()._special(), *special]

    def _unit(self, generator: float) -> _Drawn:
        return _Drawn(self._way, generator)

    def _unit_tensor(self, size: Any = 1) -> _Drawn:
        if size not in (1, (1,), [1], ()):
            raise self.refuse("it draws several numbers")
        return _Drawn(self._way, _TORCH, is_tensor=True)

    def _uniform(self, generator: float, low: Any, high: Any) -> _Drawn:
        first, last = _number(low), _number(high)
        return self._unit(generator) * (last - first) + first

    def _blur(self, radius: Any = 2) -> _Blur:
        draw: Draw = FIXED
        if type(radius) is not _Drawn:
            low = high = _number(radius)
        elif radius.is_tensor:
            raise self.refuse("torch computes its radius")
        else:
            low, high = radius.bounds()
            draw = ("value", radius.numbers())
        if not blurs_alike(low, high):
            raise self.refuse("its blur differs")
        made = _Blur(_native("PillowBlur", draw, radius=(low, high)))
        if draw != FIXED:
            self._way.filters.append(made)
        return made


_TORCH, _PYTHON, _NUMPY = 0.0, 1.0, 2.0

_STAND_INS = (_Image, _Drawn, _Blur)


def _native(name: str, draw: Draw = FIXED, **arguments: Any) -> NativeTransform:
    return NativeTransform(name, MappingProxyType(arguments), draw)


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


#: Functions of Pillow's ImageOps that can be translated, with their stand-ins.
_IMAGE_OPS: dict[str, Callable[..., _Image]] = {
    "solarize": _solarize,
    "posterize": _posterize,
    "invert": _image_op("RandomInvert"),
    "equalize": _image_op("RandomEqualize"),
    "autocontrast": _image_op("RandomAutocontrast"),
    "mirror": _image_op("RandomHorizontalFlip"),
    "flip": _image_op("RandomVerticalFlip"),
}
