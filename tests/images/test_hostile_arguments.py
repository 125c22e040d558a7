"""Every function of the native module with hostile arguments: an ordinary exception or a result, never a panic or a signal."""

from __future__ import annotations

import math
import os
import random
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from headrace import _native
from headrace.errors import HeadraceError
from sample_images import photograph

CALLS = 400  # of each function

# Exceptions that callers expect. A panic that the module's guard has caught is a HeadraceError that says "internal error".
ALLOWED = (TypeError, ValueError, OverflowError, OSError, MemoryError, BufferError, RuntimeError, HeadraceError)

NUMBERS: list[Any] = [
    0,
    1,
    -1,
    2,
    3,
    7,
    64,
    255,
    256,
    65_535,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**32,
    2**63 - 1,
    2**63,
    2**64 - 1,
    2**64,
]
ODD: list[Any] = [None, "x", b"x", 1.5, float("nan"), [], {}, object()]
REALS: list[Any] = [0.0, 0.5, 1.0, -1.0, 3.0, 1e-300, 1e300, 1e19, float("inf"), float("-inf"), float("nan")]
WORDS: list[Any] = [
    "",
    "bilinear",
    "nearest",
    "bilinear or bicubic",
    "lanczos",
    "hwc",
    "chw",
    "rgb",
    "gray",
    "resize",
    "\0",
    "\ud800",
    "ü" * 300,
]
BOXES: list[Any] = [
    (0, 0, 1, 1),
    (0, 0, 40, 30),
    (-1, -1, 5, 5),
    (5, 5, -5, -5),
    (0, 0, 0, 0),
    (2**31, 2**31, 2**31, 2**31),
    (39, 29, 2, 2),
    (0, 0, 2**63 - 1, 2**63 - 1),
    (2**64, 0, 1, 1),
    (0, 0, 1),
    (0.5, 0, 1, 1),
    "box",
]


def tiled_planes() -> bytes:
    """Return a TIFF of RGB planes in tiles, which made the TIFF library panic."""
    tags = [
        (256, 3, 1, 32),
        (257, 3, 1, 32),
        (258, 3, 1, 8),
        (259, 3, 1, 1),
        (262, 3, 1, 2),
        (277, 3, 1, 3),
        (284, 3, 1, 2),
        (322, 3, 1, 16),
        (323, 3, 1, 16),
        (324, 4, 12, 200),
        (325, 4, 12, 248),
    ]
    directory = struct.pack("<H", len(tags)) + b"".join(struct.pack("<HHII", *tag) for tag in tags) + bytes(4)
    head = (struct.pack("<2sHI", b"II", 42, 8) + directory).ljust(200, b"\0")
    places = struct.pack("<12I", *(296 + 256 * number for number in range(12)))
    return head + places + struct.pack("<12I", *[256] * 12) + bytes(range(256)) * 12


def images() -> list[bytes]:
    """Return sound, cut and forged files of every format."""
    import io

    made = []
    for kind, options in [
        ("JPEG", {}),
        ("JPEG", {"progressive": True}),
        ("PNG", {}),
        ("GIF", {}),
        ("WEBP", {}),
        ("BMP", {}),
        ("TIFF", {}),
        ("PPM", {}),
    ]:
        file = io.BytesIO()
        photograph(40, 30, seed=2).convert("P" if kind == "GIF" else "RGB").save(file, kind, **options)
        made.append(file.getvalue())
    huge = [
        made[0][: made[0].index(b"\xff\xc0") + 5] + b"\xff\xff\xff\xff" + made[0][made[0].index(b"\xff\xc0") + 9 :],
        made[2][:16] + b"\x7f\xff\xff\xff" * 2 + made[2][24:],
        made[3][:6] + b"\xff\xff\xff\xff" + made[3][10:],
        made[5][:18] + b"\xff\xff\xff\x7f" * 2 + made[5][26:],
        made[5][:18] + b"\x00\x00\x00\x80" * 2 + made[5][26:],
        b"P6 99999999 99999999 255 ",
        made[6].replace(struct.pack("<HHII", 256, 3, 1, 40), struct.pack("<HHII", 256, 4, 1, 2**32 - 1)),
    ]
    return [
        *made,
        *huge,
        *(image[: len(image) // 2] for image in made),
        tiled_planes(),
        b"",
        b"\xff",
        b"\xff\xd8",
        b"II*\0" * 9,
        bytes(500),
    ]


class Pools:
    """Values to choose arguments from, and objects of the module's classes."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.images = images()
        (folder / "file").write_bytes(self.images[0])
        os.mkfifo(folder / "pipe")
        self.paths = [str(folder / name) for name in ("file", "pipe", "missing", ".", "a/b", "\udcff")] + [b"\0", ""]
        self.folder = folder

    def one(self, *pools: list[Any]) -> Any:
        """Return a value of the pools, or, now and then, one that fits no argument."""
        return self.rng.choice(ODD) if self.rng.random() < 0.06 else self.rng.choice(self.rng.choice(pools))

    def number(self) -> Any:
        return self.one(NUMBERS, [1, 2, 8, 16])

    def few(self) -> Any:
        """A number of threads, of which each starts one."""
        return self.one([-1, 0, 1, 2, 5])

    def real(self) -> Any:
        return self.one(REALS)

    def word(self) -> Any:
        return self.one(WORDS)

    def flag(self) -> Any:
        return self.one([True, False])

    def path(self) -> Any:
        return self.one(self.paths)

    def data(self) -> Any:
        """Bytes, or another object with memory."""
        image = self.rng.choice(self.images)
        array = np.frombuffer(image, dtype=np.uint8)
        kinds = [
            image,
            bytearray(image),
            memoryview(image),
            memoryview(image)[::2],
            array,
            array.astype(np.float64),
            array[:0],
            array[:0].reshape(0, 3),
        ]
        return self.one(kinds)

    def memory(self) -> Any:
        """Memory to write to: right, too small, read-only, strided, of another type."""
        shape = self.rng.choice(
            [(2, 8, 8, 3), (1, 8, 8, 3), (1, 16, 16, 3), (0,), (1,), (192,), (384,), (5, 5), (3, 256), (768,)]
        )
        array = np.zeros(
            shape, dtype=self.rng.choice([np.uint8, np.uint8, np.float32, np.int64, np.uint64, np.int32, np.uint16, np.uint32])
        )
        read_only = array.copy()
        read_only.setflags(write=False)
        return self.one(
            [array, array, array, array, read_only, array[::2], array.T, bytes(192), bytearray(192), array.astype(object)]
        )

    def several(self, make: Callable[[], Any], count: int | None = None) -> Any:
        length = self.rng.choice([0, 1, 2, 2, 3]) if count is None or self.rng.random() < 0.1 else count
        return [make() for _ in range(length)] if self.rng.random() > 0.03 else self.rng.choice(ODD)

    def box(self) -> Any:
        return self.one(BOXES, [None, (0, 0, 8, 8), (1, 2, 20, 20)])

    def pair(self) -> Any:
        return (self.number(), self.number())

    def maybe(self, make: Callable[[], Any]) -> Any:
        return None if self.rng.random() < 0.5 else make()

    def item(self) -> Any:
        source = self.data() if self.rng.random() < 0.7 else self.path()
        size = self.one([None, (8, 8), (8, 8), (0, 0), (2**32 - 1, 2**32 - 1), (1, 2**20), (-1, 3)])
        whole = (
            source,
            self.box(),
            size,
            self.one(WORDS[1:5]),
            self.one([None, (0, 0, 8, 8), *BOXES]),
            self.flag(),
            self.flag(),
        )
        return whole if self.rng.random() > 0.05 else whole[:5]

    def operation(self) -> Any:
        """An operation of the native engine with values that mostly fit its fields."""
        name, _, fields = self.rng.choice(_native.operation_schema())
        values = {field[0]: self.value(*field[1:]) for field in fields if self.rng.random() > 0.02}
        if self.rng.random() < 0.02:
            values["none"] = self.real()
        return ("none" if self.rng.random() < 0.02 else name, values if self.rng.random() > 0.02 else self.one(ODD))

    def value(self, kind: str, count: int, is_optional: bool, choices: list[str], limits: tuple[float, float] | None) -> Any:
        """A value of a field: the ends of its range and beyond, a few others, sometimes of another kind."""
        if is_optional and self.rng.random() < 0.5:
            return None
        if kind == "flag":
            return self.flag()
        if kind == "choice":
            return self.one(choices, choices, choices, WORDS)
        if kind == "filters":
            return tuple(self.one(choices) for _ in range(self.rng.choice([1, 1, 2, 3, 9])))
        least, most = limits or (-8, 2**20)
        usual: list[Any] = [least, most, min(most, 2), min(most, 8), (least + min(most, 224)) / 2]
        numbers = [usual, usual, usual, REALS, [least - 1, most + 1]]
        if kind == "integer":
            numbers = [[int(one) for one in usual]] * 4 + [NUMBERS]
        return self.one(*numbers) if count == 1 else tuple(self.one(*numbers) for _ in range(count))

    # Objects.

    def index(self) -> _native.Index:
        return _native.Index.build(self.images[0])

    def index_store(self) -> _native.IndexStore:
        return _native.IndexStore(1 << 20)

    def store(self) -> _native.Store:
        table = self.rng.choice([None, np.zeros((3, 256), np.float32), np.zeros((3, 256), np.uint16)])
        return _native.Store(self.rng.choice(["hwc", "chw"]), table)

    def program(self) -> _native.Program:
        operations = [("resize_exact", {"size": (8, 8), "interpolation": "bilinear"})]
        for _ in range(20):
            try:
                return _native.Program(
                    [*(self.operation() for _ in range(self.rng.randrange(3))), *operations], self.rng.random() < 0.5
                )
            except ALLOWED:
                continue
        return _native.Program(operations)

    def table(self) -> _native.Table:
        files = [str(self.folder / name) for name in ("file", "pipe", "missing")]
        number = np.array([0, 1, 2, 0], dtype=np.int32)
        size = self.rng.choice([np.array([-1, -1, -1, -1]), np.array([10, -1, 9, 2**62]), np.array([0, 0, 0, 0])])
        return _native.Table(files, number, np.array([0, 0, 5, self.rng.choice([0, 2**62])]), size)

    def plan(self) -> _native.CudaPlan:
        return _native.CudaPlan([self.images[0]], 8, 8, None, None, None, None, 1 << 20, 1)

    def recipe(self) -> _native.PackRecipe:
        return _native.PackRecipe(
            self.rng.choice(["bytes", "decodable", "marked"]), 32, quality=self.rng.choice([None, 1, 75, 100])
        )


def submit(pools: Pools) -> None:
    engine = _native.Engine(2)
    count = 2
    records = pools.one(
        [np.array([0, 3]), np.array([0, 9]), np.array([-1, 2**62]), np.array([0]), np.array([0, 1], np.float64)]
    )
    draws = pools.one([np.zeros(count, np.uint64), np.zeros(1, np.uint64), np.zeros(count, np.int8)])
    files = pools.maybe(
        lambda: (pools.several(lambda: pools.path() if pools.flag() else pools.data(), 2), True, False, pools.index_store())
    )
    masks = pools.maybe(lambda: (pools.table(), pools.memory(), pools.number()))
    out = np.zeros((count, 8, 8, 3 * 4), np.uint8) if pools.rng.random() < 0.7 else pools.memory()
    further = pools.maybe(lambda: [(pools.program(), pools.store(), pools.number(), pools.memory(), None)])
    data = pools.maybe(lambda: pools.several(lambda: pools.rng.choice(pools.images), 2))
    try:
        job = engine.submit(
            pools.table(),
            pools.program(),
            pools.store(),
            pools.number(),
            pools.number(),
            records,
            draws,
            out,
            data,
            masks,
            further,
            files,
        )
        job.wait(pools.real())
        job.cancel()
        job.statuses()
    finally:
        engine.close()


def submit_items(pools: Pools) -> None:
    engine = _native.Engine(1)
    try:
        targets = pools.several(lambda: (pools.store(), pools.memory()), 1)
        job = engine.submit_items(
            pools.several(pools.item), targets, pools.maybe(lambda: pools.several(pools.pair)), pools.maybe(pools.index_store)
        )
        job.wait(pools.real())
    finally:
        engine.close()
        engine.close()
        engine.counters()


def ring(pools: Pools) -> None:
    made = _native.Ring(pools.one([0, 1, 4097, 2**45, 2**62, 2**63 - 1, 2**64 - 1]), pools.number())
    held = [made.take(), made.take()]
    made.counts()
    del held


def blur_weights(pools: Pools) -> None:
    _native.hold_blur_weights()
    _native.hold_blur_weights()
    _native.release_blur_weights()
    _native.release_blur_weights()


def table(pools: Pools) -> None:
    count = 3

    def column(kind: Any) -> Any:
        odd = np.ones(1, kind) if kind == np.uint32 else np.full(count, -1, kind)
        return pools.one([np.zeros(count, kind), odd, np.zeros(1, kind), pools.memory()])

    made = _native.Table(
        pools.several(pools.path, 1),
        column(np.int32),
        column(np.int64),
        column(np.int64),
        pools.number(),
        pools.maybe(pools.path),
        pools.number(),
        pools.maybe(pools.path),
        pools.maybe(lambda: pools.one([np.array([5, 2**62, -1]), np.zeros(3, np.int64)])),
        pools.maybe(lambda: column(np.uint32)),
    )
    assert len(made) >= 0
    made.indexes_found(), made.cache_counts(), made.index_bytes()
    made.flush_indexes()
    made.abandon()


def program(pools: Pools) -> None:
    made = pools.program()
    assert made.out
    sides = [pools.one([1, 2, 40, 65_535, 2**32 - 1]) for _ in range(2)]
    for method in (made.parameters, made.place, made.split):
        try:
            method(*sides, pools.number(), pools.number(), pools.number())
        except ALLOWED as error:
            assert "internal error" not in str(error), (sides, error)


STATE = bytes(7500)


def stream(pools: Pools) -> None:
    made = _native.Stream(pools.one([STATE, STATE, STATE[1:], pools.data()]), pools.one([[], [(0.5, 2.0)], [(2.0, math.nan)]]))
    assert len(made.state()) == len(STATE)
    made.arguments(pools.one([0, 5, 1000, -1]), pools.one([0, 3]))
    made.extend(pools.data())
    pools.program().replayed(40, 30, _native.DrawPlan([("torch_crop", [0.0])], []), made)
    made.restart(pools.one([STATE, pools.data()]))


def draw_plan(pools: Pools) -> None:
    names = ["fixed", "torch", "torch_crop", "python_crop", "random_crop", "affine", "decision", "value", "other"]
    draws = [(pools.one(names), pools.several(pools.real)) for _ in range(3)]
    made = _native.DrawPlan(draws, pools.one([[], [([0.0, 0.0, 0.5], (0.1, 0.2), 0, [b"", b"1", pools.data()])]]))
    made.most_words(pools.program())
    assert made.is_fixed in (True, False)


def served_blur_weights(pools: Pools) -> None:
    _native.serve_blur_weights(pools.flag())
    _native.serve_blur_weights(False)
    assert _native.wanted_blur_weights() is None


def cuda_plan(pools: Pools) -> None:
    count = pools.rng.choice([0, 1, 2])
    made = _native.CudaPlan(
        pools.several(pools.data, count),
        pools.one([8, 8, 8, *NUMBERS]),
        pools.one([8, 8, 8, *NUMBERS]),
        pools.maybe(lambda: pools.several(pools.box, count)),
        pools.maybe(lambda: pools.several(pools.flag, count)),
        pools.maybe(lambda: pools.several(pools.pair, count)),
        pools.maybe(lambda: pools.several(pools.box, count)),
        pools.one([0, 1 << 20, *NUMBERS]),
        pools.few(),
    )
    assert made.groups is not None and max(made.refusals, default=0) <= 5
    made.fill(np.zeros(made.size, np.uint8) if pools.rng.random() < 0.8 else pools.memory(), pools.few())


def decode_into(pools: Pools) -> None:
    count = 2
    _native.decode_into(
        pools.several(pools.data, count),
        pools.memory(),
        pools.one([8, 8, 8, *NUMBERS]),
        pools.one([8, 8, 8, *NUMBERS]),
        pools.maybe(lambda: pools.several(pools.box, count)),
        pools.maybe(lambda: pools.several(pools.flag, count)),
        pools.few(),
        pools.one(["bilinear", *WORDS]),
        pools.flag(),
        pools.maybe(lambda: pools.several(lambda: pools.one([None, pools.index()]), count)),
        pools.flag(),
        pools.maybe(lambda: pools.several(pools.pair, count)),
        pools.maybe(lambda: pools.several(pools.box, count)),
    )


def fill_items(pools: Pools) -> None:
    targets = pools.several(lambda: (pools.store(), pools.memory()), 1)
    places = pools.maybe(lambda: pools.several(lambda: pools.one([(0, 0), (0, 192), (1, 0), (2**63, 2**63), (0, 2**64 - 1)])))
    _native.fill_items(pools.several(pools.item), targets, places, pools.few(), pools.maybe(pools.index_store))


def index(pools: Pools) -> None:
    made = _native.Index.build(pools.data())
    assert made.rows >= 0 and made.size_bytes > 0
    changed = bytearray(made.to_bytes())
    changed[pools.rng.randrange(len(changed))] ^= 1 << pools.rng.randrange(8)
    _native.Index.from_bytes(bytes(changed))


def index_store(pools: Pools) -> None:
    made = _native.IndexStore(pools.number(), pools.maybe(pools.path), pools.number())
    made.counts()
    made.close()


def pack_records(pools: Pools) -> None:

    def record() -> Any:
        return (pools.path(), *(pools.number() for _ in range(4)), pools.word(), pools.number())

    for first, members, rows in _native.pack_records(pools.recipe(), pools.several(record)):
        assert first >= 0 and bytes(members) and rows


# How each callable name of the module is called. Functions of `Pools` stand for arguments, in order.
HOSTILE: dict[str, Callable[[Pools], Any]] = {
    "list_images": lambda p: _native.list_images(p.path(), p.word(), p.one([[".jpg"], [""], WORDS]), [".gif"]),
    "change_number": lambda p: _native.change_number(p.number(), p.number()),
    "text_hashes": lambda p: _native.text_hashes(
        p.data(), p.one([np.array([0, 1, 3]), np.array([2, 1]), p.memory()]), p.flag()
    ),
    "file_facts": lambda p: _native.file_facts(
        p.path(), p.data(), p.one([np.array([0, 1, 3]), np.array([2, 1]), p.memory()]), p.flag()
    ),
    "order_numbers": lambda p: _native.order_numbers(
        p.data(), p.one([np.array([0, 1, 3]), np.array([2, 1]), p.memory()]), bytes(p.one([0, 15, 16, 17]))
    ),
    "keys_of_names": lambda p: _native.keys_of_names(
        p.data(), p.one([np.array([0, 1, 3]), np.array([-1, 2**62]), p.memory()]), p.one([np.zeros(2, np.uint8), p.memory()])
    ),
    "hashed": lambda p: _native.hashed(*(p.number() for _ in range(p.rng.randrange(4)))),
    "permute": lambda p: _native.permute(p.memory(), p.number(), p.number(), p.memory()),
    "follow_pillow": lambda p: _native.follow_pillow(p.number()),
    "pillow_affine": lambda p: _native.pillow_affine(
        bytes(p.one([0, 3, 300, 3000])),
        p.one([(1, 1), (10, 10), (2**31, 2**31), (0, 5)], [p.pair()]),
        p.one([(1, 1), (30, 25), (2**31, 2**30), (2**32 - 1, 2**32 - 1), (0, 0)], [p.pair()]),
        [p.real() for _ in range(p.one([6, 6, 6, 5]))],
        p.one(["nearest", "bilinear", "bicubic"], [p.word()]),
        p.one([(0, 0, 0), (1, 255, 3), (256, 0, 0), (1, 2)]),
        bytes(p.one([0, 15])),
    ),
    "pillow_blur": lambda p: _native.pillow_blur(p.data(), p.number(), p.real()),
    "give_blur_weights": lambda p: _native.give_blur_weights(p.pair(), p.real(), p.number(), p.data()),
    "serve_blur_weights": served_blur_weights,
    "wanted_blur_weights": served_blur_weights,
    "Stream": stream,
    "DrawPlan": draw_plan,
    "quiet_orientation": lambda p: _native.quiet_orientation(p.data(), p.flag()),
    "hold_blur_weights": blur_weights,
    "release_blur_weights": blur_weights,
    "torch_blur_sums": lambda p: _native.torch_blur_sums(
        bytes(p.one([0, 3, 300, 3000])),
        p.one([1, 5, 10, *NUMBERS]),
        p.one([(1, 1), (3, 3), (9, 1), (1, 2**63 + 1), (0, 0)]),
        bytes(p.one([0, 4, 36])),
    ),
    "image_size": lambda p: _native.image_size(p.data()),
    "sound_jpeg": lambda p: _native.sound_jpeg(p.data()),
    "jpeg_shape": lambda p: _native.jpeg_shape(p.data()),
    "decode_sound_jpeg": lambda p: _native.decode_sound_jpeg(
        p.data(),
        p.one([40, *NUMBERS]),
        p.one([30, *NUMBERS]),
        p.word(),
        p.one([np.zeros(3600, np.uint8), p.memory()]),
        p.one([None, "scalar", "avx2", "x"]),
    ),
    "jpeg_facts": lambda p: _native.jpeg_facts(p.data()),
    "reference_decode": lambda p: _native.reference_decode(p.data(), p.box(), p.flag()),
    "decode_into": decode_into,
    "fill_items": fill_items,
    "Index": index,
    "CudaPlan": cuda_plan,
    "IndexStore": index_store,
    "Program": program,
    "Table": table,
    "Store": lambda p: _native.Store(p.word(), p.memory()),
    "Engine": submit,
    "Job": submit_items,
    "Ring": ring,
    "crc32c": lambda p: _native.crc32c(p.data(), p.number()),
    "PackRecipe": lambda p: _native.PackRecipe(
        p.one(["bytes", "marked", *WORDS]),
        p.number(),
        quality=p.number(),
        above_quality=p.number(),
        bound=p.word(),
        length=p.number(),
    ),
    "pack_records": pack_records,
    "encode_jpeg": lambda p: _native.encode_jpeg(
        bytes(p.one([0, 3, 192, 3600])),
        p.one([1, 8, 40, *NUMBERS]),
        p.one([1, 8, 30, *NUMBERS]),
        p.one([1, 75, 100, 0, 101]),
        p.number(),
        p.flag(),
        p.maybe(p.data),
    ),
    "requantise_jpeg": lambda p: _native.requantise_jpeg(p.data(), p.one([1, 75, 100, 0, 101]), p.number()),
    "restart_markers": lambda p: _native.restart_markers(p.data(), p.number(), p.flag()),
    "operation_schema": lambda p: _native.operation_schema(),
    "status_names": lambda p: _native.status_names(),
}


def call_all(names: list[str], seed: int) -> list[str]:
    """Call each function with chosen arguments; return what went wrong."""
    with tempfile.TemporaryDirectory() as folder:
        problems = []
        for name in names:
            place = Path(folder, name)
            place.mkdir()
            pools = Pools(place, seed)
            for number in range(CALLS):
                print(f"{name} {number}", flush=True)  # the last words of a process that a signal ends
                try:
                    HOSTILE[name](pools)
                except ALLOWED as error:
                    if "internal error" in str(error):
                        problems.append(f"{name}, call {number}: {error}")
                except BaseException as error:
                    problems.append(f"{name}, call {number}: {type(error).__name__}: {error}")
        return problems


def test_every_name_of_the_module_is_called_with_hostile_arguments() -> None:
    names = {name for name in dir(_native) if not name.startswith("_") and callable(getattr(_native, name))}
    assert names - {"provoke_panic"} == set(HOSTILE)


@pytest.mark.matrix(keep=1)
@pytest.mark.parametrize("seed", [1, 2])
def test_hostile_arguments_raise_ordinary_exceptions(seed: int) -> None:
    result = subprocess.run(
        [sys.executable, __file__, str(seed)],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert result.returncode == 0, (result.returncode, result.stdout[-3000:], result.stderr[-3000:])


if __name__ == "__main__":
    found = call_all(sys.argv[2:] or list(HOSTILE), int(sys.argv[1]))
    print("\n" + "\n".join(found))
    sys.exit(bool(found))
