"""Lazy Pillow images: instances of Pillow's own classes that are decoded when their pixels are first used.

An opened JPEG goes through three stages. Each is a subclass of the class that the script sees (`isinstance`, `__class__`):

1. `OpenedJpeg`: Pillow has read the header. Everything but the operations below works as in Pillow.
2. `LoadedJpeg`: an operation needed pixels. The file is read, checked and closed, as Pillow's `load` does, but not decoded.
3. `LazyImage`: the result of an operation: a description of the pixels (`image_description`).

`convert("RGB")`, `crop`, `resize`, `transpose` and `copy` of a lazy image give a lazy image, where one decode, one crop and one
resize give the pixels bit for bit. Whatever else needs pixels finds `_im`, a property that decodes them once. The object then
becomes an ordinary image of Pillow's class for good. A file that Pillow would not decode without an error never becomes lazy:
its error is raised where Pillow raises it.

Operations that the script itself has replaced (`Image.Image.resize = …`) are not lazy. Versions: Pillow 11.3 and later.
"""

from __future__ import annotations

import io
import operator
import os
import stat
import types
from typing import Any

from PIL import Image, ImageFile
from PIL.JpegImagePlugin import JpegImageFile

from headrace._native import sound_jpeg
from headrace.accelerate.lazy.image_description import (
    ImageDescription,
    current_batch,
    pixels,
    pixels_by_pillow,
    plain_pixels,
    ppm_head,
    whole_image,
)
from headrace.accelerate.lazy.native_work import note_native
from headrace.accelerate.runtime.first_results import FirstResults
from headrace.accelerate.runtime.shared_indexes import process_indexes
from headrace.accelerate.script.replaced_functions import foreign_reader, is_own_function
from headrace.accelerate.workers.unheard_warnings import unheard_warnings
from headrace.errors import HeadraceError

__all__ = [
    "OPERATIONS",
    "LazyImage",
    "LoadedJpeg",
    "OpenedJpeg",
    "compare_first_images",
    "derived",
    "description_of",
    "first_images_equal",
    "ordinary",
    "pixel_source",
    "unchanged_operations",
]

OPERATIONS = ("convert", "crop", "resize", "transpose", "copy", "load")
"""Methods of Pillow's `Image` that lazy images replace: they decode no pixels."""

LARGEST = 1 << 26
"""Results of more pixels are computed by Pillow at once, which reports when memory is short."""

LONGEST = 1 << 20
"""Resized images with a longer side, in pixels, are computed by Pillow at once, which reports when memory is short."""

COMPARED_IMAGES = 3
"""Number of first images per process that are decoded with Pillow too. If one differs, the process makes no lazy images."""

_STATE = "_undecoded"
"""Name of the attribute that holds the description of a lazy image, in place of Pillow's `_im`."""

_BATCH = "_made_in"
"""Name of the attribute that holds the number of the batch in which a lazy image was made."""

_FILTERS = {
    int(getattr(Image.Resampling, name.upper())): name
    for name in ("nearest", "box", "bilinear", "hamming", "bicubic", "lanczos")
}
_FLIPS = {
    int(Image.Transpose.FLIP_LEFT_RIGHT): (True, False),
    int(Image.Transpose.FLIP_TOP_BOTTOM): (False, True),
    int(Image.Transpose.ROTATE_180): (True, True),
}
_MODES = {1: "L", 3: "RGB"}
_pillows_own = {name: getattr(Image.Image, name) for name in OPERATIONS}
_copied_info = getattr(Image.Image, "_copy_info", None) or (lambda image: image.info.copy())
_set_class = object.__dict__["__class__"].__set__


def unchanged_operations() -> str | None:
    """Return None if Pillow's methods are its own, or the name of a method that the script or a package has replaced."""
    for name, function in _pillows_own.items():
        found = getattr(Image.Image, name)
        if found is not function or getattr(found, "__module__", "") != "PIL.Image" or not is_own_function(found):
            return f"PIL.Image.Image.{name}"
    if (reader := foreign_reader()) is not None:
        return reader
    for kind in (JpegImageFile, ImageFile.ImageFile):  # a method of theirs comes before that of all images
        for name, function in vars(kind).items():
            if isinstance(function, types.FunctionType) and not is_own_function(function):
                return f"{kind.__module__}.{kind.__name__}.{name}"
    return None if JpegImageFile.load is ImageFile.ImageFile.load else "PIL.JpegImagePlugin.JpegImageFile.load"


def description_of(image: Any) -> ImageDescription | None:
    """Return the description of a lazy RGB image that is not decoded yet. None for any other object."""
    kind = type(image)
    if kind is OpenedJpeg and image._mode == "RGB":
        return _loaded(image)
    if kind is LazyImage or (kind is LoadedJpeg and image._mode == "RGB"):
        return _of_this_batch(image)
    return None


def _of_this_batch(image: Any) -> ImageDescription | None:
    """Return the description of an image that is not decoded yet.

    None for an image of an earlier batch, which the script keeps: it is decoded now, so that its next use need not decode it.
    """
    found: ImageDescription | None = image.__dict__.get(_STATE)
    if found is not None and image.__dict__.get(_BATCH) != current_batch():
        _decoded(image)
        return None
    return found


class _Operations(Image.Image):
    """Pillow's methods as lazy images have them. Calls with unusual arguments go to Pillow's own method."""

    def convert(self: Any, mode: Any = None, *arguments: Any, **options: Any) -> Any:
        """Pillow's `convert`: the result is lazy for mode "RGB" and without a mode."""
        if not arguments and not options and (mode == "RGB" or (mode is None and self._mode == "RGB")):
            description = _lazily(self, "convert", any_mode=True)
            if description is not None:
                return derived(self, description)
        return _plain(self).convert(mode, *arguments, **options)

    def copy(self: Any) -> Any:
        """Pillow's `copy`: the result is lazy."""
        description = _lazily(self, "copy")
        return derived(self, description) if description is not None else _plain(self).copy()

    __copy__ = copy

    def crop(self: Any, box: Any = None) -> Any:
        """Pillow's `crop`: the result is lazy if the box lies inside the image."""
        cut = _inside(box, *self._size)
        if cut is not None:
            description = _lazily(self, "crop")
            if description is not None:
                note_native("crop")
                return derived(self, description.cropped(*cut))
        return _plain(self).crop(box)

    def resize(self: Any, size: Any, resample: Any = None, box: Any = None, reducing_gap: Any = None) -> Any:
        """Pillow's `resize`: the result is lazy for the first resize, without `box` and `reducing_gap`."""
        target = _target(self._size, size, resample, box, reducing_gap)
        if target is not None:
            description = _lazily(self, "resize")
            if description is not None and target[:2] != self._size:
                description = description.resized(*target)
            if description is not None:
                note_native("resize")
                return derived(self, description)
        return _plain(self).resize(size, resample, box, reducing_gap)

    def transpose(self: Any, method: Any) -> Any:
        """Pillow's `transpose`: the result is lazy for flips and the half turn."""
        flips = _FLIPS.get(method) if isinstance(method, int) else None
        if flips is not None:
            description = _lazily(self, "transpose")
            if description is not None:
                return derived(self, description.flipped(left_right=flips[0], top_bottom=flips[1]))
        return _plain(self).transpose(method)

    def __reduce_ex__(self: Any, protocol: Any) -> Any:
        return _plain(self).__reduce_ex__(protocol)


class _Undecoded(_Operations):
    """Properties that decode the image when Pillow reads its pixels."""

    @property
    def _im(self) -> Any:
        return _decoded(self)

    @_im.setter
    def _im(self, core: Any) -> None:
        self.__dict__["_im"] = core
        _set_class(self, _PLAIN.get(type(self), type(self)))
        _drop_description(self.__dict__)

    @property
    def readonly(self: Any) -> Any:
        """Pillow's attribute `readonly`, False: pixels that are decoded later can be written to."""
        return self.__dict__["_readonly"]

    @readonly.setter
    def readonly(self: Any, readonly: Any) -> None:
        self.__dict__["_readonly"] = readonly

    def load(self: Any) -> Any:
        """Pillow's `load`: the pixels are decoded when the result is used."""
        if Image.Image.load is not _pillows_own["load"]:
            return _plain(self).load()
        return PixelAccess(self)

    @property
    def __array_interface__(self: Any) -> Any:
        description = self.__dict__.get(_STATE)
        if description is None or self._mode != "RGB":
            return _plain(self).__array_interface__
        values = _pixels(description)
        return {"version": 3, "data": values.tobytes(), "shape": values.shape, "typestr": "|u1"}


def _set_scripts_class(image: Any, kind: type) -> None:
    """Set `image.__class__`, as a script does to make it an image of a class of its own."""
    _set_class(_plain(image), kind)


class LazyImage(_Undecoded):
    """The lazy result of an operation (crop, resize …), in mode RGB. The script sees the class `PIL.Image.Image`."""

    __class__ = property(lambda self: Image.Image, _set_scripts_class)


class LoadedJpeg(_Undecoded, JpegImageFile):
    """A JPEG after `load`: the file is read, checked and closed. It is decoded when its pixels are first used."""

    __class__ = property(lambda self: JpegImageFile, _set_scripts_class)


class OpenedJpeg(_Operations, JpegImageFile):
    """A JPEG after `Image.open`: Pillow has read the header only."""

    __class__ = property(lambda self: JpegImageFile, _set_scripts_class)

    def load(self: Any) -> Any:
        """Pillow's `load`: read, check and close the file. The pixels are decoded when the returned object is used."""
        if Image.Image.load is _pillows_own["load"] and _loaded(self) is not None:
            return PixelAccess(self)
        return _plain(self).load()


_PLAIN: dict[type, type] = {LazyImage: Image.Image, LoadedJpeg: JpegImageFile, OpenedJpeg: JpegImageFile}
for _kind, _plain_kind in _PLAIN.items():  # a script may print or compare the name of `type(image)`
    _kind.__name__, _kind.__qualname__, _kind.__module__ = (
        _plain_kind.__name__,
        _plain_kind.__qualname__,
        _plain_kind.__module__,
    )


class PixelAccess:
    """The result of `load()`: pixel access that decodes the image when it is first used."""

    __slots__ = ("_image",)

    def __init__(self, image: Any) -> None:
        self._image = image

    def __getitem__(self, position: Any) -> Any:
        return Image.Image.load(_plain(self._image))[position]

    def __setitem__(self, position: Any, colour: Any) -> None:
        Image.Image.load(_plain(self._image))[position] = colour

    def getpixel(self, position: Any) -> Any:
        """Pillow's `getpixel`."""
        return self[position]

    def putpixel(self, position: Any, colour: Any) -> None:
        """Pillow's `putpixel`."""
        self[position] = colour


def _plain(image: Any) -> Any:
    """Turn an image into one of Pillow's own class, decoded if it was loaded, and return it."""
    if type(image) is OpenedJpeg:
        _set_class(image, JpegImageFile)
    elif type(image) in _PLAIN:
        _decoded(image)
    return image


def _decoded(image: Any) -> Any:
    """Decode a lazy image, and return Pillow's pixel object. Threads that call at the same time get the same object."""
    fields = image.__dict__
    description = fields.get(_STATE)
    if "_im" not in fields and description is not None:
        fields.setdefault("_im", _core(image, description))
    _set_class(image, _PLAIN.get(type(image), type(image)))
    _drop_description(fields)
    return fields["_im"]


def _drop_description(fields: dict[str, Any]) -> None:
    """Remove from the attributes of an image what its class does not have."""
    fields.pop(_STATE, None)
    fields.pop(_BATCH, None)


def _core(image: Any, description: ImageDescription) -> Any:
    if type(image) is LoadedJpeg:
        with unheard_warnings():  # they were given when the image was opened
            whole: Any = JpegImageFile(io.BytesIO(description.source))
            JpegImageFile.load(whole)
        return whole._im
    values = plain_pixels(description) or _pixels(description).data
    decoded: Any = Image.frombytes("RGB", (description.width, description.height), values)
    return decoded._im


def _pixels(description: ImageDescription) -> Any:
    """Decode natively. The first images of a process are compared with Pillow's."""
    try:
        found = pixels(description, process_indexes())
    except HeadraceError:
        return pixels_by_pillow(description)
    if not _first_images.wants():
        return found
    expected = pixels_by_pillow(description)
    _first_images.note(bool((found == expected).all()), what=description[1:])
    return expected


_first_images = FirstResults(COMPARED_IMAGES, "an image came out different; this process decodes with Pillow")


def compare_first_images() -> None:
    """Compare the next decoded images of this process with Pillow's again."""
    _first_images.compare_again()


def first_images_equal() -> bool:
    """Return whether all images of this process that were compared were equal to Pillow's."""
    return _first_images.equal


def _lazily(image: Any, operation: str, *, any_mode: bool = False) -> ImageDescription | None:
    """Return the description to which an operation is added, or None if Pillow's own method must do it."""
    if getattr(Image.Image, operation) is not _pillows_own[operation] or not (any_mode or image._mode == "RGB"):
        return None
    return _loaded(image) if type(image) is OpenedJpeg else _of_this_batch(image)


def derived(image: Any, description: ImageDescription) -> LazyImage:
    """Return a new lazy image with this description and a copy of the `info` of `image`, as Pillow's `_new` does."""
    new = object.__new__(LazyImage)
    fields = new.__dict__
    fields["_mode"] = "RGB"
    fields["_size"] = description.window[2:]
    fields["palette"] = None
    fields["info"] = _copied_info(image)
    fields["_readonly"] = 0
    fields["_exif"] = None
    fields[_STATE], fields[_BATCH] = description, current_batch()
    return new


def ordinary(value: Any) -> Any:
    """Return a decoded Pillow image in place of a lazy one; any other value unchanged."""
    return _plain(value) if type(value) in _PLAIN else value


def pixel_source(image: Any) -> bytes:
    """Return bytes that end in the decoded pixels of an RGB image: raw, or a PPM file. A lazy image stays lazy."""
    if type(image) is not LazyImage or _STATE not in image.__dict__:
        found: bytes = _plain(image).tobytes()
        return found
    description = image.__dict__[_STATE]
    if plain_pixels(description) is None:
        data = ppm_head(description.width, description.height) + _pixels(description).tobytes()
        description = whole_image(data, description.width, description.height)
        image.__dict__[_STATE] = description
    return description.source  # type: ignore[no-any-return]


def _inside(box: Any, width: int, height: int) -> tuple[int, int, int, int] | None:
    """Return left, top, width and height of a crop, as Pillow rounds them. None if the box is not inside the image."""
    if box is None:
        return 0, 0, width, height
    if type(box) not in (tuple, list):
        return None
    try:
        left, top, right, bottom = map(int, map(round, box))
    except (TypeError, ValueError, OverflowError):
        return None
    if not (0 <= left < right <= width and 0 <= top < bottom <= height):
        return None
    limit = Image.MAX_IMAGE_PIXELS
    if limit is not None and (right - left) * (bottom - top) > limit:
        return None
    return left, top, right - left, bottom - top


def _target(own: tuple[int, int], size: Any, resample: Any, box: Any, reducing_gap: Any) -> tuple[int, int, str] | None:
    """Return width, height and filter of a resize. None where Pillow does more than resize the whole image."""
    if (box is not None and (type(box) is not tuple or box != (0, 0, *own))) or not isinstance(resample, int | None):
        return None
    name = _FILTERS.get(int(Image.Resampling.BICUBIC) if resample is None else resample)
    try:
        width, height = map(operator.index, size)
        if reducing_gap is not None and (
            reducing_gap < 1.0 or own[0] / width / reducing_gap >= 2 or own[1] / height / reducing_gap >= 2
        ):
            return None
    except (TypeError, ValueError, ZeroDivisionError):
        return None
    if name is None or not (0 < width <= LONGEST and 0 < height <= LONGEST and width * height <= LARGEST):
        return None
    return width, height, name


def _loaded(image: Any) -> ImageDescription | None:
    """Read, check and close the file of an opened JPEG, as Pillow's `load` does. None: Pillow must load it."""
    tile = image.tile
    if image._im is not None or len(tile) != 1 or image.decoderconfig != () or "transparency" in image.info:
        return None
    width, height = image._size
    if tuple(tile[0]) != ("jpeg", (0, 0, width, height), 0, (image._mode, "")):
        return None
    source = _source(image.fp)
    facts = sound_jpeg(source) if source is not None else None
    if source is None or facts is None or facts[:2] != (width, height) or _MODES[facts[2]] != image._mode:
        return None
    file = image.fp
    fields = image.__dict__
    if image._exclusive_fp:
        file.close()
    else:  # Pillow reads block by block until the decoder has found the end
        block = image.decodermaxblock
        file.seek(min(len(source), -(-facts[3] // block) * block))
    image.fp = None
    image.tile = []
    fields["map"] = None
    fields["_readonly"] = 0
    description = whole_image(source, width, height)
    fields[_STATE], fields[_BATCH] = description, current_batch()
    del fields["_im"]
    _set_class(image, LoadedJpeg)
    note_native("Pillow")
    return description


def _source(file: Any) -> bytes | None:
    """Return all bytes of an open file, or None if it is not a regular one."""
    try:
        if type(file) is io.BytesIO:
            return file.getvalue()
        if type(file) is not io.BufferedReader or type(file.raw) is not io.FileIO:
            return None
        number = file.fileno()
        found = os.fstat(number)
        if not stat.S_ISREG(found.st_mode):
            return None
        return os.pread(number, found.st_size, 0)
    except (ValueError, OSError):
        return None
