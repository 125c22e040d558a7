"""The diagnosis of each `headrace train` run.

The session has a folder of its own. An error in the diagnosis never ends the training.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from headrace.attach.record.load_hooks import SESSION_VARIABLE
from headrace.cli.shared import output
from headrace.diagnosis.result.model import Diagnosis
from headrace.errors import HeadraceError
from headrace.profiling.finish import finish
from headrace.profiling.in_process import Watch
from headrace.system.files.private_files import check_own_state
from headrace.training.distributed.ranks import barrier
from headrace.training.loop import Options, TrainingStart
from headrace.training.tune.rates import UNWATCHED

__all__ = ["RunWatch"]


class RunWatch:
    """Records the loop of `headrace train`. Every rank calls `begin` before the first step and `end` after the last one.

    The session folder is `OUT/sessions/from-STEP`, where STEP is the step that the process resumed from (0 for a new run), and
    `…-machine-N` on further machines. Under `headrace diagnose` it does nothing. Failures are logged.
    """

    def __init__(self, options: Options) -> None:
        self._out = Path(options.out)
        self._watch: Watch | None = None

    def begin(self, start: TrainingStart) -> None:
        """Start recording into a new session. A session of an earlier attempt from the same step is removed first."""
        if SESSION_VARIABLE in os.environ or UNWATCHED in os.environ:
            return
        machine = os.environ.get("GROUP_RANK", "0")
        name = f"from-{start.step:09d}" + (f"-machine-{machine}" if machine != "0" else "")
        watch = Watch(self._out / "sessions" / name)
        try:
            check_own_state(watch.folder.parent)  # it may have come with a stranger's training, as a link to elsewhere
            if start.ranks.local_rank == 0:
                shutil.rmtree(watch.folder, ignore_errors=True)
                watch.start()
            barrier(start.ranks)  # the other ranks write into the folder that exists now
            if start.ranks.local_rank != 0:
                watch.start()
        except (HeadraceError, OSError) as error:
            output.log(f"warning: this run is not diagnosed: {error}")
            return
        self._watch = watch

    def end(self, *, failed: bool = False, measure: bool = True) -> Diagnosis | None:
        """Stop recording. On the first rank of a machine, diagnose the session and write the report into its folder.

        `measure`: decode some of the run's images, to predict what smaller ones would bring; this takes a few seconds.
        Return None on other ranks, where no step was timed, and where the diagnosis failed, which is logged.
        """
        watch, self._watch = self._watch, None
        try:
            if watch is None or not watch.end(failed=failed):
                return None
            _, diagnosis = finish(watch.folder, log=output.log, measure=measure)
        except Exception as error:  # a diagnosis that fails must not fail the training
            output.log(f"warning: this run is not diagnosed: {error if isinstance(error, HeadraceError) else repr(error)}")
            return None
        return diagnosis if diagnosis.steps else None
