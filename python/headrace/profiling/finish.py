"""The end of every watched run: measure the job's own images and files, diagnose, write the diagnosis and the report.

`headrace diagnose`, `headrace watch`, `headrace.watch()` and `headrace train` all end here, so that each of them predicts the
same fixes from the same measurements. Nothing here runs while the job trains.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from headrace.diagnosis.diagnose import diagnose
from headrace.diagnosis.result.model import Diagnosis
from headrace.errors import SessionError
from headrace.profiling.image_benchmark import with_image_benchmark
from headrace.profiling.range_test import with_learning_rate
from headrace.profiling.read_sweep import with_read_sweep
from headrace.profiling.verify_fixes import remeasure_fixes
from headrace.report.pages import html
from headrace.report.sessions.session_folder import write_diagnosis
from headrace.report.text.shown_diagnosis import shown
from headrace.session.model import Session

__all__ = ["REPORT_FILE", "finish"]

REPORT_FILE = "report.html"


def finish(
    folder: Path,
    *,
    log: Callable[[str], None],
    report: bool = True,
    remeasure_command: Sequence[str] | None = None,
    remeasure_limit_s: float | None = None,
    time_to_verdict_s: float | None = None,
    threads_allowed: bool = True,
    measure: bool = True,
    usd_per_hour: float | None = None,
    find_learning_rate: Sequence[str] | None = None,
) -> tuple[Session, Diagnosis]:
    """Diagnose the session in `folder`; write `diagnosis.json` and, with `report`, `report.html` there. Return both.

    `log` takes one line at a time. `remeasure_command`: the command of the job, to run it again, briefly, with each fix that
    can be applied from outside (`diagnose --verify`); in the session its secrets are masked.
    `remeasure_limit_s`: seconds that these runs may take together (default: no limit). `time_to_verdict_s`: seconds from
    the start of the command to its first verdict, if there was one. `threads_allowed`: False while the interpreter exits; the
    read sweep, which needs threads, is then left out. `measure`: False to leave out image benchmark and read sweep, for a job
    that was asked to stop. `usd_per_hour`: price of a GPU-hour, for the wasted money in the report. `find_learning_rate`: the
    command, to run it again with a growing learning rate, for `remeasure_limit_s` at most.

    A job with timed steps is measured for a few seconds (one thread for the images, up to 16 for the files). A measurement that
    fails is logged and left out, and so are files that cannot be written (`Diagnosis.report` is then None). Raises
    `SessionError` when the folder holds no session.

        session, diagnosis = finish(Path("headrace-sessions/one"), log=print)
    """
    session = Session.load(folder)
    if session.steps and measure:
        session = _measured("image benchmark", with_image_benchmark, session, folder, log)
        if threads_allowed:
            session = _measured("read sweep", with_read_sweep, session, folder, log)
    diagnosis = replace(diagnose(session), session=str(folder), time_to_verdict_s=time_to_verdict_s)
    if remeasure_command is not None and diagnosis.verdict == "HANG":
        log("--verify: nothing is measured, because no fix makes a job go on that hangs")
    elif remeasure_command is not None:
        diagnosis = remeasure_fixes(diagnosis, session, folder, command=remeasure_command, log=log, limit_s=remeasure_limit_s)
    if find_learning_rate is not None:
        diagnosis = with_learning_rate(diagnosis, folder, command=find_learning_rate, log=log, limit_s=remeasure_limit_s)
    path = folder / REPORT_FILE
    try:
        write_diagnosis(replace(diagnosis, report=str(path)) if report else diagnosis, folder)
        if report:
            html.write(diagnosis, path, session=session, usd_per_hour=usd_per_hour)
            diagnosis = replace(diagnosis, report=str(path))
    except (OSError, SessionError) as error:  # the diagnosis is there, and whoever called shows it
        why = (error.strerror or error) if isinstance(error, OSError) else error
        log(f"headrace: diagnosis and report are not written to {folder}: {why}")
    return session, shown(diagnosis)


def _measured(
    name: str, measure: Callable[[Session, Path], Session], session: Session, folder: Path, log: Callable[[str], None]
) -> Session:
    try:
        return measure(session, folder)
    except Exception as error:  # the job's files may be anything; a diagnosis without this measurement is still a diagnosis
        log(f"headrace: {name} not measured: {type(error).__name__}: {error}")
        return session
