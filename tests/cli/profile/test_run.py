"""`headrace run` as a command: whole scripts in processes of their own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

SCRIPT = """
import sys, torch
from torch.utils.data import DataLoader
from torchvision import transforms as T
from torchvision.datasets import ImageFolder

def main():
    normalize = T.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    train = ImageFolder(sys.argv[1], T.Compose([T.RandomResizedCrop(32), T.RandomHorizontalFlip(), T.ToTensor(), normalize]))
    val = ImageFolder(sys.argv[1], T.Compose([T.Resize(40), T.CenterCrop(32), T.ToTensor(), normalize]))
    half = ImageFolder(sys.argv[1], T.Compose([T.Resize((32, 32)), T.ToTensor(), lambda image: image * 2]))
    odd = torch.utils.data.TensorDataset(torch.zeros(6, 3, 32, 32), torch.arange(6))
    torch.manual_seed(1)
    for name, data, workers in (("train", train, 1), ("val", val, 0), ("half", half, 0), ("odd", odd, 0)):
        loader = DataLoader(data, batch_size=5, shuffle=name == "train", num_workers=workers)
        for images, labels in loader:
            assert images.shape[1:] == (3, 32, 32) and images.dtype == torch.float32 and len(images) == len(labels)
            print(name, labels.tolist(), f"{float(images.double().sum()):.6f}" if name != "train" else "")
    sys.exit(int(sys.argv[2]))

if __name__ == "__main__":
    main()
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def headrace(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs `headrace run ARGUMENTS`."""
    command = [sys.executable, "-m", "headrace", "run", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, env={**os.environ, **environment})


def document(result: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.mark.slow
def test_a_script_sees_the_same_labels_and_values(script: Path, image_folder: Callable[..., Path]) -> None:
    command = [sys.executable, str(script), str(image_folder()), "0"]
    plain = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    ours = headrace("--", *command)
    assert ours.returncode == 0, ours.stderr
    assert ours.stdout == plain.stdout
    lines = [line for line in ours.stderr.splitlines() if line.startswith("headrace run: loader")]
    assert re.search(r"images\) taken over: decode, .* in 1 native thread instead of 1 worker", lines[0])
    assert "instead of the main process" in lines[1]
    assert "taken over in part: the decode and resize of JPEGs that Pillow opens are native in" in lines[2]
    assert "TensorDataset not taken over: dataset TensorDataset is not an image folder" in lines[3]
    assert lines[2].endswith("the rest is the script's own (transform <lambda> has no exact native equivalent)")


def test_json_is_one_document_and_the_exit_code_is_the_scripts(script: Path, image_folder: Callable[..., Path]) -> None:
    root = image_folder()
    result = headrace("--json", "--explain", "--", sys.executable, str(script), str(root), "7")
    assert result.returncode == 7
    found = document(result)
    assert found["exit_code"] == 7 and not found["off"]
    assert [loader["taken_over"] for loader in found["loaders"]] == [True, True, True, False]
    assert [loader["dataset"] for loader in found["loaders"]] == [f"ImageFolder({root})"] * 3 + ["TensorDataset"]
    assert all(loader["reason"] for loader in found["loaders"])
    assert "train [" in result.stderr and "RandomResizedCrop(size=(32, 32)" in result.stderr


BARS = """
import sys
from torch.utils.data import DataLoader
from torchvision import transforms as T
from torchvision.datasets import ImageFolder
from tqdm import tqdm

data = ImageFolder(sys.argv[1], T.Compose([T.Resize((32, 32)), T.ToTensor()]))
for _ in tqdm(DataLoader(data, 4)): pass
"""


@pytest.mark.slow
def test_log_lines_stand_above_the_scripts_progress_bar(tmp_path: Path, image_folder: Callable[..., Path]) -> None:
    pytest.importorskip("tqdm")
    (tmp_path / "bars.py").write_text(BARS)
    result = headrace("--", sys.executable, str(tmp_path / "bars.py"), str(image_folder()))
    assert result.returncode == 0, result.stderr
    lines = result.stderr.split("\n")
    visible = [line.rpartition("\r")[2] for line in lines]  # a carriage return makes a terminal draw over the line
    assert any(line.startswith("headrace run: loader over ImageFolder") for line in visible), result.stderr
    assert "100%" in lines[-3]  # the bar goes on below
    assert re.fullmatch(
        r"headrace run: ImageFolder\(.*\): input [\d,]+ img/s; the loop waited (<1|\d+) % of the time", lines[-2]
    )


OUTCOME = """
import sys, time, torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms as T
from torchvision.datasets import ImageFolder

class Own(Dataset):
    def __init__(self, root):
        self.files = ImageFolder(root).samples * 8
    def __len__(self):
        return len(self.files)
    def __getitem__(self, index):
        image = Image.open(self.files[index][0]).convert("RGB").resize((32, 32))
        return torch.tensor(image.getpixel((1, 1))), index

data = ImageFolder(sys.argv[1], T.Compose([T.Resize((32, 32)), T.ToTensor()]))
for _ in range(2):
    for images, _ in DataLoader(data, 4): time.sleep(0.05)
for images, _ in DataLoader(Own(sys.argv[1]), 16, num_workers=1): pass
for images in DataLoader(torch.utils.data.TensorDataset(torch.zeros(90)), 1): time.sleep(0.02)
"""


@pytest.mark.slow
def test_what_came_of_the_run_is_that_of_the_longest_loop_that_is_taken_over(
    tmp_path: Path, image_folder: Callable[..., Path]
) -> None:
    (tmp_path / "script.py").write_text(OUTCOME)
    root = image_folder()
    result = headrace("--json", "--", sys.executable, str(tmp_path / "script.py"), str(root))
    assert result.returncode == 0, result.stderr
    found = document(result)["outcome"]
    count = len(list(root.glob("*/*.jpg")))
    if found["dataset"] == "Own":  # a busy machine: its workers took longer to start
        assert (found["images"], found["batches"]) == (8 * count, -(-8 * count // 16))
    else:
        assert found["dataset"] == f"ImageFolder({root})" and found["images"] == 2 * count
        assert found["seconds"] > 2 * -(-count // 4) * 0.05 and 0 <= found["wait_share"] < 1
        assert found["item_cpu_share"] is found["measured_items"] is None


@pytest.mark.slow
def test_headrace_off_leaves_the_script_alone(script: Path, image_folder: Callable[..., Path]) -> None:
    result = headrace("--json", "--", sys.executable, str(script), str(image_folder()), "0", HEADRACE="off")
    assert result.returncode == 0
    assert document(result)["off"] and document(result)["loaders"] == []
    assert "loader over" not in result.stderr


def test_a_command_without_loaders(tmp_path: Path) -> None:
    result = headrace("--", sys.executable, "-c", "print('hello')")
    assert (result.returncode, result.stdout) == (0, "hello\n")
    assert "no torch.utils.data.DataLoader" in result.stderr


@pytest.mark.slow
def test_a_script_that_fails_before_loading_gets_no_advice_about_loaders() -> None:
    result = headrace("--", sys.executable, "-c", "import torch; raise SystemExit(3)")
    assert result.returncode == 3
    assert "DataLoader" not in result.stderr and "TensorFlow" not in result.stderr


def test_the_exit_code_after_a_signal_is_128_plus_its_number() -> None:
    assert headrace("--", sys.executable, "-c", "import os; os.kill(os.getpid(), 9)").returncode == 137


ENDLESS = """
import sys
from torch.utils.data import DataLoader
from torchvision import transforms as T
from torchvision.datasets import ImageFolder

data = ImageFolder(sys.argv[1], T.Compose([T.RandomResizedCrop(32), T.ToTensor()]))
for epoch in range(10**9):
    for batch in DataLoader(data, 4, shuffle=True, num_workers=1):
        if epoch == 3:
            print("going", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_end_the_script(tmp_path: Path, image_folder: Callable[..., Path], number: int, code: int) -> None:
    script = tmp_path / "endless.py"
    script.write_text(ENDLESS)
    command = [sys.executable, "-m", "headrace", "run", "--", sys.executable, str(script), str(image_folder())]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, start_new_session=True, **pipes) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "going\n"
            process.send_signal(number)
            _, remarks = process.communicate(timeout=60)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # else a script that goes on holds up all further tests
    assert process.returncode == code
    assert remarks.count("taken over") == 1  # a new loader for every epoch is no news


RANKS = """
import sys
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler
from torchvision import transforms as T
from torchvision.datasets import ImageFolder

def main():
    dist.init_process_group("gloo")
    data = ImageFolder(sys.argv[1], T.Compose([T.Resize(40), T.CenterCrop(32), T.ToTensor()]))
    sampler = DistributedSampler(data, shuffle=True, seed=3)
    loader = DataLoader(data, 4, sampler=sampler, num_workers=1, persistent_workers=True)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        total = torch.zeros((), dtype=torch.float64)
        for images, labels in loader:
            total += (images.double().sum((1, 2, 3)) * (1 + labels)).sum()
        dist.all_reduce(total)
        if dist.get_rank() == 0:
            print(epoch, f"{float(total):.6f}", flush=True)
    dist.destroy_process_group()

if __name__ == "__main__":
    main()
"""


@pytest.mark.slow
def test_two_ranks_compute_the_same_sums(tmp_path: Path, image_folder: Callable[..., Path]) -> None:
    script = tmp_path / "ranks.py"
    script.write_text(RANKS)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    command = [*torchrun, str(script), str(image_folder(classes=3, per_class=7))]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    plain = subprocess.run(command, capture_output=True, text=True, timeout=110, check=True, env=environment)
    ours = headrace("--json", "--", *command, OMP_NUM_THREADS="1")
    assert ours.returncode == 0, ours.stderr
    assert [line for line in ours.stderr.splitlines() if line[:2] in ("0 ", "1 ")] == plain.stdout.splitlines()
    assert ours.stderr.count("taken over") == 1  # rank 0 speaks
    assert sorted(loader["rank"] for loader in document(ours)["loaders"]) == ["0", "1"]


def test_wrong_calls_are_usage_errors() -> None:
    assert headrace().returncode == 2
    assert headrace("--threads", "0", "--", "true").returncode == 2
    missing = headrace("--", "no-such-program-here")
    assert missing.returncode == 1 and "no-such-program-here" in missing.stderr
