"""JPEG indexes that processes share: found by the bytes, built by whoever decodes first, and never wrong, whatever happens."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from headrace._native import IndexStore, Store, crc32c, fill_items
from headrace.images.decode import checkpoint_index, decode_into, reason
from headrace.loading.feeding import jpeg_index_cache as index_cache
from sample_images import jpeg

SIDE = 24
IMAGES = [jpeg(160 + seed, 120 + seed % 7, seed, subsampling=["4:2:0", "4:4:4"][seed % 2]) for seed in range(12)]


def crops(images: list[bytes], seed: int = 0, store: IndexStore | None = None) -> np.ndarray:
    """Return a random crop of each image."""
    rng = np.random.default_rng(seed)
    out = np.empty((len(images), SIDE, SIDE, 3), np.uint8)
    boxes = [(int(rng.integers(0, 60)), int(rng.integers(0, 60)), 90, int(rng.integers(20, 60))) for _ in images]
    items: list[Any] = [
        (image, box, (SIDE, SIDE), "bilinear", None, False, False) for image, box in zip(images, boxes, strict=True)
    ]
    assert fill_items(items, [(Store("hwc"), out)], None, 2, store) == [0] * len(images)
    return out


def test_indexes_change_no_pixel_and_are_found_in_memory_and_in_the_file(tmp_path: Path) -> None:
    plain = [crops(IMAGES, seed) for seed in range(3)]
    for memory_bytes, file in ((1 << 20, None), (0, tmp_path / "one"), (1 << 20, tmp_path / "two")):
        store = IndexStore(memory_bytes, file)
        for seed, expected in enumerate(plain):
            np.testing.assert_array_equal(crops(IMAGES, seed, store), expected)
        found, made, used = store.counts()
        assert found == 24 and 12 <= made <= 36  # a lower crop extends an index
        assert (used > 0) == (memory_bytes > 0)
    fresh = IndexStore(0, tmp_path / "one")
    np.testing.assert_array_equal(crops(IMAGES, 2, fresh), plain[2])
    found, made, used = fresh.counts()
    assert (found, used) == (12, 0) and made <= 3  # what says less than a quarter more is not written
    nothing = IndexStore()
    np.testing.assert_array_equal(crops(IMAGES, 2, nothing), plain[2])
    assert nothing.counts()[0] == 0


def crc64(data: bytes) -> int:
    """Return the CRC-64/NVME, by which an index is looked up."""
    state = (1 << 64) - 1
    for byte in data:
        state = CRC64_TABLE[(state ^ byte) & 255] ^ state >> 8
    return state ^ (1 << 64) - 1


def crc64_entry(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (0x9A6C9329AC4BC9B5 if byte & 1 else 0)
    return byte


CRC64_TABLE = [crc64_entry(byte) for byte in range(256)]


def checksums(data: bytes) -> int:
    return crc64(data) << 32 | crc32c(data)


def with_comment(image: bytes, comment: bytes) -> bytes:
    """Return a JPEG with a comment behind its start."""
    return image[:2] + b"\xff\xfe" + (len(comment) + 2).to_bytes(2, "big") + comment + image[2:]


def of_equal_checksums(first: bytes, second: bytes) -> tuple[bytes, bytes]:
    """Return two JPEGs with comments that give both one length, CRC-64 and CRC-32C. Checksums are linear, so this is easy."""
    longer = max(len(first), len(second))
    target = with_comment(first, bytes(16 + longer - len(first)))
    comment = bytearray(16 + longer - len(second))
    start = checksums(with_comment(second, bytes(comment)))
    rows: dict[int, tuple[int, int]] = {}  # by highest bit: what a set of bits of the comment changes, and the set
    for bit in range(128):
        comment[bit // 8] ^= 1 << bit % 8
        change, bits = checksums(with_comment(second, bytes(comment))) ^ start, 1 << bit
        comment[bit // 8] ^= 1 << bit % 8
        while change and change.bit_length() in rows:
            other, others = rows[change.bit_length()]
            change, bits = change ^ other, bits ^ others
        if change:
            rows[change.bit_length()] = change, bits
    missing, wanted = checksums(target) ^ start, 0
    while missing:
        change, bits = rows[missing.bit_length()]
        missing, wanted = missing ^ change, wanted ^ bits
    for bit in range(128):
        comment[bit // 8] ^= (wanted >> bit & 1) << bit % 8
    return target, with_comment(second, bytes(comment))


def test_an_image_with_forged_checksums_does_not_get_the_index_of_another(tmp_path: Path) -> None:
    assert crc64(b"123456789") == 0xAE8B14860A799888
    pairs = [of_equal_checksums(jpeg(160, 128, seed, quality=20), jpeg(160, 128, seed + 50, quality=20)) for seed in range(4)]
    firsts, seconds = ([pair[at] for pair in pairs] for at in (0, 1))
    assert [checksums(first) for first in firsts] == [checksums(second) for second in seconds]
    for file in (None, tmp_path / "indexes"):
        store = IndexStore(1 << 20 if file is None else 0, file)
        for seed in range(6):
            np.testing.assert_array_equal(crops(firsts, seed, store), crops(firsts, seed))
            np.testing.assert_array_equal(crops(seconds, seed, store), crops(seconds, seed))
    out = np.empty((1, 8, 8, 3), np.uint8)
    index = checkpoint_index(firsts[0])
    assert decode_into([firsts[0]], out, boxes=[(80, 40, 8, 8)], index=[index])[0] == 0
    statuses = decode_into([seconds[0]], out, boxes=[(80, 40, 8, 8)], index=[index.to_bytes()])
    assert "does not fit" in reason(int(statuses[0]))


def test_the_file_of_indexes_is_private_and_an_older_one_is_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "indexes"
    expected = crops(IMAGES, 0)
    crops(IMAGES, 0, IndexStore(0, path))
    assert path.stat().st_mode & 0o777 == 0o600
    old = bytearray(path.read_bytes())
    old[4] = 1  # the version of indexes that CRC-32C bound
    path.write_bytes(old)
    path.chmod(0o644)
    store = IndexStore(0, path)
    np.testing.assert_array_equal(crops(IMAGES, 0, store), expected)
    found, made, _ = store.counts()
    assert (found, made) == (0, len(IMAGES)) and path.stat().st_mode & 0o777 == 0o600


def test_an_index_belongs_to_the_bytes_and_not_to_the_path(tmp_path: Path) -> None:
    store = IndexStore(1 << 20, tmp_path / "indexes")
    path = tmp_path / "image.jpg"
    out = np.empty((SIDE, SIDE, 3), np.uint8)
    for _ in range(2):
        for image in IMAGES[:3]:
            path.write_bytes(image)
            item: Any = (str(path), (9, 50, 90, 60), (SIDE, SIDE), "bilinear", None, False, False)
            assert fill_items([item], [(Store("hwc"), out)], indexes=store) == [0]
            expected = np.empty_like(out)
            assert fill_items([(image, *item[1:])], [(Store("hwc"), expected)]) == [0]
            np.testing.assert_array_equal(out, expected)
    assert store.counts()[:2] == (3, 3)


def test_views_of_one_image_share_what_the_first_finds() -> None:
    """Far crops are decoded apart; the second starts from the index of the first, also without a store."""
    image = jpeg(900, 700, 3)
    boxes = [(0, 0, 50, 40), (800, 600, 60, 60), (10, 650, 40, 40), (850, 0, 50, 50)]
    items: list[Any] = [(image, box, (SIDE, SIDE), "bilinear", None, False, False) for box in boxes]
    expected = np.empty((4, SIDE, SIDE, 3), np.uint8)
    for number, item in enumerate(items):
        assert fill_items([item], [(Store("hwc"), expected[number])]) == [0]
    for store in (None, IndexStore(1 << 20)):
        for _ in range(2):
            out = np.empty_like(expected)
            assert fill_items(items, [(Store("hwc"), out)], indexes=store) == [0] * 4
            np.testing.assert_array_equal(out, expected)
        if store:
            assert store.counts()[:2] == (1, 1)


def test_files_that_have_no_index_are_not_looked_up(tmp_path: Path) -> None:
    store = IndexStore(1 << 20, tmp_path / "indexes")
    images = [jpeg(160, 120, 1, restart_marker_blocks=4), jpeg(160, 120, 1, progressive=True)]
    np.testing.assert_array_equal(crops(images, 0, store), crops(images, 0))
    assert store.counts() == (0, 0, 0) and not (tmp_path / "indexes").exists()


def test_damaged_images_have_the_status_that_they_have_without_indexes(tmp_path: Path) -> None:
    store = IndexStore(1 << 20, tmp_path / "indexes")
    rng = np.random.default_rng(3)
    item: Any = ((5, 60, 100, 50), (SIDE, SIDE), "bilinear", None, False, False)
    for image in IMAGES[:6]:
        damaged = [image[:-300]]
        for _ in range(12):
            bytes_ = bytearray(image)
            bytes_[int(rng.integers(400, len(image) - 2))] ^= 1 << int(rng.integers(8))
            damaged.append(bytes(bytes_))
        for data in damaged:
            plain, out = np.empty((2, SIDE, SIDE, 3), np.uint8)
            status = fill_items([(data, *item)], [(Store("hwc"), plain)])
            for _ in range(3):
                assert fill_items([(data, *item)], [(Store("hwc"), out)], indexes=store) == status
                np.testing.assert_array_equal(out, plain)


def test_damaged_index_files_change_no_pixel(tmp_path: Path) -> None:
    path = tmp_path / "indexes"
    crops(IMAGES, 0, IndexStore(0, path, 1 << 17))
    good = path.read_bytes()
    expected = crops(IMAGES, 1)
    rng = np.random.default_rng(5)
    used = np.flatnonzero(np.frombuffer(good, np.uint8))
    for number in range(60):
        damaged = bytearray(good)
        if number % 3 == 0:
            del damaged[int(rng.integers(len(good))) :]
        else:
            for at in rng.choice(used, 20):
                damaged[at] = int(rng.integers(256))
        path.write_bytes(damaged)
        for _ in range(2):
            np.testing.assert_array_equal(crops(IMAGES, 1, IndexStore(0, path, 1 << 17)), expected)


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    for path in (tmp_path / "missing" / "indexes", tmp_path, Path("/dev/full"), Path("/proc/self/indexes")):
        store = IndexStore(0, path)
        for seed in range(2):
            np.testing.assert_array_equal(crops(IMAGES, seed, store), crops(IMAGES, seed))
        assert store.counts()[0] == 0
        store.close()


def test_the_file_keeps_to_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "indexes"
    store = IndexStore(0, path, 2000)
    np.testing.assert_array_equal(crops(IMAGES, 0, store), crops(IMAGES, 0))
    size = path.stat().st_size
    crops(IMAGES, 1, store)
    table = 128 + 8 * 128
    assert table < size <= table + 2000 and path.stat().st_size - size < 2000
    assert 0 < store.counts()[0] < 12


def child_of_fork(store: IndexStore, expected: np.ndarray) -> bool:
    before = store.counts()
    same = np.array_equal(crops(IMAGES, 2, store), expected)
    return same and before == (0, 0, 0) and store.counts()[:2] == (12, 0)


def test_forked_children_use_the_file_and_not_the_parents_memory(tmp_path: Path) -> None:
    store = IndexStore(1 << 20, tmp_path / "indexes")
    expected = crops(IMAGES, 2)
    crops(IMAGES, 2, store)
    for _ in range(2):
        pid = os.fork()
        if pid == 0:
            passed = False
            try:
                passed = child_of_fork(store, expected)
            finally:
                os._exit(0 if passed else 1)
        assert os.waitpid(pid, 0)[1] == 0
    assert store.counts()[:2] == (0, 12)


def spawned(path: str, seed: int, expected: np.ndarray, rounds: int, found: Any) -> None:
    """Decode the images again and again, each time as a new process would."""
    total = 0
    for _ in range(rounds):
        store = IndexStore(0, path)
        np.testing.assert_array_equal(crops(IMAGES, seed, store), expected)
        total += store.counts()[0]
    found.put(total)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_two_processes_build_one_file_at_once(method: str, tmp_path: Path) -> None:
    context = multiprocessing.get_context(method)
    found = context.SimpleQueue()
    expected = [crops(IMAGES, seed) for seed in range(2)]
    processes = [
        context.Process(target=spawned, args=(str(tmp_path / "indexes"), seed, expected[seed], 5, found)) for seed in range(2)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    # Each process finds all in its rounds 2 to 5; of two writers of one slot at the same moment, one index may be lost.
    assert found.get() >= 44 and found.get() >= 44
    store = IndexStore(0, tmp_path / "indexes")
    crops(IMAGES, 0, store)
    assert store.counts()[0] >= 11


WRITER = """
import sys
import numpy as np
sys.path.insert(0, sys.argv[1])
from sample_images import jpeg
from headrace._native import IndexStore, Store, fill_items

images = [jpeg(100 + seed, 90, seed) for seed in range(40)]
out = np.empty((16, 16, 3), np.uint8)
print("ready", flush=True)
store = IndexStore(0, sys.argv[2], 1 << 22)
for round in range(10**6):
    for height in (10, 20, 30, 45, 60, 90):
        for image in images:
            image += bytes([round % 256, round // 256, height])
            item = (image, (0, 0, 50, height), (16, 16), "bilinear", None, False, False)
            assert fill_items([item], [(Store("hwc"), out)], indexes=store) == [0]
"""


@pytest.mark.slow
def test_killed_writers_leave_no_wrong_index(tmp_path: Path) -> None:
    """Writers are killed at random moments; whatever they left, all pixels are right, and new indexes are stored and found."""
    path = tmp_path / "indexes"
    rng = np.random.default_rng(1)
    helpers = str(Path(__file__).parents[1] / "helpers")
    for _ in range(6):
        writers = [
            subprocess.Popen([sys.executable, "-c", WRITER, helpers, str(path)], stdout=subprocess.PIPE) for _ in range(2)
        ]
        for writer in writers:
            assert writer.stdout and writer.stdout.readline() == b"ready\n"
        time.sleep(float(rng.uniform(0.005, 0.15)))
        for writer in writers:
            writer.send_signal(signal.SIGKILL)
            writer.wait()
            assert writer.stdout
            writer.stdout.close()
    assert path.stat().st_size > 10_000
    for seed in range(2):
        store = IndexStore(0, path, 1 << 22)
        np.testing.assert_array_equal(crops(IMAGES, 0, store), crops(IMAGES, 0))
        assert store.counts()[0] >= 11 * seed
    for seed in range(40):  # the writers' own images
        image = jpeg(100 + seed, 90, seed) + bytes([0, 0, 90])
        item: Any = (image, (0, 0, 50, 90), (16, 16), "bilinear", None, False, False)
        found, plain = np.empty((2, 16, 16, 3), np.uint8)
        assert fill_items([item], [(Store("hwc"), found)], indexes=IndexStore(0, path)) == [0]
        assert fill_items([item], [(Store("hwc"), plain)]) == [0]
        np.testing.assert_array_equal(found, plain)


def test_a_stopped_process_stops_no_other(tmp_path: Path) -> None:
    """A process that holds the lock of a file without a head: others go on without the file."""
    import fcntl

    path = tmp_path / "indexes"
    with path.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        began = time.monotonic()
        np.testing.assert_array_equal(crops(IMAGES, 0, IndexStore(0, path)), crops(IMAGES, 0))
        assert time.monotonic() - began < 60  # the lock is never given back


def test_the_shared_file_starts_anew_above_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_INDEX_CACHE", str(tmp_path / "indexes"))
    path = index_cache.shared_index_file()
    assert path == tmp_path / "indexes" / "shared.index" and not path.exists()
    crops(IMAGES, 0, IndexStore(0, path))
    assert index_cache.shared_index_file() == path and path.exists()
    assert path.stat().st_blocks * 512 < 1 << 20 < path.stat().st_size  # the table is sparse
    monkeypatch.setattr(index_cache, "SHARED_LIMIT_BYTES", 4096)
    assert index_cache.shared_index_file() == path and not path.exists()
    monkeypatch.setenv("HEADRACE_INDEX_CACHE", "off")
    assert index_cache.shared_index_file() is None
