"""The measurements that await a GPU, in the order of their value: the one list that the runner and the page read."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["MEASUREMENTS", "TRIALS_FOLDER", "Measurement"]

TRIALS_FOLDER = "trials-dali"
"""Folder of the results in which the measurement `trials` keeps its cells, to continue with the others."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """One measurement, which runs in a process of its own.

    name: of the function in `measures`, `feed` or `job_measures`, and of its JSON file.
    decides: the question that it answers. target: what is hoped for; "" without one. limit_s: seconds until it is ended.
    """

    name: str
    decides: str
    target: str
    limit_s: int


MEASUREMENTS = (
    Measurement(
        "correctness",
        "do the Triton kernels and the loader's batches of packed JPEGs on the GPU equal the CPU's",
        "0 values differ",
        90,
    ),
    Measurement(
        "decoders",
        "how many ImageNet JPEGs/s each decoder turns into 224-pixel crops",
        "own decoder: 30,000 img/s and 3 × nvJPEG",
        60,
    ),
    Measurement(
        "feed",
        "which share of compute-only each loader reaches: DataLoader, headrace from a folder, packed, with GPU decode",
        "ResNet-50/152: 99 %, ResNet-18: 97 % from packed JPEGs with 16 cores",
        180,
    ),
    Measurement(
        "placement",
        "what decode=cpu, auto, split and gpu reach with 2 threads and with all, plain and with RandAugment; who decodes and "
        "augments in the end",
        "95 % of compute-only with 2 cores and GPU decode",
        180,
    ),
    Measurement("compute", "AMP's gain, and that of torch.compile and CUDA graphs", "AMP: 1.8 × (the article's)", 120),
    Measurement("batch_sizes", "the batch size at the knee, and the memory that each size takes", "", 90),
    Measurement("stage", "the fused kernel against torch's steps, in GB/s", "", 45),
    Measurement(
        "augmentation",
        "how many 224-pixel images/s each operation of augmentation on the GPU takes, blur, hue and bilinear in Triton and in "
        "torch, and RandAugment with its draws",
        "0 values differ from the CPU's",
        90,
    ),
    Measurement("transfers", "pinned and unpinned copies to the GPU, in GB/s", "", 30),
    Measurement("watching", "what diagnose adds to a step of 10 ms on a real GPU", "1 % of the step at most", 60),
    Measurement(
        "scenarios",
        "whether the diagnosis names H2D_BOUND, SYNC_BOUND, COMPUTE_BOUND and CPU_PREP on a GPU, beside NVML's utilisation",
        "every verdict right",
        150,
    ),
    Measurement("timm", "the trainer's compute-only against timm's model in a plain loop", "at least timm's", 60),
    Measurement(
        "trials",
        "the matrix of `headrace trials dali` on a real GPU, on [a page of its own](gpu-trials.md)",
        "no epoch longer than with torchvision-gpu; ResNet-50/152 at load 12: 97 % of compute-only",
        530,
    ),
)
"""All measurements."""
