"""Resume a run: find the checkpoint to continue from, and the position in the data.

The position is computed; nothing is replayed. A checkpoint holds the number of steps that are done and the state of the loader
(epoch, records done). The rest follows from them:

- which epoch, and which batch of it: `loader_epoch` here, then `read_position` (`headrace/loading/resume.py`);
- which records are in a batch: a function of seed, epoch and position (`headrace/loading/order/arithmetic.py`);
- random draws of augmentation: a function of seed, epoch and record (`headrace/loading/feeding/feed.py`);
- random draws of a step, such as mixup and dropout: a function of seed, step and rank (`Learner.train_step`);
- the learning rate: a function of the step (`optimization.learning_rate`);
- the image size: a function of the epoch (`OptimizationOptions.train_size`).

`prepare.prepare` calls `find_checkpoint`, `broadcast_checkpoint` and `loader_epoch` before the first step. `headrace train
--batch-size auto` (`cli/train.py`) reads the batch size of the checkpoint from `find_checkpoint`. `state.restore` puts
weights, optimizer and position into the run.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.datasets.sources.remote.store import Bucket, is_url, open_bucket
from headrace.errors import StateError, UsageError
from headrace.system.text.sizes import count_text
from headrace.training.distributed.ranks import Ranks
from headrace.training.settings.options import Options
from headrace.training.weights import checkpoint
from headrace.training.weights.checkpoint import Checkpoint
from headrace.training.weights.saved_state import finished_epochs
from headrace.training.weights.uploads import check_writable, load_remote_checkpoint, remote_names

if TYPE_CHECKING:
    import torch

__all__ = ["broadcast_checkpoint", "find_checkpoint", "is_continued_by", "loader_epoch", "newest_checkpoint"]


def loader_epoch(step: int, steps_per_epoch: int) -> int:
    """Return the epoch of the last of `step` steps: the epoch of the loader whose state the checkpoint holds.

    After the last step of epoch 2 this is 2, although the run continues in epoch 3: the state was taken from the loader of
    epoch 2, whose images may have another size. The loop changes the loader afterwards if the size of epoch 3 differs.
    """
    return max(0, step - 1) // steps_per_epoch


def find_checkpoint(options: Options) -> tuple[Checkpoint | None, list[str]]:
    """Return the checkpoint to resume from (None: start anew), and a message about each damaged one that was passed over.

    Without --resume, a finished run is continued if the options have more epochs. Raises UsageError if a run would be
    overwritten, StateError if the checkpoint named by --resume cannot be read,
    SourceError if the object store cannot be used.
    """
    folder = Path(options.out) / "checkpoints"
    bucket = None if options.checkpoint_url is None else open_bucket(options.checkpoint_url)
    if bucket is not None:
        check_writable(bucket)
    restarted = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0  # by torchrun --max-restarts: continue
    if options.resume is None and not restarted:
        return _find_finished(options, folder, bucket)
    if restarted or options.resume == "auto":
        found, damaged = newest_checkpoint(folder, bucket)
        if found is not None or options.resume in (None, "auto"):
            return found, _messages(found, damaged)
    if is_url(options.resume):
        return _find_remote(str(options.resume).rstrip("/"))
    return checkpoint.load(Path(str(options.resume))), []


def newest_checkpoint(folder: Path, bucket: Bucket | None = None) -> tuple[Checkpoint | None, list[str]]:
    """Return the newest checkpoint on disk or in the store that is whole, and a line about each newer one that is not."""
    local = {path.name: path for path in checkpoint.candidates(folder)}
    remote = set(remote_names(bucket)) if bucket is not None else set()

    def attempts() -> Iterator[Callable[[], Checkpoint]]:
        for name in sorted(local.keys() | remote, reverse=True):
            if name in local:
                yield partial(checkpoint.load, local[name])
            if bucket is not None and name in remote:
                yield partial(load_remote_checkpoint, bucket, name)

    return checkpoint.first_whole(attempts())


def broadcast_checkpoint(found: Checkpoint | None, ranks: Ranks) -> Checkpoint | None:
    """Send rank 0's checkpoint to all ranks and return it. Only rank 0 reads, so all agree even if they see other disks."""
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


def _find_finished(options: Options, folder: Path, bucket: Bucket | None) -> tuple[Checkpoint | None, list[str]]:
    """Return the last checkpoint of a finished run that has fewer epochs; None in a new folder. Raise UsageError otherwise."""
    if next(checkpoint.candidates(folder), None) is not None:
        what, option = f"{options.out} already holds a training run", "--out"
    elif bucket is not None and remote_names(bucket):
        what, option = f"{bucket.url} already holds checkpoints of a run", "--checkpoint-url"
    else:
        return None, []
    found, damaged = newest_checkpoint(folder, bucket)
    epochs = None if found is None else finished_epochs(found)
    if found is not None and is_continued_by(found, options):
        return found, _messages(found, damaged)
    if epochs is None:
        raise UsageError(what, hint=f"--resume auto continues it; or choose another {option}")
    raise UsageError(
        f"{what}, which has finished its {count_text(epochs, 'epoch')}",
        hint=f"--epochs {2 * epochs} continues it for as many again; or choose another {option}",
    )


def is_continued_by(found: Checkpoint, options: Options) -> bool:
    """Return whether a checkpoint is the end of a run that had fewer epochs than these options."""
    epochs = finished_epochs(found)
    return epochs is not None and epochs < options.epochs


def _messages(found: Checkpoint | None, damaged: list[str]) -> list[str]:
    lines = [f"warning: {line}" for line in damaged]
    if damaged and found is not None:
        where = found.path if is_url(found.path) else found.name
        lines.append(f"resuming from the checkpoint before, {where}: the steps after it are trained again")
    elif damaged:
        lines.append("no whole checkpoint is left: starting from the beginning")
    elif found is not None and is_url(found.path):
        lines.append(f"resuming from {found.path}: this disk has no newer checkpoint")
    return lines


def _find_remote(url: str) -> tuple[Checkpoint | None, list[str]]:
    """Return the checkpoint at `url`, or the newest whole one below it."""
    bucket = open_bucket(url)
    if url.rpartition("/")[2].startswith(checkpoint.PREFIX):
        return load_remote_checkpoint(bucket, ""), []
    found, damaged = newest_checkpoint(Path("/nonexistent"), bucket)
    if found is None:
        raise StateError(
            f"{url} holds no whole checkpoint", hint="give the --checkpoint-url of a run, or one of its checkpoints"
        )
    return found, _messages(found, damaged)


def _broadcast(data: bytes) -> bytes:
    """Return rank 0's bytes, on every rank."""
    import torch

    size = torch.tensor([len(data)])
    torch.distributed.broadcast(size, 0)
    content: torch.Tensor = torch.zeros(int(size[0]), dtype=torch.uint8)
    if data:
        content = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    if len(content):
        torch.distributed.broadcast(content, 0)
    return bytes(content.numpy())
