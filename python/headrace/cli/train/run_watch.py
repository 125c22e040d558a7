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
from headrace.errors import HeadraceError, SessionError
from headrace.profiling.finish import finish
from headrace.profiling.in_process import Watch
from headrace.system.files.private_files import check_below
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
        problem: Exception | None = None
        if start.ranks.local_rank == 0:
            problem = self._started(watch, anew=True)
        # The other ranks write into the folder that exists now, and begin no session where the first one has none.
        failed = barrier(start.ranks, failed=problem is not None)
        if start.ranks.local_rank != 0:
            lacks_first = start.ranks.rank - start.ranks.local_rank in failed
            words = f"the first rank of this machine cannot write {watch.folder}"
            problem = SessionError(words) if lacks_first else self._started(watch)
        if problem is not None:
            output.log(f"warning: this run is not diagnosed: {problem}")
            return
        self._watch = watch

    def _started(self, watch: Watch, *, anew: bool = False) -> Exception | None:
        """Start recording, after removing an earlier session (`anew`). Return why that is impossible, or None."""
        try:
            check_below(self._out.absolute(), watch.folder)  # a stranger's training may hold links to elsewhere
            if anew:
                shutil.rmtree(watch.folder, ignore_errors=True)
            watch.start()
        except (HeadraceError, OSError) as error:
            return error
        return None

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
