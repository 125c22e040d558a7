"""The fix `gpu_decode`: pack a folder with restart markers, and let a `headrace.Loader` decode the JPEGs on the GPU."""

from __future__ import annotations

import shlex

from headrace.diagnosis.fixes.fix_kind import FixKind
from headrace.diagnosis.fixes.images import pack_places, places_words
from headrace.diagnosis.fixes.take_over import is_image_folder
from headrace.diagnosis.measure.job import MeasuredJob
from headrace.diagnosis.measure.prediction import predicted_fix
from headrace.diagnosis.result.model import Fix
from headrace.system.hardware.cuda_decoder_facts import DECODER_IMG_S, DECODER_SOURCE, OLDEST_CAPABILITY

__all__ = ["GPU_DECODE"]

HOST_S = 0.00015
"""CPU time of an image that the GPU decodes, seconds (estimated): reading the file, its header, and starting the decoder."""

HANDOVER_S = 0.0005
"""Upper bound of the seconds to hand a batch over inside one process."""


def _gpu_decode(job: MeasuredJob, kind: str) -> Fix | None:
    """Propose decoding on the GPU where the CUDA decoder runs on it, and the job's own JPEGs were seen and measured.

    The decoder needs restart markers, which `headrace pack` writes.
    """
    model, cost, items = job.model, job.rank.batch_cost, job.rank.items
    decode_s = job.session.facts.get("image_benchmark", {}).get("plain_s")
    capability = tuple(int(part) for part in job.settings.get("capability") or (0, 0))
    if job.settings.get("device") != "cuda" or capability < OLDEST_CAPABILITY:
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
        compute_s=model.compute_s + items / DECODER_IMG_S,
        workers=max(1, model.workers),
        batches=None,  # all threads work on each batch
    )
    source, packed = pack_places(job, "-packed")
    reads = f'headrace.Loader({packed!r}, batch_size=…, transform=…, device="cuda", decode="split")'
    return predicted_fix(
        job,
        "gpu_decode",
        f"JPEGs packed with restart markers, which the GPU decodes: {freed_s * 1e3:.2g} ms less CPU per image, and an "
        f"estimated {items / DECODER_IMG_S * 1e3:.2g} ms more GPU per batch{places_words(source)}",
        after,
        f"{shlex.join(['headrace', 'pack', source, packed])} && {reads}",
        basis=f"CPU time of decoding this job's own images, measured here; the GPU's rate is {DECODER_SOURCE}",
        effort="one pass, then a few lines",
        error=0.3,
    )


GPU_DECODE = FixKind("gpu_decode", _gpu_decode)
