"""Check whether ranks with a DataLoader each read the same batches. The parent process starts one process per rank.

    python -m headrace.trials.measuring.measure_ranks SPEC.json RESULT.json

A script that gives each rank the whole dataset in the same order trains on every image once a rank, and its ranks compute the
same gradients. Each rank makes a digest of its first batches; equal digests say so.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from headrace.loading.order.rank_messages import gather_json
from headrace.system.processes.own_python import own_module
from headrace.training.distributed.devices import open_device
from headrace.training.distributed.processes import rank_count, run_processes
from headrace.training.distributed.ranks import join_group, leave_group, ranks_from_environment
from headrace.trials.experiment.cells import Cell
from headrace.trials.experiment.source import workers_of
from headrace.trials.experiment.transforms import torchvision_transform

__all__ = ["main", "shared_batches"]

BATCHES = 4


def shared_batches(digests: list[list[str]]) -> int:
    """Return the number of steps in which two or more ranks got the same batch. `digests[rank][step]`: of each batch."""
    return sum(len(set(step)) < len(step) for step in zip(*digests, strict=False))


def main(arguments: list[str]) -> int:
    """Read some batches on each rank, train a small model on them, compare the digests, and write the result on rank 0."""
    spec = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    cell = Cell(**spec["cells"][0])
    if "WORLD_SIZE" not in os.environ:
        command = own_module("headrace.trials.measuring.measure_ranks", *arguments)
        return run_processes(rank_count(cell.ranks, "cpu"), command)[0]
    import torch
    from torch.nn.parallel import DistributedDataParallel

    ranks = ranks_from_environment()
    join_group(ranks, open_device("cpu"))
    try:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, 10)))
        begin, digests, images_seen = time.monotonic(), [], 0
        for step, (images, labels) in enumerate(_loader(cell, Path(spec["tree"]))):
            if step == BATCHES:
                break
            digests.append(hashlib.sha256(images.numpy().tobytes()).hexdigest())
            model(images).logsumexp(1).mean().backward()
            images_seen += len(labels)
        gathered = gather_json(digests, world_size=ranks.world_size)
        if ranks.main:
            shared = shared_batches(gathered)
            seconds = time.monotonic() - begin
            img_s = images_seen * ranks.world_size / seconds
            result = {"batches": len(digests), "shared": shared, "img_s": img_s, "world_size": ranks.world_size}
            Path(arguments[1]).write_text(json.dumps(result), encoding="utf-8")
    finally:
        leave_group()
    return 0


def _loader(cell: Cell, tree: Path) -> Any:
    import torch
    from torch.utils.data import DataLoader, DistributedSampler
    from torchvision.datasets import ImageFolder

    data = ImageFolder(str(tree), torchvision_transform(cell.transform, cell.load, validation=True))
    sampler = DistributedSampler(data, shuffle=True) if cell.recipe == "sampler" else None
    order = torch.Generator().manual_seed(0)  # as a script does that seeds all ranks alike
    batch, workers = max(1, cell.batch_size // cell.ranks), min(1, workers_of(cell))
    return DataLoader(data, batch, sampler=sampler, shuffle=sampler is None, generator=order, num_workers=workers)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
