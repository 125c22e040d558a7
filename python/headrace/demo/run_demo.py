"""The demo: diagnose a slow training script, run it faster unmodified, pack its images, and train from the pack.

Each step is a command that a user could type. Every number in the final table is measured in this run: the plain script and the
same script under `headrace run` take turns, on the same number of images.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.datasets.open import open_stored
from headrace.datasets.records.dataset import Dataset
from headrace.datasets.records.splits import train_and_validation
from headrace.demo import steps
from headrace.errors import CommandError, HeadraceError, SourceError
from headrace.images import photographs
from headrace.loading.loader import Loader
from headrace.system.files.private_files import foreign_part, make_private_folder, private_opener
from headrace.system.hardware import nvml
from headrace.system.processes import software
from headrace.training.distributed.devices import SIMULATED
from headrace.transforms.geometry import CenterCrop

__all__ = ["DemoResult", "Measurement", "default_folder", "run_demo"]

ROUNDS = 3
BATCH_SIZE = 64
DIAGNOSED_STEPS = 70  # a diagnosis needs 50
DIAGNOSED_SECONDS = 45  # limit of the diagnosis on a slow machine
TRAINED_STEPS, TRAINED_SECONDS = 300, 20  # steps of `headrace train`, and the seconds to which a slow machine shortens them
FEWEST_TRAINED_STEPS = 200
DECODE_CHECK_SECONDS = 20.0  # limit of the search for files that cannot be decoded
MOST_IMAGES = 3000  # take a sample of larger data: enough for every measurement, and packed in seconds

Log = Callable[[str], None]
OpenProgress = Callable[[str, int], Any]  # (description, total) → context manager that yields a ProgressBar


@dataclass(frozen=True, slots=True)
class Measurement:
    """One way of training, measured. img_s: of each round. wait_share: share of time that the GPU waited, 0 to 1, median."""

    img_s: tuple[float, ...]
    wait_share: float
    final_loss: float

    @property
    def median_img_s(self) -> float:
        """Median images/s over the rounds."""
        return statistics.median(self.img_s)


@dataclass(frozen=True, slots=True)
class DemoResult:
    """All measurements of a demo. `gpu_img_s` is the stated rate of the simulated GPU, None on a real one."""

    device: str
    gpu_img_s: float | None
    data: Path
    images: int
    images_per_round: int
    batch: list[Any]
    before: Measurement
    after: Measurement
    trained: Measurement
    taken_over: bool
    reason: str
    verdict: str
    diagnosis: dict[str, Any]
    packed: dict[str, Any]
    report: str | None
    seconds: float

    @property
    def speedup(self) -> float:
        """Rate of the unmodified script under `headrace run`, divided by its rate without."""
        return self.after.median_img_s / self.before.median_img_s


def default_folder() -> Path:
    """Return the folder that holds the photographs between runs, below the user's cache folder."""
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "headrace" / "demo"


def find_device() -> tuple[str, str]:
    """Return (value for --device, name to print): "cuda" and the GPU's name if torch can use one, else a simulated A100."""
    driver, _ = nvml.find_driver()
    if driver is not None and driver.gpus:
        torch, _ = software.read_torch()
        if torch is not None and torch.available:
            return "cuda", driver.gpus[0].name
    return "sim:a100", "simulated A100"


def run_demo(*, data: Path | None, folder: Path, seconds: float, log: Log, progress: OpenProgress) -> DemoResult:
    """Run the whole demo in `folder`; each measurement of the plain script takes about `seconds`.

    `data` is an image folder; None makes photographs. `log` receives every message, `progress` opens a progress bar. Raises
    HeadraceError for data that cannot be used (naming the files), for a command that failed (with its last lines), and for
    runs that did not do the same job.
    """
    started_s = time.monotonic()
    device, name = find_device()

    def show(line: str) -> None:
        log(line if line.startswith(f"{name}: ") else f"{name}: {line}")

    with _locked(folder):
        if data is not None:
            source = _training_part(data)
        else:
            source = _photographs(folder, show, lambda words, total: progress(f"{name}: {words}", total))
        dataset = _open_folder(source)
        if len(dataset) > MOST_IMAGES:
            source = _sample(dataset, folder / "sample", show)
            dataset = _open_folder(source)
        script = folder / "train.py"
        shutil.copyfile(Path(__file__).with_name("script.py"), script)
        batch_size = BATCH_SIZE if len(dataset) >= 4 * BATCH_SIZE else max(1, len(dataset) // 4)
        job = [str(script), "--data", str(source), "--device", device, "--batch-size", str(batch_size)]
        try:
            since_s = time.monotonic()
            diagnosis, img_s = _diagnose(folder, job, batch_size, show)
            steps_s = min(DIAGNOSED_STEPS * batch_size / img_s, DIAGNOSED_SECONDS)
            left_s = _time_left_s(max(0.0, time.monotonic() - since_s - steps_s), seconds)
            show(f"about {math.ceil(left_s / 10) * 10} s more for the rest, by the speed of this machine so far")
            rounds = _take_turns(folder, job, img_s, batch_size, seconds, show)
        except CommandError as error:
            if data is None:
                raise
            raise _with_undecodable_files(error, dataset) from error
        before, after, loaders, facts = rounds
        trained_steps = round(TRAINED_SECONDS * after.median_img_s / batch_size)
        trained_steps = max(FEWEST_TRAINED_STEPS, min(TRAINED_STEPS, trained_steps))
        packed, trained = _pack_and_train(folder, source, device, batch_size, trained_steps, show)
    return DemoResult(
        device=name,
        gpu_img_s=SIMULATED["a100"][0] if device == "sim:a100" else None,
        data=source,
        images=len(dataset),
        images_per_round=facts["images"],
        batch=facts["batches"],
        before=before,
        after=after,
        trained=trained,
        taken_over=all(loader["taken_over"] for loader in loaders) and bool(loaders),
        reason="; ".join(str(loader["reason"]) for loader in loaders),
        verdict=str(diagnosis["verdict"]),
        diagnosis=diagnosis,
        packed=packed,
        report=diagnosis["report"],
        seconds=time.monotonic() - started_s,
    )


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep a second demo out of `folder` while this one works there."""
    try:
        make_private_folder(folder)
        lock = open(folder / ".lock", "w", opener=private_opener)  # noqa: SIM115 - closed below, with the lock
    except OSError as error:
        hint = "headrace demo --keep FOLDER, with a folder that can be written to"
        raise HeadraceError(f"cannot write to {folder}: {error.strerror}", hint=hint) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            hint = "wait for it, or headrace demo --keep ANOTHER_FOLDER"
            raise HeadraceError(f"another demo is running in {folder}", hint=hint) from error
        yield


def _photographs(folder: Path, show: Log, progress: OpenProgress) -> Path:
    target = folder / "images"
    if (foreign := foreign_part(target)) is not None:
        raise SourceError(
            f"{foreign.path} was made by another user (number {foreign.user}): the demo does not use it",
            hint="headrace demo --keep FOLDER, with a folder of your own",
        )
    total = len(photographs.CLASSES) * photographs.IMAGES_PER_CLASS
    if photographs.is_complete(target):
        show(f"1/6 photographs: {total:,} from an earlier run in {target}")
        return target
    show(f"1/6 photographs: cutting {total:,} from those that scikit-image and scikit-learn ship, into {target}")
    with progress("cutting photographs", total) as meter:
        photographs.make(target, advance=meter.advance)
    return target


def _open_folder(source: Path) -> Dataset:
    """Open the image folder. Raise SourceError if it does not exist or has fewer than 8 images or 2 classes."""
    dataset = open_stored(source)
    if dataset.kind != "folder":
        raise SourceError(f"{source} is {dataset.kind}, not an image folder", hint="give --data a folder of class folders")
    if len(dataset) < 8 or len(dataset.classes) < 2:
        what = f"{source} holds {len(dataset)} images of {len(dataset.classes)} classes; the demo needs 8 and 2"
        raise SourceError(what, hint="give another --data folder, or none for the demo's own photographs")
    return dataset


def _training_part(data: Path) -> Path:
    """Return `data`, or its `train` folder if it holds `train` and `val` (or `test`)."""
    inside = train_and_validation(data)
    return data if inside is None else inside[0]


def _sample(dataset: Dataset, target: Path, show: Log) -> Path:
    """Make a folder of links to evenly spaced images of `dataset`, so that the demo takes minutes on any number of images."""
    shutil.rmtree(target, ignore_errors=True)
    stride = math.ceil(len(dataset) / MOST_IMAGES)
    table = dataset.table
    for record in range(0, len(dataset), stride):
        file = Path(table.files[table.file[record]])
        link = target / dataset.classes[table.label[record]] / f"{record}{file.suffix}"
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(file)
    show(f"taking one of every {stride} of the {len(dataset):,} images in {dataset.root} (links in {target})")
    return target


def _diagnose(folder: Path, job: list[str], batch_size: int, show: Log) -> tuple[dict[str, Any], float]:
    """Diagnose the plain script; return the diagnosis and the script's images a second."""
    shutil.rmtree(folder / "diagnosis", ignore_errors=True)
    log = folder / "facts.json"
    log.unlink(missing_ok=True)
    command = steps.python(Path(job[0]), *job[1:], "--images", str(DIAGNOSED_STEPS * batch_size), "--log", log)
    options = ["--out", str(folder / "diagnosis"), "--seconds", str(DIAGNOSED_SECONDS)]
    line = [*steps.headrace("diagnose", *options), "--", *command]
    show("2/6 why is it slow?  $ " + steps.typed_command(line))
    diagnosis = steps.run(line, show=show)
    show(f"verdict {diagnosis['verdict']}")
    # The rate by the script's own clock, without start-up; that of the diagnosis if the script was ended early.
    img_s = _facts(log, line)["img_s"] if log.exists() else diagnosis["img_s"]
    if not img_s:
        raise CommandError(
            f"`{steps.typed_command(line)}` saw too few training steps in {DIAGNOSED_SECONDS} s", hint="free some CPU cores"
        )
    return diagnosis, float(img_s)


def _time_left_s(start_s: float, seconds: float) -> float:
    """Return how long the measurements and the training take. start_s: how long a command took beside its steps."""
    turns_s = ROUNDS * (start_s + seconds + start_s + seconds / 2)  # `headrace run` takes less time for the same images
    return turns_s + 2 * start_s + TRAINED_SECONDS  # pack and train


def _take_turns(
    folder: Path, job: list[str], img_s: float, batch_size: int, seconds: float, show: Log
) -> tuple[Measurement, Measurement, list[dict[str, Any]], dict[str, Any]]:
    """Run the script plain and under `headrace run`, in turns, on the same images; check that both did the same job."""
    count = max(10, math.ceil(img_s * seconds / batch_size)) * batch_size
    log = folder / "facts.json"
    plain = steps.python(Path(job[0]), *job[1:], "--images", str(count), "--log", log)
    quick = [*steps.headrace("run"), "--", *plain]
    show(f"3/6 the plain script, and 4/6 the same script under headrace run: {ROUNDS} times in turns, {count:,} images each")
    facts: dict[str, list[dict[str, Any]]] = {"plain": [], "run": []}
    loaders: list[dict[str, Any]] = []
    for _ in range(ROUNDS):
        for way, line in (("plain", plain), ("run", quick)):
            show("$ " + steps.typed_command(line))
            log.unlink(missing_ok=True)
            document = steps.run(line, show=show)
            loaders = document.get("loaders", loaders)
            facts[way].append(_facts(log, line))
    _check_same_job(facts)
    return _measurement(facts["plain"]), _measurement(facts["run"]), loaders, facts["plain"][0]


def _facts(log: Path, command: list[str]) -> dict[str, Any]:
    try:
        return dict(json.loads(log.read_text()))
    except (OSError, ValueError) as error:
        raise CommandError(f"`{steps.typed_command(command)}` ended without writing {log}: {error}") from error


def _measurement(facts: list[dict[str, Any]]) -> Measurement:
    return Measurement(
        img_s=tuple(one["img_s"] for one in facts),
        wait_share=statistics.median(one["wait_share"] for one in facts),
        final_loss=facts[-1]["losses"][-1],
    )


def _check_same_job(facts: dict[str, list[dict[str, Any]]]) -> None:
    """Raise CommandError unless all runs had equal images, steps, batch shapes and dtypes, and finite losses."""
    every = [one for way in facts.values() for one in way]
    for name in ("images", "steps", "batches", "device"):
        values = [one[name] for one in every]
        if any(value != values[0] for value in values):
            raise CommandError(f"the runs with and without headrace did not do the same job: their {name} are {values}")
    if not all(math.isfinite(loss) for one in every for loss in one["losses"]):
        raise CommandError(f"a training loss is not finite; the losses of each run: {[one['losses'] for one in every]}")


def _pack_and_train(
    folder: Path, source: Path, device: str, batch_size: int, count: int, show: Log
) -> tuple[dict[str, Any], Measurement]:
    for name in ("packed", "training"):
        shutil.rmtree(folder / name, ignore_errors=True)
    line = steps.headrace("pack", source, folder / "packed")
    show("5/6 $ " + steps.typed_command(line))
    packed = steps.run(line, show=show)
    model = "resnet50" if device.startswith("sim:") else "resnet18"  # the simulated rate is ResNet-50's
    options = ["--model", model, "--data", folder / "packed", "--device", device, "--batch-size", batch_size]
    options += ["--epochs", 1 + count * batch_size // max(1, packed["records"] // 2), "--steps", count]
    line = steps.headrace("train", *map(str, options), "--out", folder / "training")
    show("6/6 $ " + steps.typed_command(line))
    result = steps.run(line, show=show)
    if not math.isfinite(result["loss"]):
        raise CommandError(f"the training from the pack ended with a loss of {result['loss']}")
    return packed, Measurement((result["img_s"],), result["wait_share"], result["loss"])


def _with_undecodable_files(error: CommandError, dataset: Dataset) -> HeadraceError:
    """Return an error that names the files that cannot be decoded; the script's own error if all can be."""
    deadline_s = time.monotonic() + DECODE_CHECK_SECONDS
    with Loader(dataset, 16, CenterCrop(8), shuffle=False, drop_last=False, output="numpy", on_error="skip") as loader:
        for _ in loader:
            if time.monotonic() > deadline_s:
                break
        skipped = loader.stats().skipped
    if not skipped:
        return error
    files = "; ".join(f"{one.key}: {one.reason}" for one in skipped[:5])
    more = f" and {len(skipped) - 5} more" if len(skipped) > 5 else ""
    return SourceError(
        f"{dataset.root} holds files that cannot be decoded, at which an ordinary script stops: {files}{more}",
        hint="remove or repair them; headrace pack skips and lists such files",
    )
