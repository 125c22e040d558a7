"""Predict the CUDA decoder's rate from what it has to do and what GPUs' makers publish. Nothing is timed; it needs no GPU.

    python benchmarks/gpu_decoder_model.py [--images FOLDER] [--limit N] [--write]

The photographs get restart markers, as `headrace pack` writes them, and crops by RandomResizedCrop. The kernels, compiled for
the host, decode them, and the work is counted: bytes, segments, symbols, blocks, pixels, taps. NVRTC compiles the kernels for
each GPU; registers and shared memory give the resident warps. A kernel takes the longest of three times: of its bytes, of its
instructions, and of its longest thread.

The instructions of a piece of work, how long a warp waits between two of its instructions, and the reachable part of the
memory's rate are assumptions, which the page lists. Every rate on the page is a prediction that awaits a GPU.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import record
import sample
from headrace import _native
from headrace.gpu.decoder import CudaJpegDecoder, nvrtc
from headrace.gpu.decoder.arguments import KERNELS, BatchArguments
from headrace.images.restart_markers import restart_markers

sys.path.insert(0, str(sample.REPOSITORY / "tests" / "helpers"))
from cuda_on_host import HostLauncher

SIZE = 224
BATCH = 256


@dataclass(frozen=True)
class Gpu:
    """A GPU as its maker describes it. The clock follows from the published rate: 2 operations a lane and cycle."""

    name: str
    target: str
    multiprocessors: int
    fp32_tflops: float
    lanes: int  # float32 lanes of a multiprocessor
    memory_gb_s: float
    shared_kib: int  # of a multiprocessor, for all its blocks
    bus_gb_s: float  # PCI Express, each way
    source: str

    @property
    def clock_hz(self) -> float:
        return self.fp32_tflops * 1e12 / (2 * self.lanes * self.multiprocessors)


GPUS = (
    Gpu("A100 SXM 80 GB", "sm_80", 108, 19.5, 64, 2039, 164, 32, "NVIDIA A100 datasheet and architecture whitepaper"),
    Gpu("H100 SXM", "sm_90", 132, 67, 128, 3350, 228, 64, "NVIDIA H100 datasheet and architecture whitepaper"),
    Gpu("H200 SXM", "sm_90", 132, 67, 128, 4800, 228, 64, "NVIDIA H200 datasheet"),
)
REGISTERS, THREADS, SCHEDULERS = (
    65_536,
    2_048,
    4,
)  # of a multiprocessor (CUDA C++ Programming Guide, compute capabilities 8.0, 9.0)

ASSUMED = {
    "instructions_per_symbol": 70,
    "instructions_per_block": 8 * 400,
    "instructions_per_weight": 60,
    "instructions_per_first_tap": 120,
    "instructions_per_second_tap": 25,
    "instructions_per_pixel": 80,
    "cycles_between_instructions": 12,
    "share_of_memory_rate": 0.6,
    "share_of_bus_rate": 0.8,
}
"""What no specification says. Instructions: of a thread, judged by the source; cycles: of a warp whose next instruction depends
on its last one, with look-ups in shared memory among them."""


class Counting(HostLauncher):
    """Runs the kernels on the host, and counts what they do."""

    def __init__(self) -> None:
        super().__init__()
        self.nonzero = 0

    def run(self, arguments: BatchArguments, chunks: list[int]) -> None:
        super().run(arguments, chunks)
        blocks = self.blocks
        values = np.ctypeslib.as_array((ctypes.c_int16 * (blocks * 64)).from_address(arguments.coefficients)).reshape(-1, 64)
        self.nonzero += int(np.count_nonzero(values[:, 1:]))


def counted(files: list[bytes], boxes: list[sample.Box]) -> dict[str, float]:
    """Return the work of an average image."""
    launcher = Counting()
    decoder = CudaJpegDecoder("cpu", (SIZE, SIZE), launcher=launcher)
    longest = 0.0
    totals = dict.fromkeys(
        ("uploaded", "segments", "slots", "nonzero", "blocks", "middle", "table", "first_taps", "segment_bytes"), 0.0
    )
    for file, box in zip(files, boxes, strict=True):
        plan = _native.CudaPlan([file], SIZE, SIZE, [box], None, None, None, 1 << 30, 1)
        [(_, _, blocks, middle, table, _)] = plan.groups
        buffer = np.empty(plan.size, np.uint8)
        plan.fill(buffer, 1)
        lengths = segment_bytes(buffer)
        launcher.blocks = blocks
        decoder.decode([file], [box])
        totals["uploaded"] += plan.size
        totals["segments"] += len(lengths)
        totals["slots"] += slots_of_warps(lengths)
        longest = max(longest, float(lengths.max()))
        totals["segment_bytes"] += lengths.sum()
        totals["blocks"] += blocks
        totals["middle"] += middle / 3
        totals["table"] += table
        totals["first_taps"] += middle / 3 * (table - 4 * SIZE) / (2 * SIZE)
    totals["nonzero"] = launcher.nonzero
    found = {name: value / len(files) for name, value in totals.items()}
    # A coefficient each, the first one of a block, and its end.
    symbols = found["nonzero"] + 2 * found["blocks"]
    return {
        "file_bytes": sum(map(len, files)) / len(files),
        "uploaded_bytes": found["uploaded"],
        "segments": found["segments"],
        "busy_lanes": totals["segments"] / totals["slots"],
        "symbols": symbols,
        "longest_segment_symbols": longest * symbols / found["segment_bytes"],
        "blocks": found["blocks"],
        "weights": found["table"],
        "middle_pixels": found["middle"],
        "first_taps": found["first_taps"],
        "second_taps": SIZE * SIZE * (found["table"] - 4 * SIZE) / (2 * SIZE),
    }


def segment_bytes(plan: np.ndarray) -> np.ndarray:
    """Return the length of each segment of a plan of one image. Words 6 and 7 of its record: where they begin, their number."""
    words = plan.view(np.uint32)
    return words[words[6] * 4 :][: words[7] * 4].reshape(-1, 4)[:, 1]


def slots_of_warps(lengths: np.ndarray) -> float:
    """Return how many segments the warps' lanes would decode if each were as long as the longest of its warp."""
    mean = lengths.mean()
    return float(sum(32 * lengths[at : at + 32].max() / mean for at in range(0, len(lengths), 32)))


def pieces(work: dict[str, float]) -> dict[str, tuple[float, float, float]]:
    """Return what each kernel reads and writes, in bytes, and the warp instructions that it issues, for an average image."""
    blocks, middle, out = work["blocks"], work["middle_pixels"], SIZE * SIZE
    threads = {
        "headrace_entropy": work["symbols"] * ASSUMED["instructions_per_symbol"] / work["busy_lanes"],
        "headrace_idct": blocks * ASSUMED["instructions_per_block"],
        "headrace_weights": work["weights"] * ASSUMED["instructions_per_weight"],
        "headrace_first_pass": middle * ASSUMED["instructions_per_pixel"]
        + work["first_taps"] * ASSUMED["instructions_per_first_tap"],
        "headrace_second_pass": out * ASSUMED["instructions_per_pixel"]
        + work["second_taps"] * ASSUMED["instructions_per_second_tap"],
    }
    moved = {  # each byte once: what is read again comes from the caches
        "headrace_entropy": (work["uploaded_bytes"], blocks * 128 * 2),  # zeros, then coefficients
        "headrace_idct": (blocks * 128, blocks * 64),
        "headrace_weights": (0.0, work["weights"] * 4),
        "headrace_first_pass": (blocks * 64 + work["weights"] * 4, middle * 3),
        "headrace_second_pass": (middle * 3 + work["weights"] * 4, out * 3),
    }
    return {kernel.name: (*moved[kernel.name], threads[kernel.name] / 32) for kernel in KERNELS}


def predicted(gpu: Gpu, work: dict[str, float]) -> dict[str, Any]:
    """Return the predicted microseconds of each kernel for an average image, and the rate that follows."""
    usage = nvrtc.resource_usage(nvrtc.compile_cubin(gpu.target)[1])
    rows = []
    for kernel in KERNELS:
        used = usage[kernel.name]
        blocks = [THREADS // kernel.threads, REGISTERS // (-(-used.registers // 8) * 8 * kernel.threads)]
        if used.shared_bytes:
            blocks.append(gpu.shared_kib * 1024 // (used.shared_bytes + 1024))
        warps = min(blocks) * kernel.threads // 32
        issued = min(1.0, warps / SCHEDULERS / ASSUMED["cycles_between_instructions"])
        read, written, instructions = pieces(work)[kernel.name]
        by_memory = (read + written) / (gpu.memory_gb_s * 1e9 * ASSUMED["share_of_memory_rate"])
        by_instructions = instructions / (gpu.multiprocessors * SCHEDULERS * gpu.clock_hz * issued)
        chain = work["longest_segment_symbols"] * ASSUMED["instructions_per_symbol"] * ASSUMED["cycles_between_instructions"]
        by_thread = chain / gpu.clock_hz / BATCH if kernel.name == "headrace_entropy" else 0.0
        rows.append(
            {
                "kernel": kernel.name.removeprefix("headrace_"),
                "registers": used.registers,
                "shared_bytes": used.shared_bytes,
                "resident_warps": warps,
                "memory_us": 1e6 * by_memory,
                "instructions_us": 1e6 * by_instructions,
                "longest_thread_us": 1e6 * by_thread,
            }
        )
    total = sum(max(row["memory_us"], row["instructions_us"], row["longest_thread_us"]) for row in rows)
    bus = gpu.bus_gb_s * 1e9 * ASSUMED["share_of_bus_rate"] / work["uploaded_bytes"]
    return {**asdict(gpu), "clock_ghz": gpu.clock_hz / 1e9, "kernels": rows, "kernels_img_s": 1e6 / total, "bus_img_s": bus}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", metavar="FOLDER", help="photographs (default: the sample of the tests)")
    parser.add_argument("--limit", type=int, default=200, help="photographs to count (default %(default)s)")
    parser.add_argument("--write", action="store_true", help="write the document and the pages")
    options = parser.parse_args()
    files = []
    for path in sample.photographs(options.images, options.limit):
        marked = restart_markers(path.read_bytes())
        if not _native.CudaPlan([marked], SIZE, SIZE, None, None, None, None, 1 << 30, 1).refusals[0]:
            files.append(marked)
    boxes = sample.random_resized_crops([_native.image_size(file) for file in files], seed=0)
    work = counted(files, boxes)
    found = record.document(
        "gpu_decoder_model",
        ["headrace", "nvidia-cuda-nvrtc", "cuda-bindings"],
        settings={"photographs": len(files), "size": SIZE, "batch": BATCH},
        assumed=ASSUMED,
        work=work,
        pieces=[
            {"kernel": name.removeprefix("headrace_"), "read_bytes": read, "written_bytes": written, "warp_instructions": count}
            for name, (read, written, count) in pieces(work).items()
        ],
        gpus=[predicted(gpu, work) for gpu in GPUS],
    )
    record.publish(found, save=options.write)


if __name__ == "__main__":
    main()
