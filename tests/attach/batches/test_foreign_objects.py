"""Objects of the script that the timing of batches meets: none of their code is run, and no hook ends because of them."""

from __future__ import annotations

import threading
import types
from pathlib import Path
from typing import Any

import numpy
import pytest
from headrace.attach.record import stacks
from headrace.attach.record.recorder import Recorder

torch: Any = pytest.importorskip("torch")

from headrace.attach.batches import contents, fetch, steps, worker_draws  # noqa: E402 -- needs PyTorch


def test_a_function_that_refers_to_a_name_bound_later_is_looked_into() -> None:
    def transform() -> Any:
        return generator, later

    generator = torch.Generator()
    found = dict(worker_draws._generators({"dataset": transform}))
    later = None  # until here its cell is empty
    assert transform() == (generator, later)
    assert found == {"dataset.generator": generator}


def test_images_of_several_folders_together_are_sampled(tmp_path: Path) -> None:
    folders = [types.SimpleNamespace(samples=[(str(tmp_path / name / f"{at}.jpg"), 0) for at in range(3)]) for name in "ab"]
    both = torch.utils.data.ConcatDataset([[0]])
    both.datasets = [*folders, folders[0]]
    assert len(steps._sample_paths(both)) == 6
    assert steps._sample_paths(torch.utils.data.ConcatDataset([[0]])) == []


class Shared:
    """A dataset whose generator is an attribute of its class."""

    rng = numpy.random.RandomState(0)
    other = object()


def test_a_generator_of_a_class_of_the_script_is_found() -> None:
    assert dict(worker_draws._generators({"dataset": [Shared()]})) == {"dataset[0].rng": Shared.rng}


def test_a_label_that_is_added_while_the_labels_are_written_is_no_error() -> None:
    loader = contents._Loader({})

    class Count(int):
        def __truediv__(self, other: Any) -> float:
            loader.labels[len(loader.labels)] = 1  # as another thread
            return int(self) / other

    loader.labels.update({0: Count(3), 1: Count(1)})
    loader.label_looks, loader.label_sizes = 2, 4
    assert loader.line()["expected_single"] == pytest.approx(0.625)


def test_an_answer_of_a_store_may_be_begun_with_arguments() -> None:
    begun = []
    begin: Any = fetch._counted_refusals(lambda *args, **options: begun.append((args, options)))
    response = types.SimpleNamespace(status=503)
    begin(response, _max_headers=7)
    assert begun == [((response,), {"_max_headers": 7})]


class Frame:
    """As pandas.DataFrame, whose `values` copies the whole frame."""

    shape = (5, 2)

    @property
    def values(self) -> Any:
        raise AssertionError("copied")


class PerReplica:
    """As that of tf.distribute."""

    def __init__(self, *values: Any) -> None:
        self.values = values


def test_the_size_of_a_batch_is_read_without_its_values() -> None:
    assert steps._batch_size({"x": [Frame()]}) == 5
    assert steps._batch_size(PerReplica(torch.zeros(3, 2), torch.zeros(2, 2))) == 5


@pytest.mark.parametrize("in_order", [True, False])
def test_records_are_those_of_a_batch_only_where_batches_are_delivered_as_drawn(in_order: bool) -> None:
    one = contents._Pass(contents._Loader({}), 0)
    watcher = contents._Watcher(types.SimpleNamespace(before_flush=[]))  # type: ignore[arg-type]
    watcher.drawn(types.SimpleNamespace(contents=one), numpy.array([5, 6, 7]), in_order)  # type: ignore[arg-type]
    assert one.records == 3
    assert len(one.looks) == 1
    assert len(one.digests) == in_order


def test_a_loader_that_a_dataset_reads_ends_only_its_own_marks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sampler = stacks.StackSampler(Recorder(tmp_path))
    monkeypatch.setattr(stacks, "_samplers", [sampler])
    timer = types.SimpleNamespace(leave=lambda: None, has_ended=lambda index: None)
    seen: list[Any] = []

    def has_begun(fetcher: Any) -> bool:
        fetch._timing.outer = stacks.mark("batch", 1)
        return True

    def made(fetcher: Any, index: int) -> None:
        if index:
            timed(fetcher, index - 1)
            seen.append(sampler._marks.get(threading.get_ident()))

    timer.has_begun = has_begun
    timed: Any = fetch._timed_fetch(made, timer)  # type: ignore[arg-type]
    timed(None, 1)
    assert seen[0] is not None and seen[0][0] == ("batch", 1)
    assert not sampler._marks
    sampler.stop()


def test_the_memory_of_workers_is_read_in_the_first_passes_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reading is made before the batch is handed out, and takes a second where tens of gigabytes are mapped."""
    monkeypatch.setattr(fetch, "passes", {1: 3, 2: 90})
    timer = fetch._BatchTimer(types.SimpleNamespace(closed=False))  # type: ignore[arg-type]
    timer.worker, timer.made, timer.memory_at, timer.memory_after_s = 0, fetch.SOCKETS_AT_BATCH, 5, 0.0
    due = []
    for timer.loader in (1, 2):
        due.append(timer._is_memory_due(1.0))
    timer.made = 10
    due.append(timer._is_memory_due(1.0))
    assert due == [True, False, False]
