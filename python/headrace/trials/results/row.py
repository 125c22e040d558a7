"""A row of the result table, with the names that `headrace trials --json` documents."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Row"]


@dataclass(frozen=True, slots=True)
class Row:
    """One cell of a table, or one epoch of a training. None: not measured, or not published.

    seconds_per_epoch: of a training and a validation pass over all images of the dataset, from the steady rates and the start
    of each pass. images_per_epoch: how many those are. img_s: of training. ingest_img_s: the input alone, with the host's share
    of a step. compute_img_s: the model alone. wait_share: part of the training pass that is not computing (0 to 1).
    cpu_ms, val_cpu_ms: CPU time of the input, in ms an image of training and of validation. own_cpu_ms: the part of `cpu_ms`
    that the training process takes. handover_ms: CPU time in which the training thread takes over a batch, in ms.
    cpu_p50 to gpu_p99: use in per cent.
    published_s: seconds per epoch that were published for this cell. projected_s: seconds per epoch on the machine of the
    publication, with `projected_low_s` and `projected_high_s`. gain_percent: less time than the reference's row.
    predicted_img_s: what the row's next fix would give. expected_img_s: what the row with one worker says for these workers.
    pixel_levels: mean difference from the reference's pixels, 0 to 255. foreign_cores: cores that other programs used.
    epoch, elapsed_s, loss, top1: of trainings, after each epoch; top1 is 0 to 1. communication_share: part of the step in which
    ranks exchange gradients (0 to 1). error: why there is no result.
    """

    loader: str
    model: str
    load: int
    batch_size: int
    mode: str
    simulated: bool | None = None
    seconds_per_epoch: float | None = None
    images_per_epoch: int | None = None
    img_s: float | None = None
    ingest_img_s: float | None = None
    compute_img_s: float | None = None
    wait_share: float | None = None
    cpu_ms: float | None = None
    val_cpu_ms: float | None = None
    own_cpu_ms: float | None = None
    handover_ms: float | None = None
    first_batch_s: float | None = None
    cpu_p50: float | None = None
    cpu_p90: float | None = None
    cpu_p95: float | None = None
    cpu_p99: float | None = None
    gpu_p50: float | None = None
    gpu_p90: float | None = None
    gpu_p95: float | None = None
    gpu_p99: float | None = None
    published_s: float | None = None
    published_img_s: float | None = None
    projected_s: float | None = None
    projected_low_s: float | None = None
    projected_high_s: float | None = None
    gain_percent: float | None = None
    precision: str = "fp32"
    workers: int | None = None
    transform: str | None = None
    data: str = "folder"
    ranks: int = 1
    recipe: str = "plain"
    epoch: int | None = None
    elapsed_s: float | None = None
    loss: float | None = None
    top1: float | None = None
    usd_per_epoch: float | None = None
    verdict: str | None = None
    confidence: float | None = None
    communication_share: float | None = None
    next_fix: str | None = None
    next_fix_words: str | None = None
    predicted_img_s: float | None = None
    expected_img_s: float | None = None
    pixel_levels: float | None = None
    foreign_cores: float | None = None
    accelerator: str | None = None
    report: str | None = None
    error: str | None = None
