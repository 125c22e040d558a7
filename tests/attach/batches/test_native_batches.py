"""What a session records of `headrace.Loader`: its threads as workers, its images, and the cost of a batch."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from headrace.attach.batches.native_batches import THREAD_NAME
from headrace.diagnosis.measure import measure_ranks
from headrace.profiling.command import watch
from headrace.session.model import Session

pytest.importorskip("torch")

SCRIPT = """
import sys, time
import torch
import headrace as hr

model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = hr.Loader(sys.argv[1], batch_size=8, transform=hr.transforms.imagenet_train(64), threads=2, seed=0)
ends = time.monotonic() + 4
while time.monotonic() < ends:
    for images, labels in loader:
        model(torch.ones(1)).sum().backward()
        optimizer.step()
        time.sleep(0.01)
"""


@pytest.mark.slow
def test_batches_of_the_own_loader_have_a_cost_and_sample_paths(tmp_path: Path, image_folder: Callable[..., Path]) -> None:
    photos = image_folder(per_class=20)
    (tmp_path / "train.py").write_text(SCRIPT)
    watch([sys.executable, str(tmp_path / "train.py"), str(photos)], tmp_path / "session")
    session = Session.load(tmp_path / "session")
    (loader,) = session.loaders
    assert (loader.family, loader.num_workers, loader.batch_size) == ("headrace", 2, 8)
    assert loader.sample_paths and all(Path(path).is_file() for path in loader.sample_paths)
    assert session.batches, session.not_measured
    read_bytes = sum(file.stat().st_size for file in photos.rglob("*.jpg")) / len(list(photos.rglob("*.jpg")))
    for batch in session.batches:
        assert batch.worker == -1 and batch.items == 8
        assert batch.cpu_s is not None and batch.cpu_s > 0
        assert batch.wall_s >= batch.cpu_s + (batch.queue_s or 0.0) - 1e-5
        assert batch.read_bytes == pytest.approx(8 * read_bytes, rel=0.5)
    (rank,) = measure_ranks(session)
    assert rank.batch_cost is not None and rank.process_cpu_s is not None
    total_s = sum(step.process_cpu_s or 0.0 for step in rank.steps) / len(rank.steps)
    assert rank.process_cpu_s < total_s  # the loader's threads are no part of what training needs


def test_the_loaders_threads_have_the_name_by_which_they_are_found(image_folder: Callable[..., Path]) -> None:
    import headrace as hr

    def native_threads() -> list[str]:
        names = [(thread / "comm").read_bytes() for thread in Path("/proc/self/task").iterdir()]
        return [name.decode().strip() for name in names if name.startswith(THREAD_NAME)]

    before = len(native_threads())
    transform = hr.transforms.imagenet_train(32)
    with hr.Loader(image_folder(per_class=4), batch_size=4, transform=transform, threads=3, output="numpy") as loader:
        next(iter(loader))
        deadline_s = time.monotonic() + 20  # a thread names itself once it has a core
        while len(native_threads()) < before + 3 and time.monotonic() < deadline_s:
            time.sleep(0.01)
        assert len(native_threads()) == before + 3
