"""The harness of the public scripts: what it compares, what it leaves out, and that its table and layouts are sound.

The scripts themselves run by `make test-scripts`, which needs their repositories.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from layouts import LAYOUTS  # noqa: E402
from outcomes import Outcome, differences, digests, lines  # noqa: E402
from soak import RUN, Script, Soak, table  # noqa: E402


def outcome(
    code: int | None = 0, out: str = "", err: str = "", logs: dict[str, list[str]] | None = None, **files: str
) -> Outcome:
    kept, ours = lines(out)
    errors, ours_too = lines(err)
    return Outcome(code, kept, errors, logs or {}, files, ours + ours_too, 0.0)


def test_equal_runs_do_not_differ() -> None:
    left = [outcome(out=f"loss 0.25\nTime {each:.3f} ( {each:.3f})\n", weights="a") for each in (0.1, 0.2, 0.3)]
    assert differences(left[:2], left[2]) == []


def test_a_duration_in_several_units_is_a_time() -> None:
    left = [outcome(out=f"Step: {each} | Tot: 1m{each}") for each in ("988ms", "1s2ms", "2D3h")]
    assert differences(left[:2], left[2]) == []


@pytest.mark.parametrize(
    ("other", "what"),
    [
        (outcome(1, "loss 0.25", weights="a"), "exit code 1 instead of 0"),
        (outcome(0, "loss 0.26", weights="a"), "stdout: +loss 0.26"),
        (outcome(0, "loss 0.25", "x.py:1: UserWarning: w", weights="a"), "stderr: +x.py:1: UserWarning: w"),
        (outcome(0, "loss 0.25", weights="b"), "file differs: weights"),
        (outcome(0, "loss 0.25"), "file not written: weights"),
        (outcome(0, "loss 0.25", weights="a", more="c"), "file written by no plain run: more"),
        (outcome(0, "loss 0.25", logs={"main": ["1"]}, weights="a"), "processes that call a model: ['main'] instead of []"),
    ],
)
def test_each_difference_is_said(other: Outcome, what: str) -> None:
    plain = [outcome(0, "loss 0.25", weights="a") for _ in range(2)]
    assert what in differences(plain, other)


def test_what_plain_runs_disagree_in_is_not_compared() -> None:
    plain = [outcome(0, f"loss {each}", f"seed {each}", {"main": ["1", str(each)]}, log=str(each)) for each in (1, 2)]
    assert differences(plain, outcome(0, "loss 3", "seed 3", {"main": ["1", "3"]}, log="3")) == []
    assert differences(plain, outcome(0, "loss 3", "seed 3", {"main": ["2", "3"]}, log="3"))
    assert differences(plain, outcome(0, "loss 3\nmore", "seed 3", {"main": ["1", "3"]}, log="3")) == ["stdout: +~ more"]


def test_a_workers_warning_may_come_between_other_lines() -> None:
    plain = outcome(err="x.py:1: UserWarning: w\n  warn()\nstep 0\nstep 1")
    assert differences([plain] * 2, outcome(err="step 0\nx.py:1: UserWarning: w\n  warn()\nstep 1")) == []
    assert differences([plain] * 2, outcome(err="x.py:1: UserWarning: w\n  warn()\nstep 1\nstep 0")) == [
        "stderr: the order of lines"
    ]
    assert differences([plain] * 2, outcome(err="step 0\nstep 1"))


def test_plain_runs_that_end_differently_are_a_finding() -> None:
    assert differences([outcome(0), outcome(1)], outcome(1)) == ["exit codes 0 and 1 of the plain runs"]


def test_bars_and_our_own_lines_are_left_out() -> None:
    text = "50%|##  | 1/2 [00:01<00:01]\rheadrace run: loader over X taken over: y\nkept\n"
    assert lines(text) == (["kept"], ["headrace run: loader over X taken over: y"])
    coloured = "\x1b[34m\x1b[1mtrain: \x1b[0mScanning...  50%|##  | 1/2 [00:01<00:01]\r"
    assert lines(coloured + "\x1b[1mkept\x1b[0m\n") == (["kept"], [])


@pytest.mark.matrix(keep=8)
@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_is_the_same_each_time_and_its_images_open(tmp_path: Path, name: str) -> None:
    for copy in ("one", "two"):
        (tmp_path / copy).mkdir()
        LAYOUTS[name](tmp_path / copy)
    texts = (".yaml", ".csv", ".txt", ".data")  # they name the folder
    first, second = (
        {path: value for path, value in digests(tmp_path / copy).items() if not path.endswith(texts)} for copy in ("one", "two")
    )
    assert first == second and (first or name == "nothing")
    for path in list((tmp_path / "one").rglob("*.jp*g"))[:30]:
        with Image.open(path) as image:
            assert min(image.size) >= 60


def test_the_table_is_sound() -> None:
    entries = table()
    assert len({entry.name for entry in entries}) == len(entries)
    for entry in entries:
        assert entry.data in LAYOUTS, entry.name
        assert entry.command and entry.commit, entry.name


def test_without_repositories_the_soak_says_that_it_is_skipped() -> None:
    done = subprocess.run([sys.executable, str(HERE / "soak.py"), "/none"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "test-scripts: skipped: no folder of public repositories" in done.stdout


SCRIPT = """
import sys
import torch, torchvision
from torchvision import transforms

if __name__ == "__main__":
    steps = transforms.Compose([transforms.Resize((8, 8)), transforms.ToTensor()])
    data = torchvision.datasets.ImageFolder(sys.argv[1] + "/train", steps)
    model = torch.nn.Linear(192, 6)
    for images, labels in torch.utils.data.DataLoader(data, 9, shuffle=True, num_workers=1):
        loss = torch.nn.functional.cross_entropy(model(images.flatten(1)), labels)
        loss.backward()
        print(loss.item())
    torch.save(model.state_dict(), "weights.pth")
"""


@pytest.mark.slow
def test_a_script_runs_plain_and_under_run_with_equal_losses_and_files(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "train.py").write_text(SCRIPT)
    soak = Soak(
        Script("small", "own/small", ("train.py", "{data}"), "imagenet_plain"), source, tmp_path / "work", sys.executable
    )
    plain = [soak.run(f"plain-{number}", ()) for number in (1, 2)]
    ours = soak.run("run-1", RUN)
    assert plain[0].code == 0 and len(plain[0].logs["train.py.MainProcess."]) == 8
    assert "repository/weights.pth" in plain[0].files
    assert ours.taken == "1 whole"
    assert differences(plain, ours) == []
