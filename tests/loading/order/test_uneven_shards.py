"""Datasets in parts (ShardedByS3Key): unequal shards on each host, equally many batches on all ranks, and no hang."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import headrace
import numpy as np
import pytest
from headrace.errors import FormatError, SourceError, StateError, UsageError
from headrace.loading.order import uneven_shards as parts
from headrace.packing import pack
from pipe_channel import channel


@pytest.fixture
def hosts(image_folder: Callable[..., Path], tmp_path: Path) -> list[Path]:
    """Two hosts' folders: SageMaker distributes shards by key; manifest and index go to different hosts."""
    pack(image_folder(classes=3, per_class=11), tmp_path / "packed", shard_size=300_000)
    folders = [tmp_path / f"host{number}" for number in range(2)]
    for folder in folders:
        folder.mkdir()
    shards = sorted((tmp_path / "packed").glob("*.tar"))
    for number, shard in enumerate(shards):
        (folders[number % 4 == 0] / shard.name).write_bytes(shard.read_bytes())
    (folders[0] / "headrace.json").write_bytes((tmp_path / "packed" / "headrace.json").read_bytes())
    (folders[1] / "index.safetensors").write_bytes((tmp_path / "packed" / "index.safetensors").read_bytes())
    return folders


def loader(data: Any, **options: Any) -> headrace.Loader:
    settings: dict[str, Any] = {"batch_size": 2, "seed": 1, "threads": 1, "output": "numpy"}
    return headrace.Loader(data, transform=headrace.transforms.imagenet_train(24), **(settings | options))


def records(data: headrace.Loader) -> list[int]:
    order = data._order(data.epoch)
    return [record for step in range(len(order)) for record in order.batch(step).tolist()]


@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("shuffle", [True, "block:400KB", False])
def test_unequal_parts_make_equally_many_batches(hosts: list[Path], drop_last: bool, shuffle: bool | str) -> None:
    data = [headrace.open(host, part=True) for host in hosts]
    counts = [len(part) for part in data]
    assert sum(counts) == 33 and counts[0] > counts[1] + 4
    loaders = [
        loader(part, rank=rank, world_size=2, parts=counts, drop_last=drop_last, shuffle=shuffle)
        for rank, part in enumerate(data)
    ]
    steps = counts[1] // 2 if drop_last else -(-counts[0] // 2)
    for part, count in zip(loaders, counts, strict=True):
        seen = Counter(records(part))
        assert len(part) == steps and sum(seen.values()) == 2 * steps
        if drop_last:
            assert max(seen.values()) == 1
        else:
            assert len(seen) == count and max(seen.values()) - min(seen.values()) <= 1
        assert sum(1 for _ in part) == steps


def test_the_same_records_are_there_with_and_without_manifest(hosts: list[Path], tmp_path: Path) -> None:
    whole = headrace.open(tmp_path / "packed")
    (hosts[0] / "index.safetensors").write_bytes((hosts[1] / "index.safetensors").read_bytes())
    expected = sorted((whole.read(i), int(whole.table.label[i])) for i in range(len(whole)))
    data = [headrace.open(host, part=True) for host in hosts]
    assert [part.kind for part in data] == ["shards", "tar"]
    assert sorted((part.read(i), int(part.table.label[i])) for part in data for i in range(len(part))) == expected
    kept = set(data[0].table.keys)
    assert list(data[0].table.keys) == [key for key in whole.table.keys if key in kept]
    with pytest.raises(FormatError, match="missing") as caught:
        headrace.open(hosts[0])
    assert "part=True" in str(caught.value.hint)
    assert headrace.open(tmp_path / "packed", part=True).fingerprint != whole.fingerprint
    for shard in hosts[0].glob("*.tar"):
        shard.unlink()
    with pytest.raises(SourceError, match="none of its shards"):
        headrace.open(hosts[0], part=True)


def test_draws_differ_between_parts_and_states_fit_all_ranks(hosts: list[Path]) -> None:
    data = [headrace.open(host, part=True) for host in hosts]
    counts = [len(part) for part in data]
    first, second = (loader(part, rank=rank, world_size=2, parts=counts) for rank, part in enumerate(data))
    assert first._part.first_draw == 0 and second._part.first_draw == counts[0]
    next(iter(first))
    second.load_state_dict(first.state_dict())  # rank 0 saves, all ranks load
    assert len(list(second)) == len(first) - 1
    with pytest.raises(StateError, match="dataset"):
        loader(data[0], batch_size=4).load_state_dict(first.state_dict())


def test_refuses_parts_that_do_not_fit_the_data(hosts: list[Path]) -> None:
    part = headrace.open(hosts[0], part=True)
    for given, error, words in [
        ([len(part)], UsageError, "each of 2 ranks"),
        ([len(part) + 1, 5], SourceError, "parts says"),
        ([len(part), 0], SourceError, "no records"),
        ("agree", UsageError, "torch.distributed"),
        ("all", UsageError, "agree"),
    ]:
        with pytest.raises(error, match=words):
            loader(part, rank=0, world_size=2, parts=given)
    assert len(loader(part, parts="agree")) == len(part) // 2  # alone


_RANK = """
import json, sys
import torch.distributed as dist
import headrace
from headrace.loading.order import uneven_shards as parts
from headrace.errors import HeadraceError
rank, store, folder, world = int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=world)
data = headrace.open(folder, part=True)
report = {"records": len(data)}
for drop_last in (True, False):
    loader = headrace.Loader(
        data, 2, headrace.transforms.imagenet_train(24), parts="agree", threads=1, output="numpy", drop_last=drop_last
    )
    part = loader._part
    report[str(drop_last)] = [len(list(loader)), part.rank, part.world_size, part.fingerprint]
if rank < world - 1:  # the last one does not answer
    parts._TIMEOUT_S = 3.0
    try:
        headrace.Loader(data, 2, headrace.transforms.imagenet_train(24), parts="agree", output="numpy")
    except HeadraceError as error:
        report["error"] = str(error)
print(json.dumps(report), flush=True)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_ranks_exchange_sizes_and_a_silent_rank_is_an_error(tmp_path: Path, hosts: list[Path]) -> None:
    """Two ranks on one host and one on another, through gloo."""
    pytest.importorskip("torch")
    script = tmp_path / "rank.py"
    script.write_text(_RANK)
    folders = [hosts[0], hosts[0], hosts[1]]
    runs = [
        subprocess.Popen(
            [sys.executable, script, str(rank), str(tmp_path / "store"), str(folder), "3"], stdout=subprocess.PIPE, text=True
        )
        for rank, folder in enumerate(folders)
    ]
    reports = [json.loads(run.communicate(timeout=150)[0]) for run in runs]
    assert [run.returncode for run in runs] == [0] * 3
    large, small = reports[0]["records"], reports[2]["records"]
    for drop_last, steps in ((True, min(large // 4, small // 2)), (False, max(-(-large // 4), -(-small // 2)))):
        batches, ranks, worlds, fingerprints = zip(*(one[str(drop_last)] for one in reports), strict=True)
        assert batches == (steps,) * 3 and len(set(fingerprints)) == 1
        assert ranks == (0, 1, 0) and worlds == (2, 2, 1)
    assert all("how many records" in one["error"] for one in reports[:2])


def test_parts_of_a_stream(tmp_path: Path, hosts: list[Path]) -> None:
    streams = [b"".join(path.read_bytes() for path in sorted(host.glob("*.tar"))) for host in hosts]
    counts = [len(headrace.open(host, part=True)) for host in hosts]
    for rank in range(2):
        with channel(tmp_path, [streams[rank]] * 2) as path:
            data = headrace.open(path, records=counts[rank])
            training = loader(data, rank=rank, world_size=2, parts=counts)
            assert [len(list(training)), len(list(training))] == [min(counts) // 2] * 2 and training.epoch == 2
            with pytest.raises(UsageError, match="drop_last"):
                loader(data, rank=rank, world_size=2, parts=counts, drop_last=False)


def test_steps_of_a_part() -> None:
    assert parts._steps(10, 4, True) == 2 and parts._steps(10, 4, False) == 3
    assert np.all(np.array([parts._steps(n, 3, False) * 3 >= n for n in range(20)]))
