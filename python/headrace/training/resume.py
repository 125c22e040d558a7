"""Which checkpoint a run goes on from: the newest whole one on the disk or in the object store, the same for all ranks."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.datasets.sources.remote.store import Bucket, is_url, open_bucket
from headrace.errors import StateError, UsageError
from headrace.training import checkpoint
from headrace.training.checkpoint import Checkpoint
from headrace.training.distributed.ranks import Ranks
from headrace.training.options import Options
from headrace.training.uploads import check_writable, load_remote_checkpoint, names

if TYPE_CHECKING:
    import torch

__all__ = ["find", "newest", "share"]


def find(options: Options) -> tuple[Checkpoint | None, list[str]]:
    """The checkpoint to resume from (None: begin anew), and lines about those that were passed over.

    Raises UsageError when a run would be overwritten, StateError when the checkpoint that was named cannot be read,
    SourceError when the object store cannot be used.
    """
    folder = Path(options.out) / "checkpoints"
    bucket = None if options.checkpoint_url is None else open_bucket(options.checkpoint_url)
    if bucket is not None:
        check_writable(bucket)
    restarted = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0  # torchrun --max-restarts: go on, not over
    if options.resume is None and not restarted:
        _refuse_to_overwrite(options, folder, bucket)
        return None, []
    if restarted or options.resume == "auto":
        found, damaged = newest(folder, bucket)
        if found is not None or options.resume in (None, "auto"):
            return _told(found, damaged)
    if is_url(options.resume):
        return _named_remote(str(options.resume).rstrip("/"))
    return checkpoint.load(Path(str(options.resume))), []


def _refuse_to_overwrite(options: Options, folder: Path, bucket: Bucket | None) -> None:
    hint = "--resume auto goes on with it; or choose another"
    if next(checkpoint.candidates(folder), None) is not None:
        raise UsageError(f"{options.out} already holds a training run", hint=f"{hint} --out")
    if bucket is not None and names(bucket):
        raise UsageError(f"{bucket.url} already holds checkpoints of a run", hint=f"{hint} --checkpoint-url")


def newest(folder: Path, bucket: Bucket | None = None) -> tuple[Checkpoint | None, list[str]]:
    """The newest whole checkpoint of disk and store, and a line about each that is newer and is not whole."""
    local = {path.name: path for path in checkpoint.candidates(folder)}
    remote = set(names(bucket)) if bucket is not None else set()

    def attempts() -> Iterator[Callable[[], Checkpoint]]:
        for name in sorted(local.keys() | remote, reverse=True):
            if name in local:
                yield partial(checkpoint.load, local[name])
            if bucket is not None and name in remote:
                yield partial(load_remote_checkpoint, bucket, name)

    return checkpoint.first_whole(attempts())


def _told(found: Checkpoint | None, damaged: list[str]) -> tuple[Checkpoint | None, list[str]]:
    lines = [f"warning: {line}" for line in damaged]
    if damaged and found is not None:
        where = found.path if is_url(found.path) else found.name
        lines.append(f"going on from the one before, {where}: the steps after it are trained again")
    elif damaged:
        lines.append("none is left: starting from the beginning")
    elif found is not None and is_url(found.path):
        lines.append(f"going on from {found.path}: there is none on this disk that is newer")
    return found, lines


def _named_remote(url: str) -> tuple[Checkpoint | None, list[str]]:
    """The checkpoint at `url`, or the newest whole one below it."""
    bucket = open_bucket(url)
    if url.rpartition("/")[2].startswith(checkpoint.PREFIX):
        return load_remote_checkpoint(bucket, ""), []
    found, lines = _told(*newest(Path("/nonexistent"), bucket))
    if found is None:
        raise StateError(
            f"{url} holds no whole checkpoint", hint="give the --checkpoint-url of a run, or one of its checkpoints"
        )
    return found, lines


def share(found: Checkpoint | None, ranks: Ranks) -> Checkpoint | None:
    """Gives what rank 0 found to all: only one reads, all go on from the same, also where the others see another disk."""
    if ranks.world_size == 1:
        return found
    from safetensors.torch import load, save

    state = _broadcast(b"" if found is None else json.dumps([str(found.path), found.state]).encode())
    if not state:
        return None
    tensors = _broadcast(b"" if found is None else save(found.tensors))
    if found is not None:
        return found
    path, document = json.loads(state)
    return Checkpoint(load(tensors), document, path)


def _broadcast(data: bytes) -> bytes:
    """Rank 0's bytes, on every rank."""
    import torch

    size = torch.tensor([len(data)])
    torch.distributed.broadcast(size, 0)
    content: torch.Tensor = torch.zeros(int(size[0]), dtype=torch.uint8)
    if data:
        content = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    if len(content):
        torch.distributed.broadcast(content, 0)
    return bytes(content.numpy())
