"""How a command ended: which of the causes is named, with process, number of steps, evidence, and never "more time"."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from headrace.diagnosis.diagnose import diagnose
from headrace.diagnosis.endings.end import how_it_ended
from headrace.diagnosis.result.fail_if import Condition
from headrace.diagnosis.result.model import End
from headrace.errors import SessionError
from headrace.report.text import terminal
from headrace.session.endings import JobEnd, ProcessEnd, ProcessMemory, RaisedError
from headrace.session.machine import Host
from headrace.session.model import Loss, Session
from session_factory import MAIN_PID, make_session

WORKER = MAIN_PID + 1
GIB = 1 << 30
UNEXPECTED = RaisedError("RuntimeError", f"DataLoader worker (pid(s) {WORKER}) exited unexpectedly")
KILLED = RaisedError("RuntimeError", f"DataLoader worker (pid {WORKER}) is killed by signal: Killed.")
BUS = RaisedError(
    "RuntimeError",
    f"DataLoader worker (pid {WORKER}) is killed by signal: Bus error. It is possible that dataloader's workers are out of "
    "shared memory. Please try to raise your shared memory limit.",
)


def ended(*errors: RaisedError, pid: int = MAIN_PID, time_s: float = 9.0, **fields: Any) -> ProcessEnd:
    return ProcessEnd(pid, time_s, fields.pop("how", "exception"), errors=errors, **fields)


def job(*ends: ProcessEnd, code: int | None = 1, **fields: Any) -> Session:
    return replace(make_session(workers=2), exit_code=code, ends=ends, **fields)


def end_of(session: Session) -> End:
    found = how_it_ended(session)
    assert found is not None
    return found


def memory(oom_kills: int | None, **fields: Any) -> JobEnd:
    processes = (
        ProcessMemory(MAIN_PID, "python", 0.5, 20.0, int(0.6 * GIB), True),
        ProcessMemory(WORKER, "pt_data_worker", 1.0, 20.0, int(0.45 * GIB), True),
        ProcessMemory(WORKER + 1, "pt_data_worker", 0.5, 20.0, int(0.4 * GIB), True),
    )
    return JobEnd(
        9.5, oom_kills, memory_limit_bytes=int(1.5 * GIB), memory_peak_bytes=int(1.5 * GIB), processes=processes, **fields
    )


def test_a_worker_killed_for_memory_names_limit_kills_process_and_the_memory_of_each() -> None:
    found = end_of(job(ended(UNEXPECTED, KILLED), job_end=memory(1)))
    assert found.kind == "memory" and found.pid == WORKER
    assert (
        found.text == f"the kernel killed worker 0 (pid {WORKER}) for memory after 120 steps: its control group may use 1.5 GiB"
    )
    words = " ".join(found.evidence)
    assert "killed 1 process for memory in the control group" in words
    assert f"worker 0 (pid {WORKER}) 460.8 MiB, training process (pid {MAIN_PID}) 614.4 MiB, worker 1" in words
    assert "memory in use: at most 1.5 GiB of 1.5 GiB" in words
    assert found.advice is not None and "fewer workers" in found.advice


@pytest.mark.parametrize("code", [-9, 137])
def test_a_training_process_killed_for_memory(code: int) -> None:
    found = end_of(job(code=code, job_end=memory(2)))
    assert found.kind == "memory"
    assert found.text.startswith(f"the kernel killed the training process (pid {MAIN_PID}) for memory after at least 120 steps")
    alone = end_of(Session(exit_code=code, job_end=memory(1)))
    assert "the command for memory before the first step" in alone.text and "workers" not in (alone.advice or "")


def test_sigkill_without_a_counted_kill_is_not_called_memory() -> None:
    found = end_of(job(code=-9, job_end=memory(0)))
    assert (found.kind, found.pid) == ("killed", MAIN_PID)
    assert "signal 9 (SIGKILL) after at least 120 steps" in found.text
    assert any("killed none for memory in the control group" in words for words in found.evidence)


def test_sigkill_on_a_full_machine_without_counters_is_probably_memory() -> None:
    session = job(code=-9, job_end=JobEnd(9.5))
    full = tuple(replace(sample, memory_left_bytes=GIB // 10) for sample in session.samples)
    found = end_of(replace(session, samples=full))
    assert found.kind == "memory" and "probably killed" in found.text and "the machine has 16.0 GiB" in found.text
    assert end_of(session).kind == "killed"


def test_a_kill_elsewhere_on_the_machine_explains_no_exception() -> None:
    found = end_of(job(ended(RaisedError("KeyError", "'mine'")), job_end=JobEnd(9.5, machine_oom_kills=1)))
    assert found.kind == "exception"


def test_an_earlier_kill_for_memory_is_no_cause_of_an_exception_and_is_told_beside_it() -> None:
    found = end_of(job(ended(RaisedError("ValueError", "boom")), job_end=memory(1)))
    assert found.kind == "exception" and "ValueError: boom" in found.text
    assert any("killed 1 process for memory" in words for words in found.evidence)
    for message in ("Command 'x' died with <Signals.SIGKILL: 9>.", "A process in the process pool was terminated abruptly"):
        lost = end_of(job(ended(RaisedError("CalledProcessError", message)), job_end=memory(1)))
        assert lost.kind == "memory" and "a process of the command's control group" in lost.text


def test_an_exception_before_the_time_limit_is_the_end_although_the_limit_stopped_the_rest() -> None:
    failed = ended(RaisedError("OSError", "Truncated File Read", "/job/train.py", 12, "<module>"), time_s=9.0)
    late = end_of(job(failed, code=-15, facts={"time_limit_s": 10.0}))
    assert late.kind == "exception" and "OSError: Truncated File Read" in late.text
    assert end_of(job(failed, code=-15, facts={"time_limit_s": 8.0})).kind == "time_limit"
    assert end_of(job(failed, code=-15)).kind == "stopped"


@pytest.mark.parametrize("said", ["DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes.", None])
def test_memory_that_the_process_is_refused_has_advice(said: str | None) -> None:
    error = RaisedError("RuntimeError", said) if said else RaisedError("MemoryError", "")
    advice = end_of(job(ended(error))).advice
    assert advice is not None and "ulimit -v" in advice


def test_a_helper_that_the_script_killed_is_no_victim() -> None:
    found = end_of(job(ended(RaisedError("ValueError", "boom"), children=((99, -9),)), job_end=memory(0)))
    assert found.kind == "exception" and "ValueError: boom" in found.text


def test_ctrl_c_of_another_process_does_not_stop_the_command() -> None:
    interrupted = ended(RaisedError("KeyboardInterrupt"), pid=99, time_s=9.2)
    assert end_of(job(ended(RaisedError("ValueError", "boom")), interrupted)).kind == "exception"
    assert end_of(job(interrupted, code=0)).kind == "finished"
    assert end_of(job(ended(RaisedError("KeyboardInterrupt")), interrupted)).kind == "stopped"


def test_an_error_after_the_limit_is_a_consequence_of_it() -> None:
    facts = {"time_limit_s": 8.0}
    late, early = (ended(RaisedError("ValueError", "boom"), time_s=time_s) for time_s in (8.1, 7.9))
    assert end_of(job(late, code=1, facts=facts, duration_s=15.0)).kind == "time_limit"
    assert end_of(job(early, code=1, facts=facts, duration_s=8.5)).kind == "exception"


def test_an_exit_with_another_code_is_told_as_evidence() -> None:
    found = end_of(job(ended(how="exit", code=4, file="/a/cli.py", line=9, function="run"), code=5))
    assert found.text == "the command failed with exit code 5 after 120 steps"
    assert found.evidence == ("a process of it called sys.exit(4) (cli.py:9 in run)",)


def test_losses_of_many_processes_and_long_messages_take_no_time(tmp_path: Path) -> None:
    many = tuple(Loss(pid, 2.5, 1.0) for pid in range(20_000))
    begin_s = time.process_time()
    assert end_of(job(code=0, losses=many)).kind == "finished"
    assert time.process_time() - begin_s < 2.0  # 20 s with a pass over all losses for each process
    long = RaisedError("RuntimeError", "DataLoader worker (pid 1) is killed by signal: " * 100)
    with pytest.raises(SessionError, match="more than 1000 characters"):
        Session.load(job(ended(long)).save(tmp_path))


def test_a_killed_worker_is_named_with_signal_and_steps() -> None:
    for error in (UNEXPECTED, RaisedError("ConnectionResetError", "[Errno 104] Connection reset by peer")):
        found = end_of(job(ended(error, children=((WORKER, -9), (WORKER + 1, -15))), job_end=memory(0)))
        assert (found.kind, found.pid) == ("worker_killed", WORKER)
        assert found.text == f"worker 0 (pid {WORKER}) was killed by signal 9 (SIGKILL) after 120 steps"
        assert f"the training process then raised {error.type}: {error.message}" in found.evidence
    assert end_of(job(ended(UNEXPECTED, KILLED))).text == found.text  # from PyTorch's words alone


def test_full_shared_memory_is_told_from_another_bus_error() -> None:
    small = JobEnd(9.5, 0, shared_memory_bytes=64 << 20, shared_memory_least_free_bytes=3 << 20)
    found = end_of(job(ended(UNEXPECTED, BUS), job_end=small))
    assert found.kind == "shared_memory"
    assert found.text.startswith("/dev/shm was full after 120 steps: worker 0 (pid")
    assert "/dev/shm has 64.0 MiB" in found.evidence[0] and found.advice is not None and "--shm-size" in found.advice
    large = JobEnd(9.5, 0, shared_memory_bytes=24 * GIB, shared_memory_least_free_bytes=23 * GIB)
    assert end_of(job(ended(UNEXPECTED, children=((WORKER, -7),)), job_end=large)).kind == "worker_killed"


@pytest.mark.parametrize(
    "message",
    [
        "unable to allocate shared memory(shm) for file </torch_12_34_5>: Resource temporarily unavailable (11)",
        "unable to write to file </torch_12_34_5>: No space left on device (28)",
        "[Errno 28] No space left on device: '/dev/shm/psm_1'",
    ],
)
def test_errors_of_shared_memory(message: str) -> None:
    found = end_of(job(ended(RaisedError("RuntimeError", "Caught RuntimeError in DataLoader worker process 0. Original"),
                             RaisedError("RuntimeError", message))))  # fmt: skip
    assert found.kind == "shared_memory" and message in found.text


def test_an_exception_of_the_training_is_its_last_line_with_place() -> None:
    error = RaisedError("ValueError", "boom", "/home/me/train.py", 41, "Net.forward")
    found = end_of(job(ended(error)))
    assert found.kind == "exception"
    assert found.text == "the training raised ValueError: boom (train.py:41 in Net.forward) after 120 steps"
    gpu = end_of(job(ended(RaisedError("torch.OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB"))))
    assert gpu.advice is not None and "smaller batch" in gpu.advice


def test_an_exception_of_a_worker_is_its_own_last_line() -> None:
    wrapped = RaisedError("ValueError", "Caught ValueError in DataLoader worker process 1. Original")
    inner = RaisedError("ValueError", "bad image 17.jpg", "/home/me/data.py", 7, "Data.__getitem__")
    found = end_of(job(ended(wrapped, inner)))
    assert found.kind == "worker_error"
    assert found.text == "worker 1 raised ValueError: bad image 17.jpg (data.py:7 in Data.__getitem__) after 120 steps"


def test_exits_name_the_line_and_the_error_that_was_handled_there() -> None:
    plain = end_of(job(ended(how="exit", code=3, file="/a/train.py", line=5, function="<module>"), code=3))
    assert (plain.kind, plain.text) == ("exit", "the command failed with exit code 3 after 120 steps: sys.exit (train.py:5)")
    handled = end_of(
        job(ended(RaisedError("KeyError", "'mine'"), how="exit", code=1, file="/a/cli.py", line=9, function="run"))
    )
    assert handled.kind == "exception" and "raised KeyError: 'mine'" in handled.text
    assert handled.evidence == ("the script then called sys.exit(1) (cli.py:9 in run)",)
    library = "/venv/lib/site-packages/torch/multiprocessing/spawn.py"
    assert end_of(job(ended(RaisedError("KeyError"), how="exit", code=1, file=library, line=9, function="run"))).evidence == ()
    assert "its own output may say why" in end_of(job(code=4)).evidence[0]


@pytest.mark.parametrize(
    ("fields", "kind", "words"),
    [
        ({"code": 0}, "finished", "exit code 0"),
        ({"code": -15, "facts": {"time_limit_s": 20.0}}, "time_limit", "--seconds ended the command after 20 s"),
        ({"code": -15}, "stopped", "stopped by SIGTERM from outside after 120 steps"),
        ({"code": 0, "facts": {"stopped_by": 15}}, "stopped", "SIGTERM"),
        ({"code": 130}, "stopped", "stopped by Ctrl-C"),
        ({"code": 1, "facts": {"stopped_by": 2}}, "stopped", "stopped by Ctrl-C after 120 steps"),
        ({"code": -11}, "crashed", "signal 11 (SIGSEGV)"),
        ({"code": 200}, "exit", "exit code 200"),
        ({"code": None, "job_end": memory(1)}, "memory", "for memory"),
        ({"code": None, "job_end": memory(0)}, "killed", "ended without an error of Python"),
    ],
)
def test_ends_by_code_and_signal(fields: dict[str, Any], kind: str, words: str) -> None:
    found = end_of(job(**fields))
    assert found.kind == kind and words in found.text


def test_a_running_command_has_no_end() -> None:
    assert how_it_ended(job(code=None)) is None


def losses(*values: float) -> tuple[Loss, ...]:
    return tuple(Loss(MAIN_PID, 2.5 + 0.1 * number, value) for number, value in enumerate(values))


def test_a_loss_that_stays_nan_is_an_end_and_one_that_recovers_is_not() -> None:
    nan = float("nan")
    found = end_of(job(code=0, losses=losses(2.0, 1.5, nan, nan, nan)))
    assert found.kind == "nan" and found.text.startswith("the loss is NaN from step ")
    assert found.evidence == ("the last loss before it: 1.5",)
    assert end_of(job(code=0, losses=losses(2.0, nan, 1.0))).kind == "finished"
    running = how_it_ended(job(code=None, losses=losses(nan, nan, nan)))
    assert running is not None and running.kind == "nan"
    assert end_of(job(code=0, losses=losses(2.0, float("inf")))).kind == "finished"  # a step that a gradient scaler skips
    assert end_of(job(code=-15, losses=losses(2.0, float("inf")))).kind == "stopped"
    exited = end_of(job(ended(how="exit", code=1), code=1, losses=losses(1.0, nan)))
    assert exited.kind == "nan" and any("exit code 1" in words for words in exited.evidence)
    other = end_of(job(ended(UNEXPECTED, KILLED), losses=losses(1.0, nan)))
    assert other.kind == "worker_killed" and any("NaN" in words for words in other.evidence)
    assert end_of(job(ended(RaisedError("ValueError", "Loss is nan, stopping")))).kind == "nan"


def ranks(*ends: ProcessEnd, code: int = 1, job_end: JobEnd | None = None) -> Session:
    both = [make_session(rank=rank, world_size=2) for rank in (0, 1)]
    return replace(
        both[0],
        exit_code=code,
        ends=ends,
        job_end=job_end,
        processes=(*both[0].processes, *both[1].processes),
        steps=(*both[0].steps, *both[1].steps[:50]),
    )


PEER = RaisedError("RuntimeError", "[gloo/tcp/pair.cc] Connection closed by peer [127.0.0.1]:4242")
SECOND = MAIN_PID + 100


def test_a_killed_rank_is_named_and_not_the_one_that_noticed_it() -> None:
    report = RaisedError("ChildFailedError", "train.py FAILED", lost_rank=1, lost_pid=SECOND, lost_code=-9)
    for ends in ((ended(PEER), ended(report, pid=1)), (ended(report, pid=1),)):
        found = end_of(ranks(*ends))
        assert (found.kind, found.pid) == ("rank_lost", SECOND)
        assert found.text == f"rank 1 (pid {SECOND}) was killed by signal 9 (SIGKILL) after at least 50 steps"
    seen = JobEnd(
        9.5, 0, processes=(ProcessMemory(SECOND, "python", 1.5, 9.0, GIB), ProcessMemory(MAIN_PID, "python", 0.5, 9.0, GIB))
    )
    silent = end_of(ranks(ended(PEER), job_end=seen))
    assert (silent.kind, silent.pid) == ("rank_lost", SECOND)
    assert "ended without an error of Python" in silent.text


def test_the_first_rank_that_raised_is_the_cause() -> None:
    found = end_of(ranks(ended(RaisedError("ValueError", "boom"), pid=SECOND, time_s=8.0), ended(PEER)))
    assert found.text == f"rank 1 (pid {SECOND}) raised ValueError: boom after 50 steps"


def test_a_job_that_died_is_not_told_to_run_longer() -> None:
    few = replace(make_session(), steps=make_session().steps[:2], exit_code=1, ends=(ended(RaisedError("ValueError", "boom")),))
    none = replace(few, steps=(), batches=())
    for session in (few, none, replace(few, exit_code=0)):
        diagnosis = diagnose(session)
        words = terminal.render(diagnosis, session=session).plain
        assert diagnosis.verdict == "INSUFFICIENT_DATA" and "longer" not in words and "more time" not in words
    assert "no step was timed: the training raised ValueError: boom before the first step" in diagnose(none).summary


def test_the_first_line_says_how_it_ended_and_the_shares_follow() -> None:
    session = job(ended(UNEXPECTED, KILLED), job_end=memory(1))
    diagnosis = diagnose(session)
    lines = terminal.render(diagnosis, session=session, width=80).plain.splitlines()
    assert lines[0].startswith("The kernel killed worker 0 (pid")
    assert len(lines) <= terminal.MAX_LINES and max(map(len, lines)) <= 80
    assert any("Where a step goes" in line for line in lines)
    assert diagnosis.to_json()["end"]["kind"] == "memory"
    assert Condition('end == "memory"').holds(diagnosis)
    good = terminal.render(diagnose(make_session()), width=80).plain.splitlines()
    assert good[0].startswith("headrace")


def test_the_end_survives_saving(tmp_path: Any) -> None:
    session = job(ended(UNEXPECTED, KILLED, children=((WORKER, -9),)), job_end=memory(1), host=Host())
    assert Session.load(session.save(tmp_path)) == session
