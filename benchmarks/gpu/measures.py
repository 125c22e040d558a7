"""The measurements in the process of their own: decoders, kernels, copies, the loader, the model. Each returns its rows."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import headrace
import numpy as np
import torch
from headrace.gpu.augmentation.augment import OPERATIONS, augment, operations_on
from headrace.gpu.augmentation.augment_check import SAMPLES
from headrace.gpu.decoder import CudaJpegDecoder, available
from headrace.gpu.preparation.batch_steps import Erase, Mix
from headrace.gpu.preparation.prepare import prepare, prepare_torch
from headrace.images.decode import decode_into
from headrace.system.text.foreign_errors import first_line
from headrace.transforms import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    ColorJitter,
    Compose,
    Normalize,
    RandAugment,
    RandomHorizontalFlip,
    RandomResizedCrop,
    TrivialAugmentWide,
)
from headrace.transforms.compile import compile_pipeline
from headrace.transforms.written import written

from gpu.peer_decoders import PEERS, peer, resized
from gpu.setting import CORES, MODELS, Row, Run, endless, trainer

__all__ = ["augmentation", "batch_sizes", "compute", "correctness", "decoders", "placement", "stage", "timm", "transfers"]


def _files(run: Run, count: int) -> list[bytes]:
    found = sorted((run.folder / "folder").rglob("*.jpg"))
    return [found[number % len(found)].read_bytes() for number in range(count)]


def _boxes(files: list[bytes]) -> list[tuple[int, int, int, int]]:
    from headrace._native import image_size
    from sample import random_resized_crops

    return random_resized_crops([image_size(file) for file in files], seed=0)


def correctness(run: Run) -> list[Row]:
    """Compare kernels with their twins, and the loader's batches with the CPU's."""
    random = np.random.default_rng(0)
    images = torch.from_numpy(random.integers(0, 256, (8, 61, 83, 3), dtype=np.uint8)).to(run.device)
    rows: list[Row] = []

    def compare(what: str, found: torch.Tensor, wanted: torch.Tensor) -> None:
        found, wanted = found.float().cpu(), wanted.float().cpu()
        different = int((found != wanted).sum())
        rows.append(
            {"what": what, "values": found.numel(), "different": different, "greatest": float((found - wanted).abs().max())}
        )

    erase = Erase([None, (2, 3, 20, 30), *[None] * 6], (0.5, 0.25, 0.0))
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        table = torch.linspace(-2, 2, 768, device=run.device).view(3, 256).to(dtype)
        for name, mix in (("no mix", None), ("MixUp", Mix(0.3)), ("CutMix", Mix(0.5, (4, 30, 2, 50)))):
            found = prepare(images, table, erase=erase, mix=mix)
            compare(f"fused kernel, {dtype}, {name}", found, prepare_torch(images.cpu(), table.cpu(), None, erase, mix))
    options = {"seed": 1, "dtype": "float32", "threads": 2}
    cases = [(decode, steps, 0.0) for decode in ("cpu", "split", "gpu") for steps in ([], [RandAugment()])]
    cases += [(decode, [RandAugment()], 1.0) for decode in ("cpu", "split")]
    for decode, steps, augmented in cases if run.is_gpu else [("cpu", [], 0.0), ("cpu", [RandAugment()], 0.0)]:
        transform = Compose([RandomResizedCrop(48), RandomHorizontalFlip(), *steps, Normalize(IMAGENET_MEAN, IMAGENET_STD)])
        with (
            headrace.Loader(run.folder / "pack", 8, transform, device=run.device, decode=decode, **options) as found,
            headrace.Loader(run.folder / "pack", 8, transform, **options) as wanted,
        ):
            if augmented:  # which the rates would decide later than the few batches here
                found._views._gpu.placement.augmented = augmented
            pairs = [(a, b) for (a, _), (b, _), _ in zip(found, wanted, range(4), strict=False)]
            names = "".join(f", {written(step)}" for step in steps) + (", all on the GPU" if augmented else "")
            compare(f"loader, decode={decode}{names}", *(torch.cat([pair[side].cpu() for pair in pairs]) for side in (0, 1)))
    return rows


def decoders(run: Run) -> list[Row]:
    """Time each decoder: JPEGs in memory to uint8 crops of 224 pixels on the device."""
    size, count = (32, 8) if run.is_tiny else (224, 256)
    files = _files(run, count)
    boxes = _boxes(files)
    flips = [bool(number % 2) for number in range(count)]
    out = np.empty((count, size, size, 3), np.uint8)
    rows: list[Row] = []

    def on_cpu() -> None:
        decode_into(files, out, boxes=boxes, threads=CORES)

    rows.append(
        {"decoder": f"CPU kernel, {CORES} threads", "files": "as they are", "img_s": run.rate(on_cpu, count), "reason": ""}
    )
    marked = [headrace.restart_markers(file) for file in files]
    ways = {"headrace's CUDA decoder": _own(run, size, boxes, flips)}
    ways |= {name: _peer(run, name, size, boxes, flips) for name in PEERS}
    for name, decode in ways.items():
        for kind, data in (("as they are", files), ("with restart markers", marked)):
            row: Row = {"decoder": name, "files": kind, "img_s": None, "reason": ""}
            if isinstance(decode, str):
                row["reason"] = decode
            else:
                try:
                    left = decode(data)
                    row["reason"] = f"{left} of {count} left to the CPU" if left else ""
                    row["img_s"] = run.rate(lambda: decode(data), count - left) if left < count else None  # noqa: B023
                except (RuntimeError, TypeError, ValueError) as error:
                    row["reason"] = first_line(error)
            rows.append(row)
            run.note(rows)
    return rows


Decoder = Callable[[list[bytes]], int] | str
"""Decodes a batch, and returns how many images are left to the CPU; or why there is none."""


def _own(run: Run, size: int, boxes: list[Any], flips: list[bool]) -> Decoder:
    reason = available(run.device) if run.is_gpu else "not a GPU"
    if reason is not None:
        return reason
    decoder = CudaJpegDecoder(run.device, (size, size))
    return lambda files: int(np.count_nonzero(decoder.decode(files, boxes, flips).statuses()))


def _peer(run: Run, name: str, size: int, boxes: list[Any], flips: list[bool]) -> Decoder:
    crops = peer(name, run.device) if run.is_gpu else "not a GPU"
    if isinstance(crops, str):
        return crops

    def decode(files: list[bytes]) -> int:
        found = [(crop, flip) for crop, flip in zip(crops(files, boxes), flips, strict=True) if crop is not None]
        if found:
            resized([crop for crop, _ in found], [flip for _, flip in found], (size, size))
        return len(files) - len(found)

    return decode


def placement(run: Run) -> list[Row]:
    """Train ResNet-18 from packed JPEGs with each `decode=`, plain and with RandAugment, with 2 threads and with all."""
    size, batch = (32, 8) if run.is_tiny else (224, 256)
    step, rows = trainer(run, "resnet18"), []
    plain = headrace.transforms.imagenet_train(size, normalize=True)
    cropped, *values = plain.transforms
    augmented = Compose([cropped, RandAugment(), *values])
    ways = ("cpu", "auto", "split", "gpu") if run.is_gpu else ("cpu", "auto")
    cases = [("none", plain, decode) for decode in ways] + [("RandAugment", augmented, decode) for decode in ways]
    for threads, (name, transform, decode) in itertools.product(sorted({2, CORES}), cases):
        options = {"device": run.device, "dtype": "bfloat16" if run.is_gpu else "float32", "decode": decode}
        with headrace.Loader(run.folder / "pack", batch, transform, threads=threads, **options) as loader:
            batches = endless(loader)
            for _ in range(2 if run.is_tiny else 60):  # until the shares have settled
                step(*next(batches))
            img_s = run.rate(lambda: step(*next(batches)), batch)  # noqa: B023
            same = next(batches)
            alone = run.rate(lambda: step(*same), batch)  # noqa: B023
            batches.close()
            words = (line.strip() for line in loader.explain().splitlines())
            decided = [line for line in words if line.startswith(("decoded ", "what the CPU decodes"))]
        rows.append(
            {"threads": threads, "augmentation": name, "decode": decode, "img_s": img_s, "compute_img_s": alone,
             "of_compute": img_s / alone, "decided": "; ".join(decided)}
        )  # fmt: skip
        run.note(rows)
    return rows


def compute(run: Run) -> list[Row]:
    """Time the trainer's step on one batch: in float32 and AMP, and with torch.compile and CUDA graphs."""
    cases = [("fp32", "off"), ("auto", "off")] + ([("auto", "on"), ("auto", "graphs")] if run.is_gpu else [])
    rows: list[Row] = []
    bases: dict[str, float | None] = {}
    for precision, compiled in cases:  # compilation, which takes minutes, comes after AMP's gain of all models
        for model in ("resnet20",) if run.is_tiny else MODELS:
            rate = _compute_rate(run, model, 4 if run.is_tiny else 128, precision=precision, compile=compiled)
            base = bases.setdefault(model, rate["img_s"])
            gain = rate["img_s"] / base if rate["img_s"] and base else None
            rows.append({"model": model, "precision": precision, "compile": compiled, "img_s": rate["img_s"], "gain": gain})
            run.note(rows)
    return rows


def _compute_rate(run: Run, model: str, batch_size: int, **options: Any) -> Row:
    from headrace.training.settings.options import Options
    from headrace.training.tune.compute_rate import measure_compute_rate

    size = 32 if run.is_tiny else 224
    given = Options(model, ".", ".", batch_size=batch_size, image_size=size, device=run.device, **options)
    found = measure_compute_rate(given, classes=10 if run.is_tiny else 1000)
    return {"img_s": found.img_s, "memory_bytes": found.memory_bytes}


def batch_sizes(run: Run) -> list[Row]:
    """Time ResNet-50 with growing batches until one does not fit."""
    rows: list[Row] = []
    total = torch.cuda.get_device_properties(0).total_memory if run.is_gpu else None
    for size in (2, 4) if run.is_tiny else (32, 64, 128, 256, 512, 1024, 2048):
        found = _compute_rate(run, "resnet20" if run.is_tiny else "resnet50", size)
        share = found["memory_bytes"] / total if total and found["memory_bytes"] else None
        rows.append({"batch_size": size, "img_s": found["img_s"], "memory_share": share})
        run.note(rows)
        if found["img_s"] is None:
            break
    return rows


def stage(run: Run) -> list[Row]:
    """Time the last steps of a batch in one kernel and in torch's steps, in bytes read and written."""
    count, size = (2, 32) if run.is_tiny else (256, 224)
    images = torch.randint(0, 256, (count, size, size, 3), dtype=torch.uint8, device=run.device)
    table = torch.linspace(-2, 2, 768, device=run.device).view(3, 256)
    offset, slope = table[:, 0].view(3, 1, 1), ((table[:, 255] - table[:, 0]) / 255).view(3, 1, 1)
    moved, rows = images.numel() * 3, []  # one byte in, two out

    def steps() -> torch.Tensor:
        return torch.addcmul(offset, images.permute(0, 3, 1, 2).float(), slope).to(torch.bfloat16)

    half = table.to(torch.bfloat16)
    for name, work in (("torch: three steps", steps), ("prepare", lambda: prepare(images, half))):
        rows.append({"what": f"values, bfloat16: {name}", "gb_s": run.rate(work, moved) / 1e9})
    mixed = run.rate(lambda: prepare(images, half, mix=Mix(0.3)), moved) / 1e9
    rows.append({"what": "values and MixUp, bfloat16: prepare", "gb_s": mixed})
    return rows


def augmentation(run: Run) -> list[Row]:
    """Time each operation on a batch, then policies with real draws, and count the values that differ from the CPU's."""
    count, size = (2, 32) if run.is_tiny else (256, 224)
    photographs = np.empty((count, size, size, 3), np.uint8)
    files = _files(run, count)
    decode_into(files, photographs, boxes=_boxes(files), threads=CORES)
    host, rows = torch.from_numpy(photographs), []
    images = host.to(run.device)

    chosen = operations_on(images.device)

    def add(what: str, passes: list[list[Any]], operations: Any = chosen) -> None:
        found = augment(images[:8].clone(), passes[:8], operations).cpu()
        different = int((augment(host[:8].clone(), passes[:8], OPERATIONS) != found).sum())
        img_s = run.rate(lambda: augment(images, passes, operations), count)
        rows.append({"what": what, "img_s": img_s, "different": different})
        run.note(rows)

    for name in OPERATIONS:
        numbers = SAMPLES.get(name, [[]])[0]
        if name == "blur":  # a kernel of 23, as SimCLR's for 224 pixels
            numbers = [23.0, *np.full(46, 1 / 23).tolist()]
        passes: list[list[Any]] = [[(name, numbers)]] * count
        if chosen[name] is OPERATIONS[name]:
            add(name, passes)
        else:
            add(f"{name}, Triton", passes)
            add(f"{name}, torch", passes, OPERATIONS)
    for step in (RandAugment(), TrivialAugmentWide(), ColorJitter(0.4, 0.4, 0.4, 0.1)):
        pipeline = compile_pipeline(Compose([RandomResizedCrop(size), step]))

        def drawn(program: Any = pipeline.program) -> list[list[Any]]:
            return [program.split(500, 375, 0, 0, number)[1] for number in range(count)]

        add(written(step), drawn())
        rows.append({"what": f"{written(step)}: drawing, on the host", "img_s": run.rate(drawn, count), "different": 0})
    return rows


def transfers(run: Run) -> list[Row]:
    """Time copies from host memory to the GPU, from pinned memory and from ordinary memory."""
    rows = []
    for mib in (1,) if run.is_tiny else (1, 16, 64, 256):
        for pinned in (True, False) if run.is_gpu else (False,):
            host = torch.empty(mib << 20, dtype=torch.uint8, pin_memory=pinned)
            device = torch.empty_like(host, device=run.device)
            gb_s = run.rate(lambda: device.copy_(host, non_blocking=True), mib << 20) / 1e9  # noqa: B023
            rows.append({"mib": mib, "pinned": pinned, "gb_s": gb_s})
    return rows


def timm(run: Run) -> list[Row]:
    """Time timm's ResNet-50 in a plain AMP loop beside the trainer's step on the same model and batch."""
    try:
        import timm as package
    except ImportError:
        return [{"what": "timm is not installed", "img_s": None}]
    name, batch, size = ("resnet18", 2, 32) if run.is_tiny else ("resnet50", 128, 224)
    model = package.create_model(name).to(run.device, memory_format=torch.channels_last).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    images = torch.rand(batch, 3, size, size, device=run.device).contiguous(memory_format=torch.channels_last)
    labels = torch.randint(0, 1000, (batch,), device=run.device)
    kind = "cuda" if run.is_gpu else "cpu"

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(kind, dtype=torch.bfloat16, enabled=run.is_gpu):
            loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()

    ours = _compute_rate(run, "resnet20" if run.is_tiny else name, batch)["img_s"]
    return [{"what": f"timm {name}, AMP, plain loop", "img_s": run.rate(step, batch)}, {"what": "trainer", "img_s": ours}]
