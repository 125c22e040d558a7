"""Facts about the CUDA decoder: the oldest GPU it runs on, and its rate to assume until measured."""

from __future__ import annotations

__all__ = ["DECODER_IMG_S", "DECODER_SOURCE", "OLDEST_CAPABILITY"]

OLDEST_CAPABILITY = (7, 5)
"""The oldest compute capability that CUDA 13 compiles for (Turing: T4, RTX 20)."""

DECODER_IMG_S = 21186.0
"""Assumed until measured: images/s of the CUDA decoder on an H100, photographs with restart markers to crops of 224 × 224."""

DECODER_SOURCE = "estimated: headrace's decoder on an H100, benchmarks/results/awaits_gpu.md"
"""Where DECODER_IMG_S comes from, as pages and commands say it."""
