"""The ranks of a training run: which one this process is, how they meet, and how they agree without waiting for GPUs."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError, UsageError
from headrace.system.files.regular_file import read_regular
from headrace.system.hardware import machine
from headrace.system.processes.end_with_parent import end_with_parent
from headrace.system.text.foreign_errors import first_line
from headrace.training.distributed.devices import Device
from headrace.training.distributed.membership import check_members
from headrace.training.distributed.rendezvous import agree_on_group_name

if TYPE_CHECKING:
    import torch

__all__ = [
    "SECRET",
    "SPAWNED",
    "RankVote",
    "Ranks",
    "barrier",
    "compute_threads",
    "join_group",
    "leave_group",
    "lost_ranks_reported",
    "ranks_from_environment",
]

# Environment variable that headrace's own launcher sets in the processes it starts: the private folder where they meet.
SPAWNED = "HEADRACE_SPAWNED"
SECRET = "secret"  # file in that folder with the secret that all ranks of the run know
JOIN_TIMEOUT_S = 300.0  # limit until all processes have started; the slowest may be reading its index from a cold disk
STEP_TIMEOUT_S = 600.0  # limit of one exchange between ranks, which waits for the slowest batch of any rank; NCCL's default


@dataclass(frozen=True, slots=True)
class Ranks:
    """The rank of this process among all processes of the run, and (`local_`) among those on this machine."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1

    @property
    def main(self) -> bool:
        """Whether this process is rank 0, which writes files and reports."""
        return self.rank == 0


def ranks_from_environment() -> Ranks:
    """Read the variables set by torchrun and by our launcher; without them, one process alone.

    Raises UsageError if WORLD_SIZE is set, but another of the variables is missing or no number.
    """
    if "WORLD_SIZE" not in os.environ:
        return Ranks()
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    try:
        rank, world_size, local_rank, local_world_size = (int(os.environ[name]) for name in names)
    except (KeyError, ValueError) as error:
        hint = "start with torchrun, or unset WORLD_SIZE"
        raise UsageError(f"WORLD_SIZE is set, but not all of {', '.join(names)}: {error}", hint=hint) from error
    return Ranks(rank, world_size, local_rank, local_world_size)


def compute_threads(local_world_size: int) -> int | None:
    """Return the threads that torch computes with in each of several ranks on this machine: the cores, divided by the ranks.

    None for a rank alone, and where OMP_NUM_THREADS is set: torch's own number holds. A 1 below torchrun does not count, as
    torchrun sets it where nothing is set. With more threads than cores each operator waits for a thread without a core, while
    the others spin: two ranks of two threads on two cores train at a tenth of the rate of one.
    """
    given = os.environ.get("OMP_NUM_THREADS")
    if local_world_size == 1 or (given and not (given == "1" and "TORCHELASTIC_RUN_ID" in os.environ)):
        return None
    return max(1, round(machine.cores().usable) // local_world_size)


def join_group(ranks: Ranks, device: Device) -> None:
    """Join the process group: NCCL between GPUs, gloo for values on the CPU; share the cores. A process alone returns at once.

    Raises HeadraceError if not all processes have joined after JOIN_TIMEOUT_S.
    """
    if ranks.world_size == 1:
        return
    import torch.distributed

    if (threads := compute_threads(ranks.local_world_size)) is not None:
        torch.set_num_threads(threads)
    if os.environ.get(SPAWNED):
        end_with_parent(signal.SIGTERM)
    if device.kind == "cuda":
        torch.cuda.set_device(device.torch_name)
    if torch.distributed.is_initialized():
        return
    meeting = os.environ.get(SPAWNED)
    where = meeting or f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
    try:
        store = _private_store(Path(meeting), ranks.world_size) if meeting else _network_store()
        name = agree_on_group_name(store, ranks.rank, ranks.world_size, timeout_s=JOIN_TIMEOUT_S)
        torch.distributed.init_process_group(
            "cpu:gloo,cuda:nccl" if device.kind == "cuda" else "gloo",
            store=torch.distributed.PrefixStore(name, store),
            rank=ranks.rank,
            world_size=ranks.world_size,
            timeout=timedelta(seconds=STEP_TIMEOUT_S),
        )
        if meeting:
            secret = read_regular(Path(meeting) / SECRET)
            check_members(secret, name, ranks.rank, ranks.world_size, timeout_s=JOIN_TIMEOUT_S)
    except (OSError, RuntimeError, ValueError) as error:  # torch's DistErrors are RuntimeErrors
        raise HeadraceError(
            f"rank {ranks.rank} of {ranks.world_size} cannot join the others at {where}: {first_line(error)}",
            hint="check MASTER_ADDR and MASTER_PORT, and that every process was started",
        ) from error


def _private_store(folder: Path, world_size: int) -> torch.distributed.Store:
    """Return a store that is a file in a private folder: torch's other store listens on all addresses, and lets anybody in."""
    import torch.distributed

    store = torch.distributed.FileStore(str(folder / "store"), world_size)
    store.set_timeout(timedelta(seconds=JOIN_TIMEOUT_S))
    return store


def _network_store() -> torch.distributed.Store:
    """Return the store of torchrun's variables, which the ranks of other machines reach too."""
    import torch.distributed

    store: torch.distributed.Store
    store, _, _ = next(torch.distributed.rendezvous("env://", timeout=timedelta(seconds=JOIN_TIMEOUT_S)))
    return store


@contextmanager
def lost_ranks_reported(ranks: Ranks) -> Iterator[None]:
    """Turn torch's error of a lost connection into a HeadraceError: another process of the run has ended."""
    try:
        yield
    except RuntimeError as error:
        message = str(error)
        if ranks.world_size == 1 or not any(word in message for word in ("gloo", "Gloo", "NCCL", "onnection closed")):
            raise
        raise HeadraceError(
            f"rank {ranks.rank}: another process of this run has ended or does not answer ({first_line(error)})",
            hint="read the output of that process; --resume auto continues from the last checkpoint",
        ) from error


def barrier(ranks: Ranks, *, failed: bool = False) -> frozenset[int]:
    """Wait until all processes of the run have called this, and return the ranks that called it with `failed`.

    A process that cannot go on calls it all the same: the others would wait for it. A process alone returns at once.
    """
    flags = [int(failed)]
    if ranks.world_size > 1:
        import torch.distributed

        found = torch.zeros(ranks.world_size, dtype=torch.uint8)
        found[ranks.rank] = failed
        torch.distributed.all_reduce(found)  # on the CPU, by gloo: a barrier of NCCL would occupy a GPU
        flags = found.tolist()
    return frozenset(rank for rank, flag in enumerate(flags) if flag)


def leave_group() -> None:
    """Leave the process group, if there is one."""
    import torch.distributed

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


class RankVote:
    """A vote of all ranks at every step: stop, or save a checkpoint? The result is read one step later, so no rank waits.

    The values are on the CPU and are exchanged by gloo, so no GPU is synchronised. Every rank reads the same result at the same
    step. A process alone gets its own vote back at once.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._pending: tuple[torch.Tensor, torch.distributed.Work] | None = None

    def cast(self, signal_number: int, save: bool) -> tuple[int, bool]:
        """Vote in this step: signal received (or 0), save a checkpoint or not. Return the result of the last step's vote."""
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
        """Wait for the last vote to finish, so that no exchange between ranks is left open."""
        self._read()
