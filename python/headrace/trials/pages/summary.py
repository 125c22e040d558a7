"""What a run shows, in sentences: its targets, times and ratios of its rows, and how it was measured."""

from __future__ import annotations

import operator
from collections.abc import Sequence

from headrace.system.text.sizes import count_text
from headrace.trials.experiment.transforms import operations
from headrace.trials.experiment.verdicts import percentile
from headrace.trials.measuring.measure_input import ROUNDS
from headrace.trials.measuring.runner import Group, Run, Settings, materials_of
from headrace.trials.pages.charts import short_names, training_name
from headrace.trials.results.row import Row
from headrace.trials.results.targets import targets_of

__all__ = ["notes_of", "sentences_of"]

LOWER_BOUND = 0.85
"""Explain a prediction of `headrace run` that is below this share of the measured rate."""

FEW_ROUNDS = 10
"""Call a rate uncertain below this many rounds (one batch per worker each): the batches of a worker differ."""

TARGET_SHARE = 0.9
"""Time trainings up to this share of the best accuracy that any of them reached. A larger value is stricter."""


def sentences_of(run: Run, rows: Sequence[Row]) -> list[str]:
    """Return the results of a run in sentences, for the top of the page and below the table on the terminal."""
    found = [
        *targets_of(run.experiment, rows),
        *_trainings(rows),
        *_ranks(rows),
        *_load_ratios(rows),
        *_next_fix(rows),
        *_other_work(run.settings, rows),
        *_validation(run),
    ]
    dropped = sum(group.dropped for group in run.groups)
    if dropped:
        found.append(
            f"{count_text(dropped, 'group')} of cells did not fit into --budget-minutes; the same command again adds them."
        )
    if not any(row.img_s for row in rows):
        return ["No cell was measured: the table says why.", *found]
    return [sentence for sentence in (run.experiment.shows, *found, run.experiment.cannot_show) if sentence]


def _other_work(settings: Settings, rows: Sequence[Row]) -> list[str]:
    """Say that published numbers are of other images or batches than the rows beside them."""
    asked = {"data set": settings.own is not None, "batch size": settings.batch_size is not None}
    differs = " and ".join(name for name, other in asked.items() if other)
    if not differs or not any(row.published_s or row.published_img_s for row in rows):
        return []
    options = " and ".join(option for option, other in zip(("--data", "--batch-size"), asked.values(), strict=True) if other)
    return [
        f"The published numbers are for the published {differs}, and {options} chose another: they are not comparable with "
        "these rows image for image."
    ]


def _validation(run: Run) -> list[str]:
    """Say that the user's folder has no validation images."""
    trains = run.experiment.kind == "training"
    validates = trains or run.experiment.validation_images > 0
    if not validates or not materials_of(run.experiment, run.settings).validates_on_training():
        return []
    words = ", so its accuracy says nothing about new images" if trains else ""
    return [f"{run.settings.own} has no folder val: validation reads the training images{words}."]


def _load_ratios(rows: Sequence[Row]) -> list[str]:
    """Return a sentence per loader: the CPU time of the heaviest load over that of the lightest."""
    by_loader: dict[tuple[str, str], dict[int, Row]] = {}
    for row in rows:
        if row.cpu_ms:
            by_loader.setdefault((row.loader, row.mode), {}).setdefault(row.load, row)
    return [
        f"{loader} ({mode}): load {max(loads)} takes {(loads[max(loads)].cpu_ms or 0) / (loads[min(loads)].cpu_ms or 1):.2f} "
        f"times the CPU time an image of load {min(loads)} in training."
        for (loader, mode), loads in by_loader.items()
        if len(loads) > 1
    ]


def _trainings(rows: Sequence[Row]) -> list[str]:
    """Return sentences on the time of each training to nine tenths of the best accuracy, and on those that do not reach it."""
    trained = [row for row in rows if row.top1 is not None and row.elapsed_s is not None]
    if not trained:
        return []
    target = TARGET_SHARE * max(row.top1 or 0.0 for row in trained)
    reached: dict[str, Row | None] = {}
    for row in trained:
        name = training_name(row)
        if reached.setdefault(name, None) is None and (row.top1 or 0.0) >= target:
            reached[name] = row
    done = {name: row for name, row in reached.items() if row is not None}
    first = sorted(done.items(), key=lambda pair: pair[1].elapsed_s or 0.0)
    short = short_names(list(reached))
    words = [f"{short[name]}: {row.elapsed_s:.0f} s, {count_text(row.epoch or 0, 'epoch')}{_price(row)}" for name, row in first]
    goal = f"Nine tenths of the best accuracy is {100 * target:.1f} % top-1"
    found = [f"{goal}, reached after: {'; '.join(words)}."]
    late = [short[name] for name in reached if name not in done]
    return found + ([f"Within their epochs these do not reach it: {'; '.join(late)}."] if late else [])


def _price(row: Row) -> str:
    """Say what a training costs from its start to the end of this epoch; nothing without the machine's price."""
    if row.usd_per_epoch is None or not row.seconds_per_epoch:
        return ""
    return f", ${row.usd_per_epoch * (row.elapsed_s or 0.0) / row.seconds_per_epoch:.4f}"


def _ranks(rows: Sequence[Row]) -> list[str]:
    """Return sentences on the efficiency of several ranks: their rate over that of as many single ranks."""
    last = {(row.ranks, row.loader): row for row in rows if row.img_s and row.epoch is not None}
    sentences = []
    for (ranks, loader), row in last.items():
        one = last.get((1, loader))
        if ranks > 1 and one is not None and one.img_s:
            share = (row.img_s or 0) / one.img_s
            words = f"{ranks} ranks with the same batch in all: {100 * share / ranks:.0f} % of {ranks} times the rate of one"
            words += f", {100 * share:.0f} % of that of one with the same cores" if row.simulated is False else ""
            if row.communication_share is not None:
                words += f"; communication takes {100 * row.communication_share:.0f} % of the step"
            sentences.append(words + ".")
    return sentences + [
        f"{row.recipe}: {row.verdict}." for row in rows if row.ranks > 1 and row.loader == "pytorch" and row.verdict
    ]


def _next_fix(rows: Sequence[Row]) -> list[str]:
    """Return sentences that compare the predicted rate of `headrace run` with the measured rate."""
    same = operator.attrgetter("model", "load", "mode", "batch_size", "data", "workers")
    measured: dict[object, Row] = {}
    for row in rows:
        if row.loader == "run":
            measured.setdefault(same(row), row)
    ratios = []
    for row in rows:
        other = measured.get(same(row))
        if row.next_fix == "headrace_run" and row.predicted_img_s and other is not None and other.img_s:
            ratios.append(row.predicted_img_s / other.img_s)
    if not ratios:
        return []
    words = (
        f"The fix headrace run was predicted in {count_text(len(ratios), 'cell')} and measured in the row run: "
        f"predicted ÷ measured is {min(ratios):.2f} to {max(ratios):.2f}, median {percentile(ratios, 50):.2f}."
    )
    if min(ratios) < LOWER_BOUND:
        words += (
            " The prediction counts native decoding only: other operations, which headrace run makes natively too, are taken "
            "to cost what they cost now, so it is a lower bound."
        )
    return [words]


def notes_of(run: Run, rows: Sequence[Row], projection_source: str | None) -> list[str]:
    """Return sentences about how the run was measured, for the end of the page."""
    notes = [f"Published numbers: {run.experiment.source}."] if run.experiment.source else []
    notes += [
        f"{source}"
        for source in dict.fromkeys(f"Computing, {row.model}: {row.accelerator}." for row in rows if row.accelerator)
    ]
    if any(row.simulated for row in rows):
        notes.append(
            "A simulated step first takes the CPU time of the host's share (operations that PyTorch dispatches, 6 µs each, "
            "estimated), then waits until the GPU would have been done. A validation image counts a third of a training image "
            "(estimated)."
        )
    notes += [
        f"Operations of a training image ({name}): {operations(name, 'load')}."
        for name in dict.fromkeys(row.transform for row in rows if row.transform)
    ]
    notes.append(_how_long(run))
    notes += _recording(run)
    rounds = [_rounds(group) for group in run.groups if group.cells[0].loader == "pytorch" and "models" in (group.result or {})]
    if rounds:
        few = f": with fewer than {FEW_ROUNDS} a rate may be off by tens of per cent" if min(rounds) < FEW_ROUNDS else ""
        notes.append(
            f"The shortest training of a DataLoader counts {count_text(min(rounds), 'whole round')} of its workers{few}."
        )
    foreign = [row.foreign_cores for row in rows if row.foreign_cores is not None]
    if foreign:
        notes.append(f"Other programs used {max(foreign):.2f} cores at most while a cell was measured.")
    for loader, found in run.pixels.items():
        notes.append(f"{loader} beside {run.experiment.reference.get('loader')}: {found['words']} (fixed operations).")
    if projection_source:
        notes.append(f"Projection: {projection_source}")
    return notes


def _how_long(run: Run) -> str:
    """Return sentences that say what one row measures, and for how long."""
    if run.experiment.kind == "training":
        return (
            "Each row is one epoch of one training, with its evaluation; the first epoch holds the start of threads. "
            "The loss is that of the epoch's last training step. Files are in the page cache."
        )
    return (
        f"Each figure is one measurement of about {run.seconds:.1f} s, or longer where each worker of a DataLoader needs it "
        f"to make {ROUNDS} batches and the budget allows it. A rate is that of whole rounds of all workers, without the first "
        "and the last of an epoch. Seconds per epoch extend it to all images, and add the start of each pass. Files are in the "
        "page cache."
    )


def _recording(run: Run) -> list[str]:
    """Return a sentence on the cost of recording for the diagnosis, as a median of all cells."""
    models = [found for group in run.groups for found in ((group.result or {}).get("models") or {}).values()]
    ratios = [found["recorded_img_s"] / found["train"]["img_s"] for found in models if found.get("recorded_img_s")]
    if not ratios:
        return []
    return [
        "The rate is that of a training that nothing records. The use of the machine and the verdict come from a second, "
        f"recorded training, whose rate is {100 * percentile(ratios, 50):.1f} % of the first's (median of "
        f"{count_text(len(ratios), 'cell')})."
    ]


def _rounds(group: Group) -> int:
    """Return the whole rounds (a batch from each worker) in the shortest training of a group."""
    assert group.result is not None
    return min((int(found["train"].get("rounds", 0)) for found in group.result["models"].values()), default=0)
