"""The loader's contract, point by point: order, epochs, state, draws, memory, bad records, shutdown."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import headrace
import numpy as np
import pytest
from headrace.errors import DecodeError, SourceError, UsageError
from headrace.transforms import Compose, RandomHorizontalFlip, RandomResizedCrop
from hypothesis import given, settings
from hypothesis import strategies as st
from native_threads import native_threads, settled
from sample_images import jpeg

CLASSES, PER_CLASS = 6, 8
RECORDS = CLASSES * PER_CLASS
TRANSFORM = Compose([RandomResizedCrop(24), RandomHorizontalFlip()])
STARTED = Path(__file__).parents[1] / "helpers/loader_process.py"

#: Hypothesis draws few examples: each decodes some dozen images.
few = settings(max_examples=8, deadline=None)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """48 small JPEGs in six classes; each key contains the record's label and number."""
    return make_folder(tmp_path_factory.mktemp("contract") / "images", RECORDS)


@pytest.fixture(scope="module")
def pack(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same images, packed."""
    target = tmp_path_factory.mktemp("contract") / "pack"
    headrace.pack(root, target)
    return target


def make_folder(root: Path, records: int) -> Path:
    for number in range(records):
        folder = root / f"class_{number % CLASSES}"
        folder.mkdir(parents=True, exist_ok=True)
        data = jpeg(60 + number % 7, 48 + number % 5, number, subsampling=("4:4:4", "4:2:0")[number % 2])
        (folder / f"{number:03d}.jpg").write_bytes(data)
    return root


def loader(source: Path | headrace.Dataset, **options: Any) -> headrace.Loader:
    defaults: dict[str, Any] = {"batch_size": 8, "transform": TRANSFORM, "seed": 11, "threads": 2, "output": "numpy"}
    return headrace.Loader(source, **(defaults | options))


def digests(batches: Any) -> list[str]:
    return [hashlib.sha256(images.tobytes() + labels.tobytes()).hexdigest() for images, labels in batches]


def records_of(data: headrace.Loader, epoch: int = 0) -> list[list[int]]:
    """The record numbers of each batch of one rank, as the order has them."""
    order = data._order(epoch)
    return [order.batch(step).tolist() for step in range(len(order))]


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@contextlib.contextmanager
def leaves_nothing_behind(folder: Path) -> Iterator[None]:
    """No native thread, no Python thread, no open file and no file in `folder` more than before."""

    def found() -> tuple[int, int, int, list[Path]]:
        gc.collect()
        return native_threads(), threading.active_count(), open_files(), sorted(folder.rglob("*"))

    def of_a_dataset() -> list[threading.Thread]:
        """Threads of headrace but the one that computes weights of blurs, which a process keeps."""
        return [one for one in threading.enumerate() if one.name.startswith("headrace-") and one.name != "headrace-blur"]

    gc.collect()  # the readers of a remote dataset that an earlier test dropped end only now
    assert settled(of_a_dataset, []) == []
    before = found()
    yield
    assert settled(found, before) == before


# 1 ----------------------------------------------------------------------------------------------------------------------------


@few
@given(seed=st.integers(0, 2**63 - 1), epoch=st.integers(0, 2**31), prefetch=st.integers(1, 6), shuffle=st.booleans())
def test_1_order_is_a_function_of_seed_epoch_and_dataset(
    root: Path, seed: int, epoch: int, prefetch: int, shuffle: bool
) -> None:
    """Batches are the same for 1, 2 and 7 threads and any prefetch; the global ones also for every world size."""
    found = []
    for threads in (1, 2, 7):
        data = loader(root, seed=seed, threads=threads, prefetch=prefetch, shuffle=shuffle, batch_size=24)
        data.set_epoch(epoch)
        found.append(digests(data))
    assert found[0] == found[1] == found[2]
    whole = records_of(loader(root, seed=seed, shuffle=shuffle, batch_size=24), epoch)
    for world_size in (2, 3, 8):
        ranks = [
            loader(root, seed=seed, shuffle=shuffle, batch_size=24 // world_size, rank=rank, world_size=world_size)
            for rank in range(world_size)
        ]
        steps = zip(*(records_of(rank, epoch) for rank in ranks), strict=True)
        assert [[record for part in step for record in part] for step in steps] == whole


@pytest.mark.parametrize("world_size", [2, 3, 8])
def test_1_global_batches_have_the_same_pixels_for_every_world_size(root: Path, world_size: int) -> None:
    whole = list(loader(root, batch_size=24))
    parts = [loader(root, batch_size=24 // world_size, rank=rank, world_size=world_size) for rank in range(world_size)]
    for (images, labels), *shares in zip(whole, *parts, strict=True):
        np.testing.assert_array_equal(images, np.concatenate([share[0] for share in shares]))
        np.testing.assert_array_equal(labels, np.concatenate([share[1] for share in shares]))


def test_1_a_folder_and_its_pack_give_the_same_batches(root: Path, pack: Path) -> None:
    by_key: list[dict[str, bytes]] = []
    for source in (root, pack):
        data = loader(source, shuffle=False, transform=headrace.transforms.imagenet_eval(24))
        keys = [Path(key).stem for key in data.dataset.table.keys]
        by_key.append({key: image.tobytes() for key, image in zip(keys, (i for b, _ in data for i in b), strict=True)})
    assert by_key[0] == by_key[1]


# 2 ----------------------------------------------------------------------------------------------------------------------------


@few
@given(
    world_size=st.sampled_from([1, 2, 3, 8]),
    batch_size=st.integers(1, 9),
    records=st.integers(1, RECORDS),
    drop_last=st.booleans(),
    epoch=st.integers(0, 1000),
)
def test_2_each_record_once_and_as_many_batches_on_every_rank(
    root: Path, world_size: int, batch_size: int, records: int, drop_last: bool, epoch: int
) -> None:
    data = first_records(headrace.open(root), records)
    if drop_last and records < batch_size * world_size:
        with pytest.raises(UsageError, match="fewer than one global batch"):
            loader(data, batch_size=batch_size, world_size=world_size, rank=0, drop_last=True)
        return
    ranks = [
        loader(data, batch_size=batch_size, rank=rank, world_size=world_size, drop_last=drop_last) for rank in range(world_size)
    ]
    batches = [records_of(rank, epoch) for rank in ranks]
    assert {len(one) for one in batches} == {len(ranks[0])}
    assert all(len({len(share) for share in step}) == 1 for step in zip(*batches, strict=True))
    seen = Counter(record for one in batches for batch in one for record in batch)
    whole = records // (batch_size * world_size) * batch_size * world_size
    if drop_last:
        assert len(seen) == sum(seen.values()) == whole
    else:
        assert set(seen) == set(range(records))
        assert sum(seen.values()) - records < world_size


@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("records", [1, 7, 8, 9])
def test_2_datasets_of_about_one_batch(root: Path, records: int, drop_last: bool) -> None:
    expected = [8] * (records // 8) + ([records % 8] if records % 8 and not drop_last else [])
    if not expected:
        with pytest.raises(UsageError, match="fewer than one global batch"):
            loader(first_records(headrace.open(root), records), drop_last=drop_last)
        return
    data = loader(first_records(headrace.open(root), records), drop_last=drop_last)
    assert len(data) == len(expected)
    for _ in range(2):
        assert [len(labels) for _, labels in data] == expected
    assert data.epoch == 2


def test_2_refuses_an_empty_dataset(root: Path, tmp_path: Path) -> None:
    (tmp_path / "class_0").mkdir()
    with pytest.raises(SourceError, match="no images"):
        loader(tmp_path)
    nothing = first_records(headrace.open(root), 0)
    for drop_last in (True, False):
        with pytest.raises(SourceError, match="0 records"):
            loader(nothing, drop_last=drop_last)


def first_records(data: headrace.Dataset, count: int) -> headrace.Dataset:
    """The dataset's first `count` records as a dataset of its own."""
    from dataclasses import replace

    table = data.table
    columns = {name: getattr(table, name)[:count] for name in ("file", "offset", "size", "label", "keys")}
    return replace(data, table=replace(table, **columns), fingerprint=f"{data.fingerprint}-{count}")


# 3 ----------------------------------------------------------------------------------------------------------------------------


def started(root: Path, state: Path, **options: Any) -> list[str]:
    """Runs a loader in a new process (see loader_process.py); the digests of its batches."""
    command = [sys.executable, str(STARTED), str(root), str(state), json.dumps(options)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    assert (done.returncode == -signal.SIGKILL) == ("kill_after" in options), done.stderr
    return done.stdout.split()


@settings(max_examples=4, deadline=None)
@given(kill_after=st.integers(0, 11), threads=st.sampled_from([1, 2, 7]))
def test_3_killed_at_any_batch_a_new_process_yields_the_rest_bit_for_bit(
    root: Path, tmp_path_factory: pytest.TempPathFactory, kill_after: int, threads: int
) -> None:
    """Two epochs of six batches; SHA-256 of every batch after the kill."""
    whole = loader(root)
    expected = digests(whole) + digests(whole)
    state = tmp_path_factory.mktemp("state") / "state.json"
    before = started(root, state, kill_after=kill_after, threads=threads)
    assert len(state.read_bytes()) < 1000
    after = started(root, state, threads=3, prefetch=5)
    assert before + after == expected


def test_3_keys_and_version_of_a_state_stay_the_same(root: Path) -> None:
    """States that earlier versions saved must load: a change here needs another version number."""
    data = loader(root)
    iterator = iter(data)
    next(iterator)
    state = data.state_dict()
    assert state.pop("dataset") == data.dataset.fingerprint
    assert state == {
        "version": 1,
        "epoch": 0,
        "records_done": 8,
        "global_batch": 8,
        "seed": 11,
        "shuffle": True,
        "drop_last": True,
        "transform": "873f8c7d42efe919",
    }


@pytest.mark.parametrize("world_size", [2, 3, 8])
def test_3_resume_on_another_world_size(root: Path, tmp_path: Path, world_size: int) -> None:
    """Killed as one process, resumed as several, and back."""
    one = [list(batch[0]) for batch in loader(root, batch_size=24)]
    state = tmp_path / "state.json"
    started(root, state, kill_after=1, batch_size=24)
    parts = [loader(root, batch_size=24 // world_size, rank=rank, world_size=world_size) for rank in range(world_size)]
    for part in parts:
        part.load_state_dict(json.loads(state.read_text()))
    (rest,) = zip(*parts, strict=True)
    np.testing.assert_array_equal(np.concatenate([images for images, _ in rest]), one[1])
    parts[-1].set_epoch(0)
    next(iter(parts[-1]))
    back = loader(root, batch_size=24)
    back.load_state_dict(parts[-1].state_dict())
    np.testing.assert_array_equal(next(iter(back))[0], one[1])


@few
@given(
    damage=st.sampled_from(["version", "dataset", "transform", "seed", "global_batch", "epoch", "records_done"]),
    value=st.none() | st.text(),
)
def test_3_refuses_a_state_that_does_not_fit(root: Path, damage: str, value: Any) -> None:
    """The message names what differs, with both values; the loader stays where it is."""
    data = loader(root)
    data.set_epoch(1)
    state = data.state_dict()
    with pytest.raises(headrace.errors.StateError) as caught:
        data.load_state_dict(state | {damage: value})
    message = str(caught.value)
    if damage in ("epoch", "records_done"):
        assert "damaged" in message and f"{damage} {value!r}" in message
    else:
        assert damage.replace("_", " ") in message
        assert repr(value) in message and repr(state[damage]) in message
        assert "same data, transform, seed and global batch" in str(caught.value.hint)
    assert data.state_dict() == state
    data.load_state_dict(state)
    assert data.state_dict() == state


# 4 ----------------------------------------------------------------------------------------------------------------------------


@few
@given(batch_size=st.integers(1, 16), threads=st.sampled_from([1, 2, 7]), epoch=st.integers(0, 5))
def test_4_draws_belong_to_seed_epoch_and_record(root: Path, batch_size: int, threads: int, epoch: int) -> None:
    """A record looks the same in an epoch whatever batch, rank, order and thread it comes from."""

    def by_record(**options: Any) -> dict[int, bytes]:
        data = loader(root, **options)
        data.set_epoch(epoch)
        numbers = [record for batch in records_of(data, epoch) for record in batch]
        images = [image.tobytes() for batch, _ in data for image in batch]
        return dict(zip(numbers, images, strict=True))

    reference = by_record(shuffle=False, drop_last=False)
    assert len(reference) == RECORDS
    for options in ({"rank": 1, "world_size": 3}, {"shuffle": False}, {}):
        for record, image in by_record(batch_size=batch_size, threads=threads, drop_last=False, **options).items():
            assert image == reference[record]


def test_4_other_epochs_and_seeds_draw_differently(root: Path) -> None:
    images = {
        (seed, epoch): next(iter(at_epoch(loader(root, seed=seed, shuffle=False), epoch)))[0].tobytes()
        for seed in (0, 1)
        for epoch in (0, 1)
    }
    assert len(set(images.values())) == 4


def at_epoch(data: headrace.Loader, epoch: int) -> headrace.Loader:
    data.set_epoch(epoch)
    return data


# 5 ----------------------------------------------------------------------------------------------------------------------------


@few
@given(kept=st.sets(st.integers(0, 11), max_size=6), prefetch=st.integers(1, 4))
def test_5_kept_batches_never_change_and_others_return_to_the_ring(root: Path, kept: set[int], prefetch: int) -> None:
    """The array, a slice of it, a tensor and a DLPack view of it all keep their values."""
    torch = pytest.importorskip("torch")
    data = loader(root, prefetch=prefetch)
    holders: list[Callable[[Any], Any]] = [lambda a: a, lambda a: a[2:5], torch.from_dlpack, lambda a: torch.from_numpy(a)[1]]
    held, copies = [], []
    for number, (images, _) in enumerate(batch for _ in range(2) for batch in data):
        if number in kept:
            held.append(holders[number % len(holders)](images))
            copies.append(np.asarray(held[-1]).copy())
        del images
    for _ in data:
        pass
    now = None
    for now, then in zip(held, copies, strict=True):
        np.testing.assert_array_equal(np.asarray(now), then)
    room = prefetch + 4  # what the ring keeps, and the loop's own last batch
    assert data.stats().ring_batches <= room + len(kept)
    del held, now
    for _ in data:
        pass
    assert data.stats().ring_batches <= room


@pytest.mark.parametrize("source", ["root", "pack"])
def test_5_memory_does_not_grow_in_fifty_epochs(source: str, request: pytest.FixtureRequest) -> None:
    """In a fresh process: resident memory after ten epochs and after fifty more; growth would be a leak."""
    text = subprocess.run(
        [sys.executable, str(STARTED), str(request.getfixturevalue(source)), "-", json.dumps({"epochs": [10, 50]})],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    ).stdout
    early, late = (int(word) for word in text.split())
    assert late - early < 4 << 20, f"grew by {(late - early) / 2**20:.1f} MiB in fifty epochs"


# 6 ----------------------------------------------------------------------------------------------------------------------------

DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "truncated": lambda data: data[: len(data) * 2 // 3],
    "text": lambda data: b"this is no image at all",
    "header": lambda data: data[:3] + b"\xff" * 40 + data[43:],
}


@pytest.fixture(scope="module")
def bad_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("bad") / "images", RECORDS)


@few
@given(
    places=st.dictionaries(st.integers(0, RECORDS - 1), st.sampled_from(sorted(DAMAGE)), min_size=1, max_size=9),
    seed=st.integers(0, 99),
)
def test_6_bad_records_anywhere_are_named_or_substituted(bad_root: Path, places: dict[int, str], seed: int) -> None:
    data = headrace.open(bad_root)
    paths = [Path(data.table.files[record]) for record in range(RECORDS)]
    whole = {record: paths[record].read_bytes() for record in places}
    good = dict(by_record(loader(bad_root, seed=seed)))
    try:
        for record, kind in places.items():
            paths[record].write_bytes(DAMAGE[kind](whole[record]))
        with pytest.raises(DecodeError) as caught:
            list(loader(data, seed=seed))
        assert caught.value.key in {data.table.keys[record] for record in places}
        assert caught.value.key in str(caught.value) and "on_error" in str(caught.value.hint)

        skipping = loader(data, seed=seed, on_error="skip")
        batches = list(skipping)
        assert len(batches) == len(skipping) == RECORDS // 8
        assert digests(batches) == digests(loader(data, seed=seed, on_error="skip", threads=7, prefetch=1))
        stats = skipping.stats()
        assert stats.skipped_count == len(places)
        assert {one.key for one in stats.skipped} == {data.table.keys[record] for record in places}
        numbers = [record for batch in records_of(skipping) for record in batch]
        images = [image for batch, _ in batches for image in batch]
        labels = [label for _, found in batches for label in found.tolist()]
        for record, image, label in zip(numbers, images, labels, strict=True):
            if record in places:
                assert image.any() and label in range(CLASSES)
            else:
                assert image.tobytes() == good[record] and label == data.table.label[record]
    finally:
        for record, data_ in whole.items():
            paths[record].write_bytes(data_)


def by_record(data: headrace.Loader) -> Iterator[tuple[int, bytes]]:
    numbers = [record for batch in records_of(data) for record in batch]
    images = (image.tobytes() for batch, _ in data for image in batch)
    return zip(numbers, images, strict=True)


def test_6_a_bad_record_in_a_shard_is_named_with_its_place(pack: Path, tmp_path: Path) -> None:
    copy = tmp_path / "pack"
    copy.mkdir()
    for file in pack.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    data = headrace.open(copy)
    record = 17
    shard, offset = Path(data.table.files[data.table.file[record]]), int(data.table.offset[record])
    with open(shard, "r+b") as file:
        file.seek(offset)
        file.write(b"\0" * 64)
    with pytest.raises(DecodeError) as caught:
        list(loader(copy))
    assert caught.value.key == data.table.keys[record]
    for word in (str(shard), str(offset), data.table.keys[record]):
        assert word in str(caught.value)


# 7 ----------------------------------------------------------------------------------------------------------------------------


class _OwnError(Exception):
    pass


@pytest.mark.slow
def test_7_an_error_of_the_users_function_arrives_and_nothing_is_left(root: Path) -> None:
    def fail(image: Any) -> Any:
        raise _OwnError("the function's own words")

    with leaves_nothing_behind(root):
        data = loader(root, transform=Compose([RandomResizedCrop(24), fail]))
        with pytest.raises(_OwnError, match="own words"):
            list(data)
        with pytest.raises(_OwnError):  # it can be tried again
            list(data)
        data.close()


@pytest.mark.slow
@few
@given(
    stop=st.integers(0, 5),
    way=st.sampled_from(["delete", "close", "exception", "iterator"]),
    threads=st.sampled_from([1, 2, 7]),
)
def test_7_leaving_in_mid_iteration_leaves_nothing_behind(root: Path, stop: int, way: str, threads: int) -> None:
    with leaves_nothing_behind(root):
        data = loader(root, threads=threads)
        iterator = iter(data)
        for _ in range(stop):
            next(iterator)
        if way == "exception":
            with contextlib.suppress(_OwnError):
                for _ in iterator:
                    raise _OwnError
        elif way == "iterator":
            del iterator
        elif way == "close":
            data.close()
        iterator = None
        del data


def test_7_deleting_the_loader_keeps_a_batch_alive(root: Path) -> None:
    gc.collect()
    before = native_threads()
    data = loader(root)
    images, _ = next(iter(data))
    copy = images.copy()
    assert native_threads() > before
    del data
    gc.collect()
    assert settled(native_threads, before) == before
    np.testing.assert_array_equal(images, copy)


def test_7_control_c_stops_at_once(root: Path) -> None:
    """SIGINT while the loader is in use: KeyboardInterrupt where the script is, no thread left, and the process ends."""
    child = subprocess.Popen(
        [sys.executable, str(STARTED), str(root), "-", json.dumps({"endless": True})],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"running\n"
        child.send_signal(signal.SIGINT)
        _, errors = child.communicate(timeout=30)  # a second, on a machine that does nothing else
    finally:
        child.kill()
    assert b"KeyboardInterrupt" in errors
    assert b"threads left: 0" in errors


@pytest.mark.parametrize("mid_iteration", [False, True])
def test_7_a_forked_child_can_use_the_loader(root: Path, mid_iteration: bool) -> None:
    data = loader(root)
    expected = digests(loader(root))
    iterator = iter(data)
    first = digests([next(iterator)]) if mid_iteration else []
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        answer = b"failed"
        try:
            data.set_epoch(0)
            answer = b"same" if digests(data) == expected else b"different"
        finally:
            os.write(writer, answer)
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as pipe:
        assert pipe.read() == b"same"
    assert os.waitpid(child, 0)[1] == 0
    assert first + digests(iterator) == expected


def test_7_a_spawned_process_can_make_its_own(root: Path, tmp_path: Path) -> None:
    assert started(root, tmp_path / "state.json", threads=7) == digests(two_epochs(root))


def two_epochs(root: Path) -> Iterator[Any]:
    data = loader(root)
    yield from data
    yield from data


def test_7_refuses_to_pickle_a_loader(root: Path) -> None:
    import pickle

    with pytest.raises(TypeError, match="make one in each process"):
        pickle.dumps(loader(root))


def test_7_loaders_in_several_threads_do_not_interfere(root: Path) -> None:
    """Five loaders over one folder in five threads of Python, interleaved with each other."""
    results: dict[int, list[str]] = {}

    def walk(seed: int) -> None:
        with loader(root, seed=seed) as data:
            results[seed] = digests(data)

    threads = [threading.Thread(target=walk, args=(seed,)) for seed in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {seed: digests(loader(root, seed=seed)) for seed in range(5)}
