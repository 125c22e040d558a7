"""The processes of one training run: which one this is, and how they agree without waiting for each other's GPUs."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError, UsageError
from headrace.training.devices import Device
from headrace.training.distributed.rendezvous import meet

if TYPE_CHECKING:
    import torch

__all__ = ["SPAWNED", "RankVote", "Ranks", "barrier", "join", "leave", "lost_ranks_reported", "ranks_from_environment"]

# Set by headrace's own launcher in the processes that it starts.
SPAWNED = "HEADRACE_SPAWNED"
PR_SET_PDEATHSIG = 1  # prctl(2)
JOIN_TIMEOUT_S = 300.0  # for all processes to be there; the slowest may still be reading its index from a cold disk
STEP_TIMEOUT_S = 600.0  # for one exchange of values: NCCL's own default, which the slowest batch of any rank must keep


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process's number among `world_size`, and its number and neighbours on this machine."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1

    @property
    def main(self) -> bool:
        """Whether this is the process that writes and speaks."""
        return self.rank == 0


def ranks_from_environment() -> Ranks:
    """The variables that torchrun (and our launcher) set; one process alone without them. Raises UsageError."""
    if "WORLD_SIZE" not in os.environ:
        return Ranks()
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    try:
        rank, world_size, local_rank, local_world_size = (int(os.environ[name]) for name in names)
    except (KeyError, ValueError) as error:
        hint = "start with torchrun, or unset WORLD_SIZE"
        raise UsageError(f"WORLD_SIZE is set, but not all of {', '.join(names)}: {error}", hint=hint) from error
    return Ranks(rank, world_size, local_rank, local_world_size)


def join(ranks: Ranks, device: Device) -> None:
    """Meets the other processes: NCCL between GPUs, gloo for values on the CPU. Does nothing alone.

    Raises HeadraceError when they are not all there after JOIN_TIMEOUT_S.
    """
    if ranks.world_size == 1:
        return
    import torch.distributed

    if os.environ.get(SPAWNED):  # do not train on when the launcher was killed
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if device.kind == "cuda":
        torch.cuda.set_device(device.torch_name)
    if torch.distributed.is_initialized():
        return
    where = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
    try:
        store, _, _ = next(torch.distributed.rendezvous("env://", timeout=timedelta(seconds=JOIN_TIMEOUT_S)))
        name = meet(store, ranks.rank, ranks.world_size, timeout_s=JOIN_TIMEOUT_S)
        torch.distributed.init_process_group(
            "cpu:gloo,cuda:nccl" if device.kind == "cuda" else "gloo",
            store=torch.distributed.PrefixStore(name, store),
            rank=ranks.rank,
            world_size=ranks.world_size,
            timeout=timedelta(seconds=STEP_TIMEOUT_S),
        )
    except (RuntimeError, ValueError) as error:  # torch's DistErrors are RuntimeErrors
        raise HeadraceError(
            f"rank {ranks.rank} of {ranks.world_size} cannot join the others at {where}: {_first_line(error)}",
            hint="check MASTER_ADDR and MASTER_PORT, and that every process was started",
        ) from error


@contextmanager
def lost_ranks_reported(ranks: Ranks) -> Iterator[None]:
    """Says in words that another process of the run was lost, where torch raises what its transport saw."""
    try:
        yield
    except RuntimeError as error:
        said = str(error)
        if ranks.world_size == 1 or not any(word in said for word in ("gloo", "Gloo", "NCCL", "onnection closed")):
            raise
        raise HeadraceError(
            f"rank {ranks.rank}: another process of this run has ended or does not answer ({_first_line(error)})",
            hint="see what that process said; --resume auto goes on from the last checkpoint",
        ) from error


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


def barrier(ranks: Ranks) -> None:
    """Returns when all processes are here. Does nothing alone."""
    if ranks.world_size > 1:
        import torch.distributed

        torch.distributed.all_reduce(torch.zeros(1))  # on the CPU, by gloo: a barrier of NCCL would occupy a GPU


def leave() -> None:
    """Parts from the other processes."""
    import torch.distributed

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


class RankVote:
    """A vote of all ranks at every step, whose result is read one step later: nobody ever waits for it.

    The numbers live on the CPU and travel by gloo, so no GPU is synchronised. Every rank reads the same result at the same
    step. Alone, the result is one's own vote, at once.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._pending: tuple[torch.Tensor, torch.distributed.Work] | None = None

    def vote(self, signal_number: int, save: bool) -> tuple[int, bool]:
        """Hands in (signal received or 0, wants a checkpoint); returns the largest of what all ranks handed in last time."""
        if self._ranks.world_size == 1:
            return signal_number, save
        import torch.distributed

        result = self._read()
        values = torch.tensor([signal_number, int(save)])
        work = torch.distributed.all_reduce(values, torch.distributed.ReduceOp.MAX, async_op=True)
        self._pending = (values, work)
        return result

    def _read(self) -> tuple[int, bool]:
        if self._pending is None:
            return 0, False
        values, work = self._pending
        work.wait()
        self._pending = None
        return int(values[0]), bool(values[1])

    def close(self) -> None:
        """Waits for the vote under way, so that nothing is left in the group."""
        self._read()
