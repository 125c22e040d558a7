"""The recogniser's answer in a watched job: what `headrace run` would do with each loader, at no cost and with no effect."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from headrace.accelerate.recognition_hook import ask
from headrace.accelerate.whole.folders import NATIVE_DTYPES
from headrace.diagnosis.diagnose import diagnose
from headrace.profiling.command import watch
from headrace.profiling.finish import finish
from headrace.session.merge_loaders import merge_recreated_loaders
from headrace.session.model import ObservedLoader, Session
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

SCRIPT = """
import hashlib, random, sys
import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms
from torchvision.datasets import ImageFolder

torch.set_num_threads(1)

class Noise:
    def __init__(self):
        self.generator = torch.Generator().manual_seed(5)
    def __call__(self, image):
        return image + torch.rand(image.shape, generator=self.generator)

class Own(Dataset):
    def __init__(self, root):
        self.samples = ImageFolder(root).samples
    def __len__(self):
        return len(self.samples)
    def __getitem__(self, index):
        path, label = self.samples[index]
        image = Image.open(path).convert("RGB").resize((32, 32))
        return torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1).float(), label

CROP, TENSOR = transforms.RandomResizedCrop(32), transforms.ToTensor()
TRANSFORMS = {
    "whole": [CROP, transforms.RandomHorizontalFlip(), TENSOR, transforms.Normalize([0.5] * 3, [0.2] * 3)],
    "part": [CROP, transforms.RandomPerspective(), TENSOR],
    "noise": [CROP, TENSOR, Noise()],
}

def main(root, kind, workers):
    torch.manual_seed(3); random.seed(3); np.random.seed(3)
    data = Own(root) if kind == "own" else ImageFolder(root, transforms.Compose(TRANSFORMS[kind]))
    loader = DataLoader(data, batch_size=4, shuffle=True, num_workers=workers)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    digest = hashlib.sha256()
    for _ in range(3):
        for images, labels in loader:
            digest.update(images.numpy().tobytes() + labels.numpy().tobytes())
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
    print(digest.hexdigest(), torch.rand(1).item(), random.random(), np.random.rand())

if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    file = tmp_path / "train.py"
    file.write_text(SCRIPT)
    return file


def watched(script: Path, root: Path, kind: str, workers: int = 0) -> tuple[Session, str]:
    """Run the script under the hooks of `headrace diagnose`; the session, and what the script printed."""
    out = script.with_name("out.txt")
    with out.open("wb") as log:
        session = script.with_name(f"session-{kind}-{workers}")
        assert watch([sys.executable, str(script), str(root), kind, str(workers)], session, log=log).returncode == 0
    return Session.load(session), out.read_text()


LAZY_ONLY = "the decode, crop and resize of JPEGs that Pillow opens only: "


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "take_over", "part", "reason"),
    [
        ("whole", "whole", None, None),
        (
            "part",
            "part",
            "resized",
            "decode and RandomResizedCrop at least: transform RandomPerspective has no exact native equivalent",
        ),
        ("noise", "part", "resized", "decode and RandomResizedCrop at least: transform Noise has no exact native equivalent"),
        ("own", "part", None, LAZY_ONLY + "dataset Own is not an image folder, and its items use Image.resize"),
    ],
)
def test_a_session_holds_what_run_would_do(
    script: Path, image_folder: Callable[..., Path], kind: str, take_over: str, part: str | None, reason: str | None
) -> None:
    session, _ = watched(script, image_folder(classes=4, per_class=5), kind, workers=1)
    (loader,) = session.loaders
    assert (loader.take_over, loader.native_part, loader.take_over_reason) == (take_over, part, reason)
    assert loader.batched_by == "loader"


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "workers"), [("whole", 0), ("part", 1), ("noise", 0), ("noise", 1)])
def test_watching_changes_no_draw(script: Path, image_folder: Callable[..., Path], kind: str, workers: int) -> None:
    """The digest of all batches, and the state of each generator afterwards."""
    root = image_folder(classes=4, per_class=5)
    alone = subprocess.run(
        [sys.executable, str(script), str(root), kind, str(workers)], capture_output=True, text=True, check=True
    )
    _, printed = watched(script, root, kind, workers)
    assert printed == alone.stdout
    assert len(printed.split()) == 4


@pytest.mark.slow
def test_a_loader_whose_gain_only_its_items_tell_gets_no_prediction(script: Path, image_folder: Callable[..., Path]) -> None:
    watched(script, image_folder(classes=10, per_class=12), "own")
    session, diagnosis = finish(script.with_name("session-own-0"), log=print, report=False)
    assert session.facts["image_benchmark"]["headrace_s"], "without the answer, headrace_run would be predicted from this"
    assert all(fix.predicted_img_s is None for fix in diagnosis.fixes if fix.id == "headrace_run")
    input_finding = next(found for found in diagnosis.findings if found.kind == "NO_OVERLAP")
    assert not any("headrace run would not help" in words for words in input_finding.evidence)


def lines(session: Path, kind: str) -> list[dict[str, Any]]:
    rows = [json.loads(row) for file in session.glob("*.jsonl") for row in file.read_text().splitlines()]
    return [row for row in rows if row["kind"] == kind]


@pytest.mark.slow
def test_each_loader_is_asked_about_once(script: Path, image_folder: Callable[..., Path]) -> None:
    watched(script, image_folder(classes=4, per_class=5), "whole", workers=1)
    (line,) = lines(script.with_name("session-whole-1"), "take_over")
    assert line["seconds"] >= 0


def test_asking_takes_little_cpu_time(image_folder: Callable[..., Path]) -> None:
    """CPU time of this thread, which other programs do not change much: a few milliseconds once everything is imported."""
    transform = v2.Compose([v2.RandomResizedCrop(32), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
    loader = DataLoader(ImageFolder(image_folder(classes=4, per_class=5), transform), batch_size=4)
    assert ask(loader).take_over != "unknown"
    begin_s = time.thread_time()
    ask(loader)
    assert time.thread_time() - begin_s < 0.5


@pytest.mark.slow
def test_loaders_that_a_script_makes_for_each_epoch_are_merged(tmp_path: Path, image_folder: Callable[..., Path]) -> None:
    script = tmp_path / "train.py"
    remade = SCRIPT.replace("for images, labels in loader:", "for images, labels in DataLoader(data, batch_size=4):")
    script.write_text(remade.replace("range(3)", "range(9)"))
    session, _ = watched(script, image_folder(classes=4, per_class=5), "part")
    assert len(session.loaders) == 9 and {loader.take_over for loader in session.loaders} <= {"part", None}
    assert [loader.remade for loader in merge_recreated_loaders(session).loaders] == [8]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "workers"), [("whole", "0"), ("whole", "2"), ("own", "0"), ("own", "2")])
def test_a_script_under_run_is_timed_and_not_asked_again(
    script: Path, image_folder: Callable[..., Path], kind: str, workers: str
) -> None:
    root, session = image_folder(classes=4, per_class=5), script.with_name("session")
    command = [sys.executable, "-m", "headrace", "run", "--", sys.executable, str(script), str(root), kind, workers]
    with script.with_name("log").open("wb") as log:
        assert watch(command, session, log=log).returncode == 0
    assert "taken over" in script.with_name("log").read_text()
    found = Session.load(session)
    assert {loader.take_over for loader in found.loaders} == {"active"}
    assert len(found.steps) == 15 and not [missing for missing in found.not_measured if "hook" in missing.what]


FAILING = """
import sys
from headrace.accelerate.whole import recognition
def fail(collate): raise KeyError("no such rule")
recognition.collate_kind = fail
"""


@pytest.mark.slow
def test_a_failing_recogniser_is_recorded_and_costs_the_job_nothing(tmp_path: Path, image_folder: Callable[..., Path]) -> None:
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(FAILING) + SCRIPT)
    session, printed = watched(script, image_folder(classes=4, per_class=5), "whole")
    (loader,) = session.loaders
    assert loader.take_over == "unknown" and "KeyError" in (loader.take_over_reason or "")
    assert len(printed.split()) == 4, "nothing else is printed"
    assert diagnose(session).steps > 0


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(range(4))


class ItsOwn(DataLoader[Any]):
    def _get_iterator(self) -> Any:
        raise AssertionError


class Watched(Dataset[Any]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        raise AssertionError("an item of the script was made")


class Counting:
    """A transform that must not be called."""

    def __call__(self, image: Any) -> Any:
        raise AssertionError("a transform of the script was called")


def test_asking_calls_nothing_of_the_script(folder: Path) -> None:
    for operations in ([Counting()], [v1.Resize((32, 32)), Counting()], [v1.Resize((32, 32)), v1.ToTensor(), Counting()]):
        answer = ask(DataLoader(ImageFolder(str(folder), v1.Compose(operations), target_transform=Counting()), 4))
        assert answer.take_over in ("part", "refused"), answer
    assert ask(DataLoader(Watched())).take_over == "part", "whether its items open JPEGs is seen when they are made"
    torch.manual_seed(1)
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    calls: list[Any] = []
    remove = torch.nn.modules.module.register_module_forward_hook(lambda *given: calls.append(given))
    whole = ask(
        DataLoader(ImageFolder(str(folder), v2.Compose([v2.RandomResizedCrop(32), v2.ToImage(), v2.ToDtype(torch.float32)])))
    )
    remove.remove()
    assert whole.take_over == "whole" and calls == []
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before[1:]


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda root: DataLoader(TensorDataset(torch.zeros(4))), "dataset TensorDataset is not an image folder"),
        (lambda root: ItsOwn(TensorDataset(torch.zeros(4))), "ItsOwn makes its own iterators"),
    ],
)
def test_a_refusal_has_runs_own_reason(folder: Path, make: Callable[[str], Any], reason: str) -> None:
    answer = ask(make(str(folder)))
    assert answer.take_over == "refused" and reason in (answer.reason or "")


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda root: DataLoader(Stream()), "its dataset is iterable, without indices"),
        (lambda root: DataLoader(ImageFolder(root, v1.ToTensor())), "its transform does not fix the image size"),
    ],
)
def test_items_that_may_open_jpegs_are_taken_over_in_part(folder: Path, make: Callable[[str], Any], reason: str) -> None:
    answer = ask(make(str(folder)))
    assert (answer.take_over, answer.reason, answer.native_part) == ("part", LAZY_ONLY + reason, None)


STACKS: dict[str, list[Any]] = {
    "whole": [v1.RandomResizedCrop(32), v1.ColorJitter(0.2), v1.ToTensor()],
    "uint8": [v1.Resize((32, 32)), v1.PILToTensor()],
    "blur": [v1.RandomResizedCrop(32), v1.RandomPerspective(), v1.ToTensor()],
    "lambda": [v1.Resize((32, 40)), v1.ToTensor(), v1.Lambda(lambda image: image * 2)],
    "tensors": [v2.ToImage(), v2.RandomResizedCrop(32, antialias=True), v2.ToDtype(torch.float32, scale=True)],
    "float64": [v2.RandomResizedCrop(32), v2.ToImage(), v2.ToDtype(torch.float64)],
    "nothing": [v1.RandomPerspective(), v1.Resize((32, 32)), v1.ToTensor()],
    "nearest": [v1.Resize((32, 32), interpolation=v1.InterpolationMode.NEAREST), v1.ToTensor()],
}


@pytest.mark.parametrize("name", STACKS)
def test_the_answer_is_what_run_does(name: str, folder: Path, request: pytest.FixtureRequest) -> None:
    loader: Any = DataLoader(ImageFolder(str(folder), v1.Compose(STACKS[name])), 5)
    answer = ask(loader)
    printed: list[str] = request.getfixturevalue("taken_over")
    list(loader)
    (line,) = printed
    done = "refused" if " not taken over" in line else "part" if "in part: " in line else "whole"
    assert answer.take_over == done, line
    if answer.take_over != "whole":
        assert (answer.reason or "").rpartition(": ")[2].partition(";")[0] in line


def test_the_rules_of_recognise_cover_the_value_types() -> None:
    assert "float64" not in NATIVE_DTYPES
    assert ObservedLoader(1, 0, 0, 1).take_over is None
