"""The targets of the experiments: for each a sentence with the measured value, and the reason if the target is missed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headrace.system.text.sizes import count_text
from headrace.trials.experiment.accelerator import FORWARD_SHARE, ON_CPU
from headrace.trials.experiment.cells import Experiment
from headrace.trials.results.row import Row

__all__ = ["BEGINNINGS", "DISTURBED_CORES", "disturbed", "targets_of"]

BEGINNINGS = ("Target, ", "Projected to ", "Other programs used up to ")
"""Beginnings of the sentences of `targets_of`, by which they are recognised."""

PUBLISHED_RATIO = 77.82 / 41.67
"""Seconds per epoch of ResNet-18 at load 12 over those at load 1, as the article published them."""

RATIO_TOLERANCE = 0.15
"""The measured ratio equals the published one if it differs by at most this share."""

MOST_NAMED = 5
"""Name at most this many cells that miss a target."""

LIGHT, HEAVY = 1, 12
"""The lightest and the heaviest augmentation load of the article."""

MOST_OF_LOAD = 1.1
"""Target of one-pass crop, resize and flip: CPU time per image at the heaviest load ÷ at the lightest, at most this."""

FAST_ENOUGH, REACHED = 1.1, 0.97
"""If the input is `FAST_ENOUGH` times as fast as computing, training must reach the share `REACHED` of the rate of computing.
"""

GPU_PEERS, JUDGED = ("torchvision-gpu", "dali-gpu"), ("headrace", "headrace-exact")
"""Loaders of other projects that decode on a GPU, and headrace's loaders that are compared with them."""

LARGE = ("resnet50", "resnet152")
"""Models for which a GPU computes more slowly than the CPU prepares images."""

PREDICTED = 0.1
"""Target: the rate predicted from one worker differs from the measured one by at most this share."""

NEAR = 0.15
"""A projection is near a published value if it differs by at most this share."""

DISTURBED_CORES = 0.5
"""Do not judge targets of a run, and do not head its page with a cell, while other programs used more cores than this."""

BOUND = 1.02
"""Call a projected time limited by computing if it is at most this many times the time of computing alone."""


def targets_of(experiment: Experiment, rows: Sequence[Row]) -> list[str]:
    """Return a sentence for each target of an experiment that its rows can answer.

    rows: those of the run; rows without a result are left out.

        targets_of(cells.load("dali"), rows)   # ["Target, headrace, input alone: … holds. 1.60 ÷ 1.56 ms = 1.02.", …]
    """
    measured = [row for row in rows if row.error is None]
    found = [*_fused_load(measured), *_published_load(experiment, measured), *_expected(measured)]
    if experiment.name == "slow-source":
        found += _verdicts(measured, "STORAGE_LATENCY")
    found += [*_reached(measured), *_beside_gpu_loaders(measured), *_fed(measured)]
    return [*(_warning(measured) if found else []), *found, *_projected(experiment, measured)]


def _said(target: str, holds: bool, figure: str) -> str:
    return f"Target, {target}: {'holds' if holds else 'does not hold'}. {figure}."


def disturbed(rows: Iterable[Row]) -> str | None:
    """Return how many cores other programs used during a run, in words; None if few enough to judge targets."""
    foreign = max((row.foreign_cores or 0.0 for row in rows), default=0.0)
    return f"Other programs used up to {foreign:.1f} cores while cells were measured" if foreign >= DISTURBED_CORES else None


def _warning(rows: Sequence[Row]) -> list[str]:
    """Return a warning if other programs used the cores during the run, else nothing."""
    words = disturbed(rows)
    return [f"{words}: repeat the run on a quiet machine before you judge these targets."] if words else []


def _fused_load(rows: Sequence[Row]) -> list[str]:
    """Judge the target that `headrace` takes hardly more CPU time at the heaviest load than at the lightest."""
    found = []
    for _, light, heavy in _by_load(rows, "headrace"):
        low, high = light.cpu_ms or 0.0, heavy.cpu_ms or 0.0
        target = f"headrace, input alone: at load {HEAVY} at most {MOST_OF_LOAD:g} times the CPU time an image of load {LIGHT}"
        found.append(_said(target, high <= MOST_OF_LOAD * low, f"{high:.2f} ÷ {low:.2f} ms = {high / low:.2f}"))
    return found


def _published_load(experiment: Experiment, rows: Sequence[Row]) -> list[str]:
    """Compare the CPU time of `pytorch` at both loads with the published ratio; say what differs if it is far from it."""
    if not any(entry.where.get("load") == HEAVY for entry in experiment.published):
        return []
    sentences = []
    for mode, light, heavy in _by_load(rows, "pytorch"):
        if light.val_cpu_ms is None or heavy.val_cpu_ms is None:
            continue
        light_s, heavy_s = _passes_s(experiment, light), _passes_s(experiment, heavy)
        ratio = heavy_s / light_s
        holds = abs(ratio / PUBLISHED_RATIO - 1) <= RATIO_TOLERANCE
        figure = f"{heavy_s:.1f} ÷ {light_s:.1f} s = {ratio:.2f}"
        if not holds:
            unit_ms = ((heavy.cpu_ms or 0.0) - (light.cpu_ms or 0.0)) / (HEAVY - LIGHT)
            asked_ms = (PUBLISHED_RATIO - 1) * light_s * 1000 / experiment.train_images / (HEAVY - LIGHT)
            figure += (
                f". A unit of load takes {unit_ms:.2f} ms an image here and all else, decoding included, "
                f"{(light.cpu_ms or 0.0) - unit_ms:.2f} ms; the published ratio would need {asked_ms:.2f} ms a unit. The "
                "published ratio is one of seconds, with all that an epoch takes besides, on another processor and with other "
                "images, where the shares differ"
            )
        target = f"pytorch ({mode}), CPU time of training and validation, load {HEAVY} ÷ load {LIGHT} within "
        target += f"{100 * RATIO_TOLERANCE:.0f} % of the published 77.82 ÷ 41.67 = {PUBLISHED_RATIO:.2f}"
        sentences.append(_said(target, holds, figure))
    return sentences


def _expected(rows: Sequence[Row]) -> list[str]:
    """Judge the rates of several workers that were predicted from one worker."""
    pairs = [(row, row.expected_img_s, row.img_s) for row in rows if row.expected_img_s and row.img_s]
    if not pairs:
        return []
    error, workers = max((abs(expected / rate - 1), row.workers or 0) for row, expected, rate in pairs)
    cells = [
        f"{count_text(row.workers or 0, 'worker')}: expected {expected:,.0f}, measured {rate:,.0f} img/s"
        for row, expected, rate in pairs
    ]
    return [
        _said(
            f"the rate that one worker lets expect of more is within {100 * PREDICTED:.0f} % of the measured in each cell",
            error <= PREDICTED,
            f"{'; '.join(cells)}. The largest error is {100 * error:.1f} %, with {count_text(workers, 'worker')}",
        )
    ]


def _verdicts(rows: Sequence[Row], verdict: str) -> list[str]:
    """Judge the target that every cell has the verdict."""
    having = sum(row.verdict == verdict for row in rows)
    return [_said(f"verdict {verdict}", having == len(rows), f"{having} of {count_text(len(rows), 'cell')}")] if rows else []


def _reached(rows: Sequence[Row]) -> list[str]:
    """Judge the target that cells whose input alone is fast enough train as fast as computing alone."""
    able = [row for row in rows if (row.ingest_img_s or 0) >= FAST_ENOUGH * (row.compute_img_s or 0) > 0 and row.img_s]
    if not able:
        return []
    beside = ", beside the host's share of a step," if any(row.simulated for row in able) else ""
    below = sorted(((_reach(row), row) for row in able if _reach(row) < REACHED), key=lambda pair: pair[0])
    figure = f"{len(able) - len(below)} of {count_text(len(able), 'cell')}"
    if below:
        figure += f"; below: {', '.join(f'{_name(row, rows)} {100 * share:.1f} %' for share, row in below[:MOST_NAMED])}"
        if len(below) > MOST_NAMED:
            figure += f" and {count_text(len(below) - MOST_NAMED, 'other')} from {100 * below[MOST_NAMED][0]:.1f} % on"
        figure += f". The step waits while its thread takes over a batch{_taken([row for _, row in below])}, longer where all "
        figure += "cores are busy"
    target = f"training reaches {100 * REACHED:.0f} % of computing alone wherever the input alone{beside} is "
    target += f"{FAST_ENOUGH:g} times as fast"
    return [_said(target, not below, figure)]


def _reach(row: Row) -> float:
    return (row.img_s or 0.0) / (row.compute_img_s or 1.0)


def _beside_gpu_loaders(rows: Sequence[Row]) -> list[str]:
    """Judge the target that an epoch on a GPU takes no longer than with other GPU loaders, in every cell of equal work."""
    real = [row for row in rows if _on_gpu(row) and row.mode == "corrected" and row.seconds_per_epoch]
    found = []
    for peer in GPU_PEERS:
        theirs = {(row.model, row.load): row for row in real if row.loader == peer}
        for own in JUDGED:
            ours = [row for row in real if row.loader == own and (row.model, row.load) in theirs]
            if not ours:
                continue
            ratios = sorted(((_ratio(row, theirs[row.model, row.load]), row) for row in ours), key=lambda pair: -pair[0])
            longer = [pair for pair in ratios if pair[0] > 1]
            figure = f"{len(ours) - len(longer)} of {count_text(len(ours), 'cell')}; its time over {peer}'s is "
            figure += _span([ratio for ratio, _ in ratios], ".2f")
            if longer:
                named = ", ".join(f"{row.model} load {row.load} {ratio:.2f}" for ratio, row in longer[:MOST_NAMED])
                figure += f"; longer: {named}"
            found.append(_said(f"an epoch with {own} is no longer than with {peer}", not longer, figure))
    return found


def _ratio(row: Row, other: Row) -> float:
    return (row.seconds_per_epoch or 0.0) / (other.seconds_per_epoch or 1.0)


def _fed(rows: Sequence[Row]) -> list[str]:
    """Judge the target that the larger models train on a GPU as fast as computing alone at the heaviest load."""
    heavy = [row for row in rows if row.model in LARGE and row.load == HEAVY and row.img_s]
    cells = [row for row in heavy if _on_gpu(row) and row.loader in JUDGED]
    if any({row.model for row in cells if row.loader == own} != set(LARGE) for own in JUDGED):
        return []  # not all are measured
    figure = ", ".join(f"{row.loader} {row.model} {100 * _reach(row):.1f} %" for row in cells)
    target = f"ResNet-50 and ResNet-152 reach {100 * REACHED:.0f} % of computing alone at load {HEAVY}"
    return [_said(target, all(_reach(row) >= REACHED for row in cells), figure)]


def _on_gpu(row: Row) -> bool:
    return not row.simulated and row.accelerator not in (None, ON_CPU)


def _taken(rows: Sequence[Row]) -> str:
    """Say how long taking over a batch holds up the rows' steps; nothing where that was not measured."""
    times_ms = [row.handover_ms for row in rows if row.handover_ms is not None]
    if not times_ms:
        return ""
    shares = [100 * row.handover_ms / _step_ms(row) for row in rows if row.handover_ms is not None]
    return f": {_span(times_ms, '.1f')} ms of CPU time, {_span(shares, '.1f')} % of a step"


def _step_ms(row: Row) -> float:
    return 1000 * row.batch_size / (row.compute_img_s or 1.0)


def _span(values: Sequence[float], form: str) -> str:
    """Return the least and the greatest value, or one where both read alike."""
    low, high = format(min(values), form), format(max(values), form)
    return low if low == high else f"{low} to {high}"


def _projected(experiment: Experiment, rows: Sequence[Row]) -> list[str]:
    """Say how near the projection comes to the published cells of the CPU side, and why it misses the others."""
    cells = [row for row in rows if row.projected_s and row.published_s and row.loader == "pytorch"]
    if not cells:
        return []
    ratios = sorted(_times(row) for row in cells)
    far = [row for row in cells if abs(1 / _times(row) - 1) > NEAR]
    found = (
        f"Projected to the published machine, within {100 * NEAR:.0f} %: {len(cells) - len(far)} of "
        f"{count_text(len(cells), 'published cell')}; published ÷ projected is {_span(ratios, '.2f')}, "
        f"median {ratios[len(ratios) // 2]:.2f}."
    )
    if not far:
        return [found]
    bound = [row for row in far if (row.projected_s or 0) <= BOUND * _computing_s(experiment, row)]
    words = [found]
    if bound:
        words.append(f"Computing binds {_part(bound, far)}: published ÷ projected is {_times_of(bound)}.")
        words += _other_side(experiment, bound)
    if others := [row for row in far if row not in bound]:
        words.append(f"The CPU binds {_part(others, far)}: published ÷ projected is {_times_of(others)}.")
        words += _within_the_score(others)
    return [" ".join([*words, experiment.not_projected]).strip()]


def _part(some: Sequence[Row], far: Sequence[Row]) -> str:
    """Say how many of the cells that the projection misses these are."""
    return "the other" if len(far) == 1 else f"{len(some)} of the other {len(far)}"


def _times(row: Row) -> float:
    return (row.published_s or 0.0) / (row.projected_s or 1.0)


def _times_of(rows: Sequence[Row]) -> str:
    return _span([_times(row) for row in rows], ".2f")


def _computing_s(experiment: Experiment, row: Row) -> float:
    """Return the seconds of computing alone in a training and a validation pass."""
    return (experiment.train_images + FORWARD_SHARE * experiment.validation_images) / (row.compute_img_s or 1.0)


def _other_side(experiment: Experiment, bound: Sequence[Row]) -> list[str]:
    """Compare the published side B of the same cells with the floor of computing: its input does not wait for the CPU."""
    sides = [
        entry.seconds_per_epoch / _computing_s(experiment, row)
        for row in bound
        for entry in experiment.published
        if entry.side == "B" and entry.seconds_per_epoch and entry.where.get("model") == row.model
        and entry.where.get("load") == row.load
    ]  # fmt: skip
    if not sides:
        return []
    return [
        f"Side B of the publication, whose images the GPU prepares, takes {_span(sides, '.2f')} times as long as computing "
        "alone at the rate assumed here, so the published script computes more slowly than that rate."
    ]


def _within_the_score(rows: Sequence[Row]) -> list[str]:
    """Say how many published cells lie within the interval that the uncertain score of the processor allows."""
    known = [row for row in rows if row.projected_low_s is not None and row.projected_high_s is not None]
    if not known:
        return []
    inside = sum((row.projected_low_s or 0) <= (row.published_s or 0) <= (row.projected_high_s or 0) for row in known)
    return [f"Within the interval that the processor's score leaves: {inside} of {len(known)}."]


def _by_load(rows: Sequence[Row], loader: str) -> Iterable[tuple[str, Row, Row]]:
    """Yield (mode, lightest, heaviest) of a loader's rows, for each mode that has both loads."""
    found: dict[tuple[str, int], Row] = {}
    for row in rows:
        if row.loader == loader and row.cpu_ms:
            found.setdefault((row.mode, row.load), row)
    for mode in dict.fromkeys(mode for mode, _ in found):
        if (mode, LIGHT) in found and (mode, HEAVY) in found:
            yield mode, found[mode, LIGHT], found[mode, HEAVY]


def _passes_s(experiment: Experiment, row: Row) -> float:
    """Return the CPU seconds of a training and a validation pass over the published numbers of images."""
    return (experiment.train_images * (row.cpu_ms or 0.0) + experiment.validation_images * (row.val_cpu_ms or 0.0)) / 1000


def _name(row: Row, rows: Sequence[Row]) -> str:
    """Name a cell by what differs between the rows."""
    parts = [row.loader]
    for key, form in (("model", "{}"), ("load", "load {}"), ("mode", "{}"), ("data", "{}"), ("workers", "{} workers")):
        if getattr(row, key) is not None and len({getattr(other, key) for other in rows}) > 1:
            parts.append(form.format(getattr(row, key)))
    return " ".join(parts)
