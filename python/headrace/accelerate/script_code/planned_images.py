"""Stand-ins for images while the code of an item runs: they know the file and the transforms, not the pixels.

`PlannedImage` replaces the Pillow image of a file, `PlannedView` the tensor that the script's transforms make of it. Both know
the file and the chain of transforms. Any other use of them is refused, so that the code never computes with them.
"""

from __future__ import annotations

import os
import pathlib
import threading
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, NoReturn

from headrace.accelerate.script_code.written_calls import written_reason
from headrace.accelerate.transforms.translate import Trace, is_known, is_random, makes_tensor

__all__ = [
    "Chain",
    "Looks",
    "NotUnderstood",
    "PlannedFile",
    "PlannedImage",
    "PlannedMode",
    "PlannedView",
    "Source",
    "note_opened",
    "path_text",
    "refusal_of",
    "source_name",
    "with_mode",
]

#: Where an image comes from: the path of its file, or the bytes of the file.
Source = str | bytes

PlannedMode = Literal["RGB", "L"]
"""Mode of a planned image, as Pillow names it."""

#: The first bytes of image files (the specifications of the formats), and the extension of such files.
SIGNATURES = (
    (b"\xff\xd8\xff", ".jpg"),
    (b"\x89PNG\r\n\x1a\n", ".png"),
    (b"GIF8", ".gif"),
    (b"BM", ".bmp"),
    (b"II*\0", ".tif"),
    (b"MM\0*", ".tif"),
)


class _Refusals(threading.local):
    """The first refusal in this thread since `refusal_of` was called last."""

    first: str | None = None


_refusals = _Refusals()


class NotUnderstood(BaseException):
    """Raised to refuse an item whose code does something that headrace cannot follow. The message is the reason.

    A `BaseException`, so that `except Exception` in the code does not catch it. `refusal_of` learns of it even if it is caught.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        _refusals.first = _refusals.first or written_reason(reason, refusal_of.__code__)


def refusal_of(make: Callable[[], Any]) -> tuple[Any, str | None]:
    """Call `make`. Return its result, and the reason of the first `NotUnderstood` in it, or None. Calls may be nested."""
    outer, _refusals.first = _refusals.first, None
    try:
        return make(), _refusals.first
    except NotUnderstood:
        return None, _refusals.first
    finally:
        _refusals.first = outer


class _Looks(threading.local):
    """For the item of this thread: the mode given to its files, those that its code opened, and the number of draws.

    `sources`: the files whose mode the code read. A draw is the application of a transform that draws random numbers.
    """

    def __init__(self) -> None:
        self.mode: PlannedMode = "RGB"
        self.opened: list[Source] = []
        self.sources: list[Source] = []
        self.draws = 0


_looks = _Looks()


class Looks(NamedTuple):
    """What the code of an item, or of several, did with files and random numbers.

    `opened`: the files that it opened. `looked_at`: those whose mode it read. `draws`: the number of draws.
    """

    opened: list[Source]
    looked_at: list[Source]
    draws: int


def note_opened(source: Source) -> None:
    """Note that the code of this thread's item opens a file."""
    _looks.opened.append(source)


def with_mode(mode: PlannedMode, make: Callable[[], Any]) -> tuple[Any, Looks]:
    """Call `make`, in which all image files count as having this mode. Return its result, and what its code did."""
    before = vars(_looks).copy()
    _looks.mode, _looks.opened, _looks.sources, _looks.draws = mode, [], [], 0
    try:
        made = make()
        return made, Looks(_looks.opened, _looks.sources, _looks.draws)
    finally:
        vars(_looks).update(before)


class Chain:
    """The transforms applied to a planned image, in order.

    Equal chains are one object: `after` returns the same one for the same transform. `trace`: translates the script's own
    transforms. `draws`: whether the last transform draws random numbers.
    """

    __slots__ = ("_next", "_trace", "draws", "is_tensor", "operations")

    def __init__(self, trace: Trace, operations: tuple[Any, ...] = (), *, is_tensor: bool = False, draws: bool = False) -> None:
        self._trace = trace
        self.operations = operations
        self.is_tensor = is_tensor
        self.draws = draws
        self._next: dict[int, tuple[Any, Chain | None]] = {}  # the transform is kept, so that its id stays its own

    def after(self, operation: Any) -> Chain | None:
        """Return the chain with one more transform. None if headrace does not know the transform."""
        known = self._next.get(id(operation))
        if known is None:
            chain = None
            if is_known(operation, self._trace):
                tensor = self.is_tensor or makes_tensor(operation)
                draws = is_random(operation, self._trace)
                chain = Chain(self._trace, (*self.operations, operation), is_tensor=tensor, draws=draws)
            known = self._next[id(operation)] = (operation, chain)
        return known[1]


class _Planned:
    """Base of stand-ins: special methods that Python calls by itself (`__len__`, `__iter__` …) are refused."""

    __slots__ = ()

    def _refuse(self, *_: Any) -> NoReturn:
        raise NotUnderstood(f"its items look at {self.words()}")

    def words(self) -> str:
        """Return the plural noun phrase for these stand-ins in messages, such as "images"."""
        return "images"

    __array__ = __bytes__ = __eq__ = __format__ = __getitem__ = __index__ = __int__ = __iter__ = __len__ = _refuse
    __add__ = __radd__ = __mul__ = __rmul__ = __sub__ = __rsub__ = __truediv__ = __lt__ = __gt__ = __le__ = __ge__ = _refuse
    __repr__ = __str__ = __hash__ = __contains__ = __reduce_ex__ = __copy__ = __deepcopy__ = __fspath__ = _refuse


class PlannedFile(_Planned):
    """Stand-in for an opened image file, or for its bytes."""

    __slots__ = ("source",)

    def __init__(self, source: Source) -> None:
        self.source = source

    def words(self) -> str:
        """Return the plural noun phrase for these stand-ins in messages, such as "images"."""
        return "the bytes of files"

    def __enter__(self) -> PlannedFile:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing: no file is open."""


class PlannedImage(_Planned):
    """Stand-in for a Pillow image of a file.

    `is_rgb`: the code has converted it to RGB; otherwise it is RGB only if the file is. `is_upright`: the code has turned it by
    its EXIF orientation. `draws`: the numbers of the random draws that made it.
    """

    __slots__ = ("chain", "draws", "is_rgb", "is_upright", "source")

    def __init__(
        self, source: Source, chain: Chain, *, is_rgb: bool, is_upright: bool = False, draws: tuple[int, ...] = ()
    ) -> None:
        self.source = source
        self.chain = chain
        self.is_rgb = is_rgb
        self.is_upright = is_upright
        self.draws = draws

    def __bool__(self) -> bool:
        return True  # as Pillow's images

    def __enter__(self) -> PlannedImage:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing: no file is open."""

    def method(self, name: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Return the result of a Pillow method on the image. Refuse methods that need pixels."""
        if name == "convert" and (*arguments, *named.values()) == ("RGB",) and set(named) <= {"mode"}:
            if (
                self.chain.operations and not self.is_rgb
            ):  # of an RGB image it changes nothing, of others not the same as at first
                if _looks.mode != "RGB":
                    raise NotUnderstood("its items convert images behind a transform")
                return self
            return PlannedImage(self.source, self.chain, is_rgb=True, is_upright=self.is_upright, draws=self.draws)
        if name == "copy" and not (arguments or named):
            return self
        if name in ("load", "close") and not (arguments or named):
            return None
        raise NotUnderstood(f"its items use Image.{name}")

    def attribute(self, name: str) -> Any:
        """Return an attribute of the image: only its mode, which native code then compares with that of the file."""
        if name == "mode" and self.is_rgb:
            return "RGB"
        if name == "mode" and not self.chain.operations:
            _looks.sources.append(self.source)
            return _looks.mode
        raise NotUnderstood(f"its items use Image.{name}")

    def transformed(self, operation: Any) -> PlannedImage | PlannedView | None:
        """Return the image after a transform. None if headrace does not know the transform."""
        chain = self.chain.after(operation)
        if chain is None:
            return None
        made = PlannedView if chain.is_tensor else PlannedImage
        draws = _drawn(self.draws, chain)
        return made(self.source, chain, is_rgb=self.is_rgb, is_upright=self.is_upright, draws=draws)

    def upright(self) -> PlannedImage:
        """Return the image turned by its EXIF orientation."""
        if self.chain.operations:
            raise NotUnderstood("its items turn images by their EXIF orientation behind a transform")
        return PlannedImage(self.source, self.chain, is_rgb=self.is_rgb, is_upright=True)


class PlannedView(_Planned):
    """Stand-in for the image tensor that a chain of transforms makes of a file.

    `memory`: the same object for views of which one was made from the other, so that their tensors may share memory.
    """

    __slots__ = ("chain", "draws", "is_rgb", "is_upright", "memory", "source")

    def __init__(
        self, source: Source, chain: Chain, *, is_rgb: bool, is_upright: bool = False, draws: tuple[int, ...] = ()
    ) -> None:
        self.source = source
        self.chain = chain
        self.is_rgb = is_rgb
        self.is_upright = is_upright
        self.draws = draws
        self.memory = object()

    def words(self) -> str:
        """Return the plural noun phrase for these stand-ins in messages, such as "images"."""
        return "the tensors of their images"

    def transformed(self, operation: Any) -> PlannedView | None:
        """Return the tensor after a transform. None if headrace does not know the transform."""
        chain = self.chain.after(operation)
        if chain is None:
            return None
        draws = _drawn(self.draws, chain)
        made = PlannedView(self.source, chain, is_rgb=self.is_rgb, is_upright=self.is_upright, draws=draws)
        made.memory = self.memory
        return made


def _drawn(before: tuple[int, ...], chain: Chain) -> tuple[int, ...]:
    """Return the draws of what the last transform of a chain makes, behind those `before` it."""
    if not chain.draws:
        return before
    _looks.draws += 1
    return (*before, _looks.draws - 1)


def path_text(path: Any) -> str | None:
    """Return a path (str, bytes or one of `pathlib`) as text. None for any other object: its class says what its path is."""
    is_path = isinstance(path, pathlib.PurePath) and type(path).__fspath__ is pathlib.PurePath.__fspath__
    return os.fsdecode(path) if is_path or isinstance(path, str | bytes) else None


def source_name(source: Source) -> str:
    """Return the path of an image file; for bytes in memory `bytes.jpg` (or the extension of their format)."""
    if isinstance(source, str):
        return source
    if source[:4] == b"RIFF" and source[8:12] == b"WEBP":
        return "bytes.webp"
    return "bytes" + next((ending for begin, ending in SIGNATURES if source.startswith(begin)), "")
