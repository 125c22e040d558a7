"""What a run shows, in sentences: ratios that the published numbers have too, and how far the projection comes to them."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.system.sizes import count_text
from headrace.trials.charts import short_names, training_name
from headrace.trials.measure_input import ROUNDS
from headrace.trials.rows import Row
from headrace.trials.runner import Group, Run
from headrace.trials.verdicts import percentile

__all__ = ["notes_of", "sentences_of"]

#: A projection counts as near a published cell up to this relative distance.
NEAR = 0.15

#: The accuracy to which trainings are timed, as a share of the best that any reached.
TARGET_SHARE = 0.9


def sentences_of(run: Run, rows: Sequence[Row]) -> list[str]:
    """Return what came out, for the head of the page and the end of the terminal's table."""
    found = [
        *_trainings(rows),
        *_ranks(rows),
        *_load_ratios(rows),
        *_workers(rows),
        *_floor(rows),
        *_next_fix(rows),
        *_projections(rows),
    ]
    dropped = sum(group.dropped for group in run.groups)
    if dropped:
        found.append(
            f"{count_text(dropped, 'group')} of cells did not fit into --budget-minutes; the same command again adds them."
        )
    return [sentence for sentence in (run.experiment.shows, *found, run.experiment.cannot_show) if sentence]


def _load_ratios(rows: Sequence[Row]) -> list[str]:
    """CPU time of the heaviest load over that of the lightest: for each loader, training and validation as in the article."""
    sentences = []
    by_loader: dict[tuple[str, str], dict[int, Row]] = {}
    for row in rows:
        if row.cpu_ms is not None and row.val_cpu_ms is not None:
            by_loader.setdefault((row.loader, row.mode), {}).setdefault(row.load, row)
    for (loader, mode), loads in by_loader.items():
        low, high = min(loads), max(loads)
        if low == high:
            continue
        alone = (loads[high].cpu_ms or 0) / (loads[low].cpu_ms or 1)
        words = f"{loader} ({mode}): load {high} takes {alone:.2f} times the CPU time of load {low} in training"
        if loader == "pytorch":
            words += f", {_with_validation(loads[high]) / _with_validation(loads[low]):.2f} times with the validation pass"
            words += "; published, in seconds with ResNet-18: 77.82 ÷ 41.67 = 1.87" if (low, high) == (1, 12) else ""
        sentences.append(words + ".")
    return sentences


def _trainings(rows: Sequence[Row]) -> list[str]:
    """Time of each training to nine tenths of the best accuracy, the fastest first, and those that do not reach it."""
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
    words = [f"{short[name]}: {row.elapsed_s:.0f} s, {count_text(row.epoch or 0, 'epoch')}" for name, row in first]
    goal = f"Nine tenths of the best accuracy is {100 * target:.1f} % top-1"
    found = [f"{goal}, reached after: {'; '.join(words)}."]
    late = [short[name] for name in reached if name not in done]
    return found + ([f"Within their epochs these do not reach it: {'; '.join(late)}."] if late else [])


def _ranks(rows: Sequence[Row]) -> list[str]:
    """Efficiency of several ranks: their rate over that of as many single ones."""
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


def _workers(rows: Sequence[Row]) -> list[str]:
    """Rates of several workers beside those that the row with one lets expect."""
    pairs = [(row, row.expected_img_s) for row in rows if row.expected_img_s and row.img_s]
    if not pairs:
        return []
    cells = [f"{row.workers} workers: expected {expected:,.0f}, measured {row.img_s:,.0f} img/s" for row, expected in pairs]
    worst = max(abs(expected / (row.img_s or 1) - 1) for row, expected in pairs)
    return [f"From the row with one worker: {'; '.join(cells)}. The largest error is {100 * worst:.0f} %."]


def _with_validation(row: Row) -> float:
    """CPU seconds of a training and a validation pass of the published counts."""
    train, validation = 9469, 3925
    return (train * (row.cpu_ms or 0) + validation * (row.val_cpu_ms or 0)) / 1000


def _floor(rows: Sequence[Row]) -> list[str]:
    """Rows whose input alone is fast enough: do they reach the rate of computing alone?"""
    able = [
        row
        for row in rows
        if row.ingest_img_s and row.compute_img_s and row.img_s and row.ingest_img_s >= 1.1 * row.compute_img_s
    ]
    if not able:
        return []
    reached = [row for row in able if (row.img_s or 0) >= 0.97 * (row.compute_img_s or 1)]
    return [
        f"In {count_text(len(able), 'cell')} the input alone is at least 1.1 times as fast as computing alone; "
        f"{len(reached)} of them train at 97 % or more of computing alone."
    ]


def _next_fix(rows: Sequence[Row]) -> list[str]:
    """The predicted effect of `headrace run` beside the measured row."""
    sentences = []
    for row in rows:
        if row.next_fix != "headrace_run" or not row.predicted_img_s:
            continue
        same = ("model", "load", "mode", "batch_size", "data", "workers")
        other = next(
            (each for each in rows if each.loader == "run" and all(getattr(each, name) == getattr(row, name) for name in same)),
            None,
        )
        if other is not None and other.img_s:
            sentences.append((row.predicted_img_s / other.img_s, row, other))
    if not sentences:
        return []
    errors = sorted(abs(ratio - 1) for ratio, _, _ in sentences)
    return [
        f"The fix headrace run was predicted in {count_text(len(sentences), 'cell')} and measured in the row run: "
        f"median error {100 * errors[len(errors) // 2]:.0f} %, largest {100 * errors[-1]:.0f} %."
    ]


def _projections(rows: Sequence[Row]) -> list[str]:
    pairs = [
        (row.projected_s, row.published_s) for row in rows if row.projected_s and row.published_s and row.loader == "pytorch"
    ]
    if not pairs:
        return []
    near = sum(abs(projected / published - 1) <= NEAR for projected, published in pairs)
    ratios = sorted(projected / published for projected, published in pairs)
    return [
        f"Projected to the published machine, {near} of {len(pairs)} published cells are within {100 * NEAR:.0f} %; "
        f"projected ÷ published is {ratios[0]:.2f} to {ratios[-1]:.2f}, median {ratios[len(ratios) // 2]:.2f}."
    ]


def notes_of(run: Run, rows: Sequence[Row], projection_source: str | None) -> list[str]:
    """Return how it was measured: for the end of the page."""
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
    notes.append(_how_long(run))
    notes += _recording(run)
    rounds = [_rounds(group) for group in run.groups if group.cells[0].loader == "pytorch" and "models" in (group.result or {})]
    if rounds:
        notes.append(f"The shortest training of a DataLoader has {count_text(min(rounds), 'such round')}.")
    foreign = [row.foreign_cores for row in rows if row.foreign_cores is not None]
    if foreign:
        notes.append(f"Other programs used {max(foreign):.2f} cores at most while a cell was measured.")
    for loader, found in run.pixels.items():
        notes.append(f"{loader} beside {run.experiment.reference.get('loader')}: {found['words']} (fixed operations).")
    if projection_source:
        notes.append(f"Projection: {projection_source}")
    return notes


def _how_long(run: Run) -> str:
    """Return what one row is a measurement of."""
    if run.experiment.kind == "training":
        return (
            "Each row is one epoch of one training, with its evaluation; the first epoch holds the start of threads. "
            "The loss is that of the epoch's last training step. Files are in the page cache."
        )
    return (
        f"Each figure is one measurement of about {run.seconds:.1f} s, or longer where each worker of a DataLoader needs it "
        f"to make {ROUNDS} batches and the budget allows it. A rate is that of whole rounds of all workers, without the first "
        "and the last. Seconds per epoch extend it to all images, and add the start of each pass. Files are in the page cache."
    )


def _recording(run: Run) -> list[str]:
    """What the recording for the diagnosis costs, as a median of all cells."""
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
    """Rounds of all workers in the shortest training of a group; 0 where none was whole."""
    assert group.result is not None
    return min((int(found["train"].get("rounds", 0)) for found in group.result["models"].values()), default=0)
