"""Types of the compiled module. Internal: use the public names of headrace."""

import os
from collections.abc import Sequence
from typing import Any, TypeAlias, final

import numpy.typing as npt

# What native code reads and writes in place (numpy's stubs declare the buffer protocol from Python 3.12 on only).
_Buffer: TypeAlias = bytes | bytearray | memoryview | npt.NDArray[Any]

# x, y, width, height in pixels.
_Box: TypeAlias = tuple[int, int, int, int]
# Encoded bytes or path; box in the image; (width, height) of the resize; its filter; window of the resized image; flip
# left-right; flip top-bottom.
_Item: TypeAlias = tuple[_Buffer | str | os.PathLike[str], _Box | None, tuple[int, int] | None, str, _Box | None, bool, bool]

__version__: str

def provoke_panic(place: str) -> None: ...
def status_names() -> list[tuple[str, str]]: ...
def hashed(*parts: int) -> int: ...
def permute(positions: _Buffer, size: int, key: int, out: _Buffer) -> None: ...
def follow_pillow(major: int) -> None: ...
def pillow_blur(pixels: bytes, width: int, radius: float) -> bytes: ...
def pillow_affine(
    pixels: bytes,
    size: tuple[int, int],
    out: tuple[int, int],
    map: Sequence[float],
    resample: str,
    fill: Sequence[int],
    head: bytes,
) -> bytes: ...
def give_blur_weights(kernel: tuple[int, int], sigma: float, version: int, weights: bytes) -> None: ...
def hold_blur_weights() -> None: ...
def release_blur_weights() -> None: ...
def torch_blur_sums(pixels: bytes, width: int, kernel: tuple[int, int], weights: bytes) -> bytes: ...
def image_size(data: _Buffer) -> tuple[int, int]: ...
def sound_jpeg(data: bytes) -> tuple[int, int, int, int] | None: ...
def jpeg_shape(data: _Buffer) -> tuple[int, int, int, int] | None: ...
def decode_sound_jpeg(
    data: _Buffer, width: int, height: int, channels: str, out: _Buffer, extension: str | None = None
) -> bool: ...
def jpeg_facts(data: bytes | bytearray) -> tuple[int, int, int, int, str, str, int, int | None]: ...
def reference_decode(data: _Buffer, region: tuple[int, int, int, int] | None = None, keep: bool = True) -> bytes: ...
def decode_into(
    images: Sequence[_Buffer],
    out: _Buffer,
    height: int,
    width: int,
    boxes: Sequence[_Box] | None,
    flips: Sequence[bool] | None,
    threads: int,
    resample: str,
    exif: bool = False,
    indexes: Sequence[Index | None] | None = None,
    dct_scale: bool = False,
    sizes: Sequence[tuple[int, int]] | None = None,
    windows: Sequence[_Box] | None = None,
) -> list[int]: ...
def fill_items(
    items: Sequence[_Item],
    targets: Sequence[tuple[Store, _Buffer]],
    places: Sequence[tuple[int, int]] | None = None,
    threads: int = 1,
    indexes: IndexStore | None = None,
) -> list[int]: ...

@final
class Index:
    @staticmethod
    def build(jpeg: bytes) -> Index: ...
    @staticmethod
    def from_bytes(data: bytes) -> Index: ...
    def to_bytes(self) -> bytes: ...
    @property
    def rows(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...

@final
class CudaPlan:
    def __new__(
        cls,
        images: Sequence[_Buffer],
        height: int,
        width: int,
        boxes: Sequence[_Box] | None,
        flips: Sequence[bool] | None,
        sizes: Sequence[tuple[int, int]] | None,
        windows: Sequence[_Box] | None,
        scratch_bytes: int,
        threads: int,
    ) -> CudaPlan: ...
    @staticmethod
    def layout() -> tuple[list[int], list[int]]: ...
    @property
    def refusals(self) -> bytes: ...
    @property
    def size(self) -> int: ...
    @property
    def groups(self) -> list[tuple[int, int, int, int, int, list[int]]]: ...
    def fill(self, out: _Buffer, threads: int) -> None: ...

@final
class IndexStore:
    def __new__(
        cls, memory_bytes: int = 0, file: str | os.PathLike[str] | None = None, file_bytes: int = 1 << 30
    ) -> IndexStore: ...
    def counts(self) -> tuple[int, int, int]: ...
    def close(self) -> None: ...

@final
class Program:
    def __new__(
        cls, ops: Sequence[tuple[str, Sequence[float], str]], fuse: bool = True, dct_scale: bool = False
    ) -> Program: ...
    @property
    def out(self) -> tuple[int, int]: ...
    def parameters(self, width: int, height: int, seed: int, epoch: int, draw: int) -> list[tuple[str, dict[str, Any]]]: ...
    def torch_blurs(self, seed: int, epoch: int, draws: list[int]) -> list[tuple[int, int, float, int]]: ...
    def colours(self, seed: int, epoch: int, draw: int) -> list[tuple[str, float]]: ...
    def place(
        self, width: int, height: int, seed: int, epoch: int, draw: int
    ) -> tuple[tuple[int, int, int, int], tuple[int, int], tuple[int, int, int, int], bool, bool]: ...
    def split(
        self, width: int, height: int, seed: int, epoch: int, draw: int
    ) -> tuple[
        tuple[tuple[int, int, int, int], tuple[int, int], tuple[int, int, int, int], bool, bool], list[tuple[str, list[float]]]
    ]: ...

@final
class Table:
    def __new__(
        cls,
        files: Sequence[str],
        file: _Buffer,
        offset: _Buffer,
        size: _Buffer,
        index_bytes: int = 0,
        index_file: str | os.PathLike[str] | None = None,
        cache_bytes: int = 0,
        cache_folder: str | os.PathLike[str] | None = None,
        cache_sizes: _Buffer | None = None,
        checksums: _Buffer | None = None,
    ) -> Table: ...
    def indexes_found(self) -> int: ...
    def flush_indexes(self) -> None: ...
    def abandon(self) -> None: ...
    def cache_counts(self) -> tuple[int, int, int] | None: ...
    def index_bytes(self) -> int: ...
    def __len__(self) -> int: ...

@final
class Store:
    def __new__(cls, layout: str, table: _Buffer | None = None) -> Store: ...

@final
class Engine:
    def __new__(cls, threads: int, decoding: int | None = None) -> Engine: ...
    def submit(
        self,
        table: Table,
        program: Program,
        store: Store,
        seed: int,
        epoch: int,
        records: _Buffer,
        draws: _Buffer,
        out: _Buffer,
        data: list[bytes] | None = None,
        masks: tuple[Table, _Buffer, int] | None = None,
        further: Sequence[tuple[Program, Store, int, _Buffer, tuple[Table, _Buffer, int] | None]] | None = None,
        files: tuple[Sequence[str | bytes], bytes, bool, IndexStore] | None = None,
        first: bool = False,
    ) -> Job: ...
    def submit_items(
        self,
        items: Sequence[_Item],
        targets: Sequence[tuple[Store, _Buffer]],
        places: Sequence[tuple[int, int]] | None = None,
        indexes: IndexStore | None = None,
    ) -> Job: ...
    def close(self) -> None: ...
    def counters(self) -> dict[str, int]: ...
    def abandon(self) -> None: ...

@final
class Job:
    def wait(self, timeout_s: float | None = None) -> bool: ...
    def statuses(self) -> list[int]: ...
    def cancel(self) -> None: ...

@final
class Ring:
    def __new__(cls, block_bytes: int, keep: int) -> Ring: ...
    def take(self) -> memoryview: ...
    def keep(self, blocks: int) -> None: ...
    def offer(self) -> None: ...
    def forked(self) -> None: ...
    def counts(self) -> tuple[int, int]: ...

def crc32c(data: bytes | bytearray, crc: int = 0) -> int: ...

@final
class PackRecipe:
    def __new__(
        cls,
        keep: str,
        tile_px: int,
        *,
        quality: int | None = None,
        above_quality: int | None = None,
        bound: str | None = None,
        length: int = 0,
    ) -> PackRecipe: ...

def pack_records(
    recipe: PackRecipe, records: Sequence[tuple[str, int, int, int, int, str, int]]
) -> list[tuple[int, memoryview, list[tuple[int, int, int, int, int, int, int]]]]: ...
def encode_jpeg(
    pixels: bytes | bytearray,
    width: int,
    height: int,
    quality: int,
    tile_px: int,
    gray: bool = False,
    turned_as: bytes | bytearray | None = None,
) -> bytes: ...
def requantise_jpeg(data: bytes | bytearray, quality: int, tile_px: int) -> bytes | None: ...
def restart_markers(data: bytes | bytearray, tile: int, keep_metadata: bool = True) -> bytes: ...
