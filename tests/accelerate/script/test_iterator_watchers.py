"""Code that looks inside torch's iterators finds torch's own iterator, workers and queues."""

from __future__ import annotations

import subprocess
import sys
import types
from pathlib import Path

import pytest
from headrace.accelerate.script import iterator_watchers
from headrace.accelerate.script.iterator_watchers import _LOOK, CLASSES, HARMLESS, looks_at_iterators
from torch.utils.data import dataloader

find_unknown_framework = iterator_watchers._unknown_framework  # the fixture of this folder replaces it

LOOKS = (
    "from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter as Workers",
    "assert isinstance(iter(loader), torch.utils.data.dataloader._BaseDataLoaderIter)",
    "print([worker.is_alive() for worker in batches._workers])",
    "for worker in loader._iterator._workers: worker.terminate()",
    "print(hasattr(batches, '_workers'))",
    'queue = getattr(batches, "_data_queue")',
    "assert batches._data_queue is batches._worker_result_queue",
    "fill = batches._send_idx - batches._rcvd_idx",
    "print(len(multiprocessing.active_children()))",
    "print(len(psutil.Process().children(recursive=True)))",
    "next(batches._sampler_iter)  # skips a batch",
    "indices = batches._next_index()",
    "warnings.filterwarnings('ignore', message='.*_MultiProcessingDataLoaderIter.*')",
)

NO_LOOKS = (
    "self._workers = 3",
    "num_workers = loader.num_workers",
    "for layer in model.children():",
    "it._shutdown_workers()",
    "loader._iterator = None",
    "value = self._data_queue.get()",
    "dataset._get_data(3)",
)


@pytest.mark.parametrize("text", [*LOOKS, *NO_LOOKS])
def test_what_only_torchs_iterators_have_counts(text: str) -> None:
    assert bool(_LOOK.search(text)) == (text in LOOKS)


SCRIPT = """
import multiprocessing, sys
import torch
import watchdog
from torch.utils.data import DataLoader
from torchvision import datasets, transforms
torch.manual_seed(0)
transform = transforms.Compose([transforms.Resize((32, 32)), transforms.ToTensor()])
loader = DataLoader(datasets.ImageFolder(sys.argv[1], transform), 4, num_workers=2)
batches = iter(loader)
first = next(batches)
print(type(batches), watchdog.alive(batches), len(multiprocessing.active_children()))
print(float(first[0].sum()), [float(images.sum()) for images, _ in batches])
"""
WATCHDOG = """
def alive(batches):
    assert batches._data_queue is batches._worker_result_queue
    return [worker.is_alive() for worker in batches._workers], type(batches._data_queue), sorted(vars(batches))
"""


@pytest.mark.slow
@pytest.mark.parametrize("look", ["in the script", "in a module of it"])
def test_a_script_that_looks_inside_its_iterator_finds_torchs_own(tmp_path: Path, folder: Path, look: str) -> None:
    text = SCRIPT
    if look == "in the script":
        text = text.replace("import watchdog\n", WATCHDOG).replace("watchdog.", "")
    (tmp_path / "script.py").write_text(text.replace("len(multiprocessing.active_children())", "'two'"))
    (tmp_path / "watchdog.py").write_text(WATCHDOG)
    command = [sys.executable, "script.py", str(folder)]
    plain = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    run = [sys.executable, "-m", "headrace", "run", "--", *command]
    ours = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert ours.returncode == plain.returncode == 0, ours.stderr + plain.stderr
    assert ours.stdout == plain.stdout
    module = "__main__" if look == "in the script" else "watchdog"
    assert f"({module} looks inside torch's iterator or for its workers)" in ours.stderr
    assert "taken over in part: " in ours.stderr


@pytest.mark.parametrize("name", [*HARMLESS, "composer.trainer", "lightning.pytorch.watchdog"])
def test_a_framework_that_imports_the_classes_counts_unless_it_is_known(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iterator_watchers, "_unknown_framework", find_unknown_framework)
    held = {one for one, module in sys.modules.items() if any(hasattr(module, kind) for kind in CLASSES)}
    others = [one for one in held if "torch." not in one]
    for other in [*others, *(one for one in HARMLESS if one in sys.modules)]:
        monkeypatch.delitem(sys.modules, other)
    assert looks_at_iterators() is None
    stand_in = types.ModuleType(name)
    stand_in._MultiProcessingDataLoaderIter = dataloader._MultiProcessingDataLoaderIter  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, name, stand_in)
    assert looks_at_iterators() == (None if name in HARMLESS else name)
