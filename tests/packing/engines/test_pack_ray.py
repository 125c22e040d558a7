"""Packing on a Ray cluster of two nodes on this machine: the same bytes as without. Skipped if Ray is not installed."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from file_digests import file_digests
from headrace.datasets.open import open_stored
from headrace.errors import DecodeError, HeadraceError, MissingDependencyError, UsageError
from headrace.packing import pack
from headrace.system.text.install_hints import extra_hint

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[object]:
    """Ray with two nodes of one core each."""
    ray = pytest.importorskip("ray")
    utilities = importlib.import_module("ray.cluster_utils")
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    made = utilities.Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": 100 << 20})
    made.add_node(num_cpus=1, object_store_memory=100 << 20)
    ray.init(address=made.address, log_to_driver=False)
    try:
        assert len(ray.nodes()) == 2
        yield made
    finally:
        ray.shutdown()
        made.shutdown()


def test_two_nodes_give_the_same_bytes(cluster: object, image_folder: Callable[..., Path], tmp_path: Path) -> None:
    source = image_folder(classes=2, per_class=8)
    (source / "class_0" / "bad.jpg").write_text("no image")
    options = {"shard_size": 70000, "train_ratio": 0.7, "shuffle": 1}
    here = pack(source, tmp_path / "here", **options)
    done: list[tuple[int, int]] = []
    there = pack(source, tmp_path / "there", engine="ray", on_progress=lambda *one: done.append(one), **options)
    assert (there.records, there.shards, there.errors) == (here.records, here.shards, here.errors) == (16, here.shards, 1)
    assert here.shards >= 4
    assert [sum(column) for column in zip(*done, strict=True)] == [17, there.bytes]
    assert file_digests(tmp_path / "there") == file_digests(tmp_path / "here")


def test_a_pack_begun_with_ray_is_finished_locally(cluster: object, image_folder: Callable[..., Path], tmp_path: Path) -> None:
    source = image_folder(classes=2, per_class=8)
    pack(source, tmp_path / "whole", shard_size=70000)
    first = pack(source, tmp_path / "mixed", shard_size=70000, unit=(0, 2), engine="ray", workers=1)
    assert not first.complete
    assert pack(source, tmp_path / "mixed", shard_size=70000).complete
    assert file_digests(tmp_path / "mixed") == file_digests(tmp_path / "whole")


def test_an_error_in_a_worker_is_raised_here(cluster: object, image_folder: Callable[..., Path], tmp_path: Path) -> None:
    source = image_folder()
    (source / "class_0" / "bad.jpg").write_text("no image")
    with pytest.raises(DecodeError, match=r"bad\.jpg"):
        pack(source, tmp_path / "out", engine="ray", undecodable="stop")


def test_a_source_that_differs_on_a_node_is_refused(cluster: object, image_folder: Callable[..., Path], tmp_path: Path) -> None:
    """A file appears between the driver's listing and the worker's, as if a node saw another folder."""
    source = image_folder()

    def meddle(_: int) -> None:
        (source / "class_0" / "new.jpg").write_bytes((source / "class_0" / "image_000.jpg").read_bytes())

    with pytest.raises(HeadraceError, match="other records"):
        pack(source, tmp_path / "out", engine="ray", on_start=meddle)


def test_ray_refuses_an_open_dataset(image_folder: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="path or URL"):
        pack(open_stored(image_folder()), tmp_path / "out", engine="ray")


def test_without_ray_the_error_says_what_to_install(
    image_folder: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingDependencyError) as caught:
        pack(image_folder(), tmp_path / "out", engine="ray")
    assert caught.value.hint == extra_hint("ray")
    assert not (tmp_path / "out").exists()


def test_an_unknown_engine_is_refused(image_folder: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="possible: local, ray"):
        pack(image_folder(), tmp_path / "out", engine="spark")
