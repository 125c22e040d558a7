"""The fix of moving JPEG decoding to the GPU."""

from __future__ import annotations

from headrace.diagnosis.fixes.fix_kind import FixKind
from headrace.diagnosis.fixes.take_over import is_image_folder
from headrace.diagnosis.measure.job import MeasuredJob
from headrace.diagnosis.measure.prediction import predicted_fix
from headrace.diagnosis.result.model import Fix
from headrace.system.hardware.gpu_decoder_rates import JPEG_ENGINE, NVJPEG_IMG_S, NVJPEG_SOURCE

__all__ = ["GPU_DECODE"]

HOST_S = 0.00015
"""CPU time of an image that the GPU decodes, seconds (estimated): reading the file, its header, and starting the decoder."""

HANDOVER_S = 0.0005
"""Hand-over of a batch inside one process, seconds at most."""

ENGINELESS = ((8, 6), (8, 7), (8, 9))
"""Compute capabilities above JPEG_ENGINE without an engine: consumer and inference GPUs of Ampere and Ada."""


def _gpu_decode(job: MeasuredJob, kind: str) -> Fix | None:
    """Propose decoding on the GPU where it has a JPEG engine, and the job's own JPEGs were seen and measured."""
    model, cost, items = job.model, job.rank.batch_cost, job.rank.items
    decode_s = job.session.facts.get("image_benchmark", {}).get("plain_s")
    capability = tuple(int(part) for part in job.settings.get("capability") or (0, 0))
    if job.settings.get("device") != "cuda" or capability < JPEG_ENGINE or capability in ENGINELESS:
        return None
    if model is None or cost is None or not items or not decode_s or not is_image_folder(job.rank.loader):
        return None
    freed_s = min(decode_s, cost.prepare_cpu_s / items) - HOST_S
    if freed_s <= 0:
        return None
    after = model.changed(
        cpu_s=cost.prepare_cpu_s - freed_s * items,
        send_s=0.0,
        handover_s=min(model.handover_s, HANDOVER_S),
        compute_s=model.compute_s + items / NVJPEG_IMG_S,
        workers=max(1, model.workers),
    )
    return predicted_fix(
        job,
        "gpu_decode",
        f"the GPU decodes the JPEGs: {freed_s * 1e3:.2g} ms less CPU per image, and an estimated "
        f"{items / NVJPEG_IMG_S * 1e3:.2g} ms more GPU per batch; pixels differ slightly",
        after,
        'headrace.Loader(headrace.open(FOLDER), batch_size=…, transform=…, device="cuda", decode="split")',
        basis=f"CPU time of decoding this job's own images, measured here; the GPU's rate is {NVJPEG_SOURCE}",
        effort="a few lines",
        error=0.3,
    )


GPU_DECODE = FixKind("gpu_decode", _gpu_decode)
