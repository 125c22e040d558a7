"""`headrace.watch()`: record and diagnose a training loop from inside the script, in a `with` block.

For notebooks, for jobs whose command cannot be changed, and for the callbacks of Lightning and Hugging Face's Trainer.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

from headrace.attach import sampler, torch_hooks
from headrace.attach.launch import attached_path
from headrace.attach.record import load_hooks, log
from headrace.attach.record.processes import rank_from_environment
from headrace.diagnosis.result.model import Diagnosis
from headrace.errors import HeadraceError
from headrace.profiling.command import (
    HOOKS,
    begin_session,
    default_session_folder,
    end_sampler,
    end_session,
    sessions_folder,
)
from headrace.profiling.finish import finish
from headrace.profiling.standstill_notice import StandstillNotice
from headrace.report.text import numbers
from headrace.system.files.private_files import make_private_folder

__all__ = ["Watch", "watch"]


def watch(out: str | Path | None = None, *, report: bool = True) -> Watch:
    """Record the training loop in a `with` block, and diagnose it when the block ends.

    `out`: folder of the session (default: headrace-sessions/TIME). `report`: write `report.html` there and print the verdict to
    stderr (default: yes). With several ranks each calls it; the first rank of each machine writes the report. Under `headrace
    diagnose` and inside another block it does nothing. Of workers that started before the block, only the arrival of their
    batches is recorded. When the block ends, a few of the job's images are decoded to measure them, and files that came from a
    disk are read again; both take a few seconds. Entering raises `UsageError` when the folder already holds a session.

        with headrace.watch() as block:
            train(model, loader)
        print(block.diagnosis)  # the first screen; .verdict, .fixes, .notes and the rest are attributes
    """
    return Watch(out, report=report)


class Watch:
    """What `with headrace.watch()` yields. folder: the session's. diagnosis: None until the block ends, and on other ranks.

    The first rank of each machine diagnoses.
    """

    def __init__(self, out: str | Path | None = None, *, report: bool = True) -> None:
        _, local_rank, world_size = rank_from_environment()
        self.folder = (Path(out) if out is not None else _default_folder(world_size)).absolute()
        self.diagnosis: Diagnosis | None = None
        self._is_first_rank = local_rank == 0
        self._report = report
        self._environment: dict[str, str | None] = {}
        self._sampler: subprocess.Popen[bytes] | None = None
        self._notice = StandstillNotice(self.folder, lambda words: log.log_line(f"headrace.watch: {words}"))
        self._active = False

    def __enter__(self) -> Watch:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        is_well = error is None or (isinstance(error, SystemExit) and not error.code)
        self.stop(failed=not is_well, error=error)

    def start(self) -> None:
        """Start recording without a `with` block. Raises `UsageError` when the folder already holds a session."""
        if load_hooks.SESSION_VARIABLE in os.environ:
            outer = os.environ[load_hooks.SESSION_VARIABLE]
            log.log_line(f"headrace.watch: this process is being watched already (session in {outer})")
            return
        if self._is_first_rank:
            begin_session(self.folder, [Path(sys.executable).name, *sys.argv])
        else:
            make_private_folder(self.folder)
        self._set_environment()
        if self._is_first_rank:
            self._sampler = sampler.start(self.folder, os.getpid())
            self._notice.start()
        if not torch_hooks.resume(self.folder):
            load_hooks.start()
        self._active = True

    @property
    def active(self) -> bool:
        """Whether the loop is being recorded: `start` was called, `stop` or `end` was not."""
        return self._active

    def stop(self, *, failed: bool = False, exiting: bool = False, error: BaseException | None = None) -> Diagnosis | None:
        """Stop recording, diagnose and report. Return None on other ranks, and where `start` found an outer session.

        `failed`: the training raised, `error` if it is known. `exiting`: the interpreter ends and can start no thread, so the
        read sweep is left out.
        A diagnosis that fails is logged and costs the script nothing: None is returned.
        """
        try:
            if not self.end(failed=failed, error=error):
                return None
            _, self.diagnosis = finish(self.folder, log=log.log_line, report=self._report, threads_allowed=not exiting)
        except Exception as error:  # the script goes on: its model may not be saved yet
            log.log_line(f"headrace.watch: not diagnosed: {error if isinstance(error, HeadraceError) else repr(error)}")
            return None
        if self._report:
            log.log_line(_summary(self.diagnosis))
        return self.diagnosis

    def end(self, *, failed: bool = False, error: BaseException | None = None) -> bool:
        """Only stop recording. Return whether this process is the one to diagnose the session: the first rank of a machine."""
        if not self._active:
            return False
        self._active = False
        torch_hooks.pause(error)
        ended_s = time.monotonic()
        for name, value in self._environment.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        if self._sampler is None:
            return False
        self._notice.stop()
        end_sampler(self._sampler, patience_s=0.0)
        end_session(self.folder, int(failed), ended_s)
        return True

    def _set_environment(self) -> None:
        """Set the variables by which spawned workers and ranks attach themselves. Forked ones have the hooks already."""
        given_hooks = [name for name in os.environ.get(load_hooks.HOOKS_VARIABLE, "").split(",") if name]  # `headrace run`'s
        wanted = {
            load_hooks.SESSION_VARIABLE: str(self.folder),
            load_hooks.HOOKS_VARIABLE: ",".join([*given_hooks, *HOOKS]),
            "PYTHONPATH": attached_path(os.environ.get("PYTHONPATH")),
        }
        self._environment = {name: os.environ.get(name) for name in wanted}
        os.environ.update(wanted)


def _summary(diagnosis: Diagnosis) -> str:
    """A few lines: how the training ended if it failed, the verdict, the best fix, the path of the report."""
    rate = f", {diagnosis.img_s:,.0f} img/s" if diagnosis.img_s is not None else ""
    ended = diagnosis.end
    lines = [f"headrace.watch: {ended.text}"] if ended is not None and ended.is_failure else []
    lines += [f"headrace.watch: {diagnosis.verdict}: {diagnosis.summary}{rate} (confidence {diagnosis.confidence_word})"]
    best = next((fix for fix in diagnosis.fixes if (fix.gain or 0.0) > 1.0), None)
    if best is not None:
        lines.append(f"headrace.watch: {best.change} ({numbers.gain(best.gain or 1.0)} predicted)")
    lines.append(f"headrace.watch: report in {diagnosis.report}")
    return "\n".join(lines)


def _default_folder(world_size: int) -> Path:
    """A name by the time. With several ranks, a name that all ranks of a machine share: pid and start of their launcher."""
    if world_size == 1:
        return default_session_folder()
    launcher = os.getppid()
    try:  # field 22 (start time) of /proc/PID/stat; field 3 is the first after the bracket that closes the name
        started = Path(f"/proc/{launcher}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        started = "0"
    return sessions_folder() / f"{time.strftime('%Y-%m-%d')}-launcher-{launcher}-{started}"
