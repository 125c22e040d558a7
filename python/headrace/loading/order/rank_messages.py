"""Exchange small values between the ranks of a job as JSON: torch's exchange would unpickle what another rank sends."""

from __future__ import annotations

import json
from typing import Any

from headrace.errors import HeadraceError

__all__ = ["gather_json"]

MOST_BYTES = 1 << 26
"""Refuse a longer message of a rank, in bytes: the class names of 100,000 classes take 2 MB."""


def gather_json(value: Any, *, world_size: int, group: Any = None) -> list[Any]:
    """Return the JSON values of all ranks, by rank. Collective: all ranks of the group must call this.

    `group`: a process group that exchanges values on the CPU (default: that of all ranks). Raises HeadraceError for what is no
    JSON or longer than 64 MiB, and what torch raises for a lost rank.

        sizes = gather_json(["part", 120], world_size=2)
    """
    import torch
    from torch import distributed

    data = json.dumps(value).encode()
    lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(world_size)]
    distributed.all_gather(lengths, torch.tensor([len(data)]), group=group)
    counts = [int(length[0]) for length in lengths]
    for rank, count in enumerate(counts):
        if not 0 < count <= MOST_BYTES:
            raise HeadraceError(
                f"rank {rank} sent a value of {count} bytes, not of 1 to {MOST_BYTES:,}",
                hint="start every rank with the same headrace, and only these",
            )
    own = torch.zeros(max(counts), dtype=torch.uint8)
    own[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    texts = [torch.zeros_like(own) for _ in range(world_size)]
    distributed.all_gather(texts, own, group=group)
    values = []
    for rank, (text, count) in enumerate(zip(texts, counts, strict=True)):
        try:
            values.append(json.loads(text[:count].numpy().tobytes()))
        except (ValueError, RecursionError) as error:
            raise HeadraceError(f"rank {rank} sent a value that is not JSON", hint="start only ranks of this job") from error
    return values
