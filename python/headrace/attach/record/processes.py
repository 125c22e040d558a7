"""Record facts of this process: rank, role, versions."""

from __future__ import annotations

import os
import platform
import sys
from typing import Any

from headrace.attach.machine.environment import library_versions, speed_variables
from headrace.attach.machine.thread_settings import thread_settings
from headrace.attach.record import open_step
from headrace.attach.record.load_hooks import PROCESS_STARTED_S
from headrace.attach.record.recorder import Recorder

__all__ = ["keep_open_step", "rank_from_environment", "rank_of_process", "write_process", "write_threads"]

RANK_VARIABLES = (("RANK", "LOCAL_RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS"))
MPI_VARIABLES = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE")


def rank_from_environment() -> tuple[int, int, int]:
    """Return rank, local rank and world size as torchrun, Slurm or Open MPI set them, or (0, 0, 1)."""
    for names in (*RANK_VARIABLES, MPI_VARIABLES):
        values = [os.environ.get(name, "") for name in names]
        if values[0].isdigit() and values[2].isdigit():
            return int(values[0]), int(values[1] or 0), int(values[2])
    return 0, 0, 1


def rank_of_process() -> tuple[int, int, int]:
    """Return the launcher's values, or those of the process group if there is no launcher (`torch.multiprocessing.spawn`)."""
    found = rank_from_environment()
    group: Any = sys.modules.get("torch.distributed")
    if found[2] > 1 or group is None or not group.is_available() or not group.is_initialized():
        return found
    return int(group.get_rank()), int(group.get_rank()), int(group.get_world_size())


def write_process(recorder: Recorder, *, role: str, worker_id: int | None = None) -> None:
    """Record rank, role and versions of this process, once."""
    if recorder.role is not None:
        return
    recorder.role = role
    rank, local_rank, world_size = rank_of_process()
    open_step.note_rank(rank, world_size)
    torch: Any = sys.modules.get("torch")
    tensorflow: Any = sys.modules.get("tensorflow")
    recorder.line(
        "process",
        parent_pid=os.getppid(),
        role=role,
        started_s=PROCESS_STARTED_S,
        rank=rank,
        local_rank=local_rank,
        world_size=world_size,
        worker_id=worker_id,
        python=platform.python_version(),
        torch=str(torch.__version__) if torch is not None else None,
        thread_settings=thread_settings(),
        torch_threads=torch.get_num_threads() if torch is not None else None,
        tensorflow=str(getattr(tensorflow, "__version__", "")) or None,
        environment=speed_variables() if role == "main" else {},
        versions=library_versions() if role == "main" else {},
        argv=sys.argv[:1],  # the script; its arguments may hold secrets
    )


def write_threads(recorder: Recorder) -> None:
    """Record the thread settings of this process again: the script may have changed them."""
    torch: Any = sys.modules.get("torch")
    threads = torch.get_num_threads() if torch is not None else None
    recorder.line("threads", thread_settings=thread_settings(), torch_threads=threads)


def keep_open_step(recorder: Recorder) -> None:
    """Let the sampler see what the training loop of this process does at any time, or record why it cannot."""
    why = open_step.install()
    rank, _, world_size = rank_from_environment()
    open_step.note_rank(rank, world_size)
    if why is not None:
        recorder.line("not_measured", what="where a job stands still", why=why)
