"""The sampler: counters of a machine, read from a made-up /proc, and of a real process."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import pytest
from headrace.attach import sampler as sampler_module
from headrace.attach.machine import procfs
from headrace.attach.machine.foreign_programs import ForeignPrograms
from headrace.attach.record.recorder import Recorder
from headrace.attach.sampler import Sampler, start
from headrace.diagnosis.measure import measure_machine
from headrace.session.machine import ForeignProgram, Sample
from headrace.session.model import Session

TICKS = os.sysconf("SC_CLK_TCK")


def put(root: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def process(pid: int, parent: int, cpu_s: float, name: str = "python") -> dict[str, str]:
    ticks = int(cpu_s * TICKS)
    after = f"S {parent} 0 0 0 0 0 0 0 3 0 {ticks} 0 0 0 20 0 1 0 0 0 500 0 0"
    return {
        f"{pid}/stat": f"{pid} ({name}) {after}",
        f"{pid}/statm": "1000 500 100 0 0 0 0",
        f"{pid}/task/{pid}/schedstat": f"{int(cpu_s * 1e9)} {int(cpu_s * 0.5e9)} 10",
    }


def machine(cpu_s: tuple[float, float], idle_s: float, *, own_s: float) -> dict[str, str]:
    """/proc with two cores, a training process 100 with a worker 101, and a stranger 200."""
    lines = [f"cpu{n} {int(busy * TICKS)} 0 0 {int(idle_s * TICKS)} 0 0 0 0 0 0" for n, busy in enumerate(cpu_s)]
    return {
        "stat": "cpu 0 0 0 0 0 0 0 0\n" + "\n".join(lines) + "\nprocs_running 3\n",
        "meminfo": "MemTotal: 1000 kB\nMemAvailable: 400 kB\n",
        "net/dev": "h\nh\n  lo: 500 0 0\neth0: 9000 0 0\n",
        "diskstats": "8 0 sda 1 0 2000 0 0 0 0 0 0 700 0\n8 1 sda1 1 0 2000 0 0 0 0 0 0 700 0\n",
        "pressure/cpu": "some avg10=1.00 avg60=0 avg300=0 total=2000000\n",
        **process(100, 1, own_s),
        **process(101, 100, own_s, "pt_data_worker"),
        **process(200, 1, 9.0, "a (strange) name"),
    }


def test_mounts_behind_which_a_network_may_be_are_counted(tmp_path: Path) -> None:
    local = "/dev/vda / ext4 rw 0 0\ntmpfs /dev/shm tmpfs rw 0 0\nfusectl /sys/fs/fuse fusectl rw 0 0\n"
    local += "lxcfs /proc/stat fuse.lxcfs rw 0 0\n"
    put(tmp_path, {"self/mounts": local})
    assert procfs.remote_mounts(tmp_path) == 0
    put(tmp_path, {"self/mounts": local + "store:/data /data nfs4 rw 0 0\ns3fs /bucket fuse.s3fs rw 0 0\n"})
    assert procfs.remote_mounts(tmp_path) == 2
    assert procfs.remote_mounts(tmp_path / "none") is None


def test_sample_splits_own_and_foreign_cpu(tmp_path: Path) -> None:
    proc = tmp_path / "proc"
    put(proc, machine((10.0, 10.0), 50.0, own_s=1.0))
    sampler = Sampler(100, proc=proc, sys=tmp_path / "sys")
    sampler.prepare()
    assert sampler.sample(0.0) is None
    put(proc, machine((12.0, 11.0), 51.0, own_s=1.5))
    sample = sampler.sample(2.0)
    assert sample is not None
    assert sample["core_busy"] == [pytest.approx(2 / 3, abs=0.01), pytest.approx(0.5, abs=0.01)]
    assert sample["own_cores"] == pytest.approx(0.5, abs=0.01)
    assert sample["foreign_cores"] == pytest.approx(1.0, abs=0.02)
    assert sample["queue_share"] == pytest.approx(1 / 3, abs=0.01)
    assert sample["workers"] == 1
    assert sample["memory_used_bytes"] == 600 * 1024
    assert sample["memory_left_bytes"] == 400 * 1024
    assert sample["pressure_cpu"] == 0


@pytest.mark.parametrize(
    ("limit", "available_kib", "left_kib"),
    [("max", 400, 400), (str(500 * 1024), 400, 200), (str(500 * 1024), 100, 100), (str(200 * 1024), 400, 0)],
)
def test_what_is_left_of_the_memory_is_the_least_of_the_machines_and_the_groups(
    tmp_path: Path, limit: str, available_kib: int, left_kib: int
) -> None:
    """A group without a limit, on a machine whose memory other programs hold, has only what these leave."""
    files = machine((10.0, 10.0), 50.0, own_s=1.0)
    put(tmp_path / "proc", files | {"meminfo": f"MemTotal: 1000 kB\nMemAvailable: {available_kib} kB\n"})
    put(tmp_path, {
        "proc/100/cgroup": "0::/job\n",
        "sys/fs/cgroup/cgroup.controllers": "cpu memory",
        "sys/fs/cgroup/job/memory.max": limit,
        "sys/fs/cgroup/job/memory.current": str(300 * 1024),
    })  # fmt: skip
    sampler = Sampler(100, proc=tmp_path / "proc", sys=tmp_path / "sys")
    sampler.prepare()
    sampler.sample(0.0)
    sample = sampler.sample(1.0)
    assert sample is not None and sample["memory_used_bytes"] == 300 * 1024
    assert sample["memory_left_bytes"] == left_kib * 1024


def recording(pid: int, start_ticks: int = 0, hostname: str = "") -> str:
    """The beginning of a session's file: `process` above starts at tick 0."""
    line = {"kind": "recording", "pid": pid, "hostname": hostname or platform.node(), "start_ticks": start_ticks}
    return json.dumps(line) + "\n"


def prepared(tmp_path: Path) -> tuple[Path, Path, Sampler]:
    """Return the folder of a machine's processes, that of a session, and a sampler of process 100 before its first sample."""
    proc, session = tmp_path / "proc", tmp_path / "session"
    session.mkdir()
    put(proc, machine((10.0, 10.0), 50.0, own_s=1.0))
    sampler = Sampler(100, session, proc=proc, sys=tmp_path / "sys")
    sampler.prepare()
    return proc, session, sampler


def test_another_rank_that_records_into_the_session_is_no_foreign_program(tmp_path: Path) -> None:
    proc, session, sampler = prepared(tmp_path)
    assert sampler.sample(0.0) is None
    put(session, {f"process-{pid}-17.jsonl": recording(pid) for pid in (101, 200, 300)} | {"sampler.jsonl": ""})
    put(proc, process(201, 200, 3.0, "pt_data_worker"))
    assert sampler.sample(1.0) is None  # its nine seconds so far are not those of this interval
    put(proc, machine((12.0, 11.0), 51.0, own_s=1.5) | process(200, 1, 10.0) | process(201, 200, 3.5, "pt_data_worker"))
    sample = sampler.sample(3.0)
    assert sample is not None
    assert sample["own_cores"] == pytest.approx((0.5 + 0.5 + 1.0 + 0.5) / 2, abs=0.01)
    assert sample["foreign_cores"] == pytest.approx(0.25, abs=0.02)
    assert sample["workers"] == 2
    put(
        proc, {"200/stat": (proc / "200/stat").read_text().replace(" 1 0 0 0 500", " 1 0 7 0 500")}
    )  # another process, same number
    assert (sampler.sample(4.0) or {})["workers"] == 1


@pytest.mark.parametrize(
    "line",
    [
        recording(200, hostname="another-machine"),
        recording(200, start_ticks=499),  # another process had the number before
        '{"kind":"process","pid":200,"role":"main"}\n',  # as an older headrace wrote
        '{"kind":"recording","pid":200}\n',
        "[1, 2]\n",
        "{\n",
        "x" * 10_000,
        "",
    ],
    ids=["another machine", "reused number", "older", "fields missing", "list", "broken", "long", "empty"],
)
def test_a_stranger_with_the_number_of_a_recorded_process_is_foreign(tmp_path: Path, line: str) -> None:
    """A process belongs to the job by its machine, pid and start: machines may share a folder, and pids are used again."""
    proc, session, sampler = prepared(tmp_path)
    put(session, {"process-200-17.jsonl": line})
    assert sampler.sample(0.0) is None
    put(proc, machine((12.0, 12.0), 51.0, own_s=1.5) | process(200, 1, 11.0))
    sample = sampler.sample(2.0)
    assert sample is not None
    assert sample["own_cores"] == pytest.approx(0.5, abs=0.01)  # without the stranger's two seconds
    assert sample["foreign_cores"] == pytest.approx(1.5, abs=0.02)


def test_a_rank_whose_first_line_is_not_written_yet_joins_later(tmp_path: Path) -> None:
    _, session, sampler = prepared(tmp_path)
    put(session, {"process-200-17.jsonl": recording(200)[:20]})
    assert 200 not in sampler._job()
    put(session, {"process-200-17.jsonl": recording(200)})
    assert 200 in sampler._job()


def test_a_recorded_process_that_has_ended_is_not_looked_at_again(tmp_path: Path) -> None:
    """Each worker of each epoch leaves a file."""
    _, session, sampler = prepared(tmp_path)
    put(session, {"process-300-17.jsonl": recording(300)})
    assert [pid for pid, _ in sampler._recording()] == [300]
    assert 300 not in sampler._job()
    assert sampler._recording() == []


def test_programs_outside_the_job_are_named_while_they_use_cores(tmp_path: Path) -> None:
    sampler = Sampler(100, proc=tmp_path, sys=tmp_path / "sys", ignored_pids=frozenset({201}))
    for now_s, foreign_s in ((0.0, 9.0), (2.0, 10.0), (4.0, 11.5)):
        busy_s = 10.0 + foreign_s
        put(tmp_path, machine((busy_s, busy_s), 50.0 + now_s, own_s=1.0))
        put(tmp_path, process(200, 1, foreign_s, "a (strange) name") | process(201, 1, 3 * foreign_s, "sampler"))
        put(tmp_path, process(202, 1, 7.0, "idle"))
        sample = sampler.sample(now_s)
    assert sample is not None
    assert sample["foreign_programs"] == [{"pid": 200, "name": "a (strange) name", "cores": 0.75}]


def test_a_program_that_is_fourth_in_a_sample_keeps_its_cores(tmp_path: Path) -> None:
    """Five programs take turns: in each sample another three are the largest."""
    sampler = ForeignPrograms(proc=tmp_path)
    cpu_s = dict.fromkeys(range(10, 15), 0.0)
    samples = []
    for tick in range(26):
        for number, pid in enumerate(cpu_s):
            cpu_s[pid] += 0.6 if (tick + number) % 5 < 3 else 0.4
            put(tmp_path, process(pid, 1, cpu_s[pid], f"program{pid}"))
        sampler._next_s = 0.0  # reading is free here
        found = sampler.largest(float(tick), (), ())
        samples.append(None if found is None else tuple(ForeignProgram(**program) for program in found))
    listed = tuple(Sample(float(at), 1.0, foreign_cores=2.6, foreign_programs=found) for at, found in enumerate(samples))
    named = measure_machine(Session(samples=listed), ()).foreign_programs
    assert named is not None
    assert [program.cores for program in named] == pytest.approx([0.52] * 3, abs=0.01)


def test_programs_are_not_read_while_the_machine_is_quiet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.attach.machine.foreign_programs.ForeignPrograms._read", lambda *_: pytest.fail("read"))
    sampler = Sampler(100, proc=tmp_path, sys=tmp_path / "sys")
    for now_s in (0.0, 2.0, 4.0):
        put(tmp_path, machine((10.0, 10.0), 50.0 + now_s, own_s=1.0))
        sample = sampler.sample(now_s)
    assert sample is not None
    assert sample["foreign_cores"] == 0
    assert "foreign_programs" not in sample


def test_a_job_that_has_ended_says_nothing_about_the_kernels_statistics() -> None:
    sampler = Sampler(2**22 + 1)  # beyond the largest pid
    sampler.prepare()
    known = Path("/proc/self/schedstat").exists() and not Path("/proc/self/schedstat").read_text().startswith("0 ")
    assert ("run-queue delay" in sampler.not_measured) is not known


def test_absent_counters_are_listed_as_not_measured(tmp_path: Path) -> None:
    put(tmp_path, process(100, 1, 1.0))
    (tmp_path / "100/task/100/schedstat").unlink()
    sampler = Sampler(100, proc=tmp_path, sys=tmp_path)
    sampler.prepare()
    sampler.sample(0.0)
    sample = sampler.sample(1.0)
    assert sample is not None
    assert {"cgroup limits", "pressure (PSI)", "run-queue delay", "disks"} <= set(sampler.not_measured)
    for name in ("pressure_cpu", "disk_read_bytes_s", "queue_share", "throttled_share", "foreign_cores", "memory_used_bytes"):
        assert name not in sample


def test_a_process_that_ends_does_not_make_own_cpu_fall(tmp_path: Path) -> None:
    put(tmp_path, machine((10.0, 10.0), 50.0, own_s=3.0))
    sampler = Sampler(100, proc=tmp_path, sys=tmp_path)
    sampler.sample(0.0)
    (tmp_path / "101/stat").unlink()
    sample = sampler.sample(1.0)
    assert sample is not None
    assert sample["own_cores"] == 0
    assert sample["processes"] == 1


@pytest.mark.parametrize(
    ("name", "whole"),
    [("sda", True), ("sda1", False), ("nvme0n1", True), ("nvme0n1p2", False), ("loop0", False), ("dm-0", False)],
)
def test_only_whole_disks_count(name: str, whole: bool) -> None:
    assert procfs._is_whole_disk(name) is whole


def test_the_real_sampler_follows_a_process_to_its_end(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    sampler = subprocess.Popen([sys.executable, "-m", "headrace.attach.sampler", str(tmp_path), str(child.pid), "0"])
    file = tmp_path / "sampler.jsonl"
    end_s = time.monotonic() + 60
    while time.monotonic() < end_s and (not file.exists() or file.read_text().count('"kind":"sample"') < 3):
        time.sleep(0.1)
    child.kill()
    child.wait()
    assert sampler.wait(60) == 0
    session = Session.load(tmp_path)
    assert session.host.cores_online
    assert session.samples
    assert any((sample.own_cores or 0) > 0.02 for sample in session.samples)


def test_the_sampler_knows_the_process_that_a_real_recorder_names(tmp_path: Path) -> None:
    """A rank is no child of the watched process: here this process records, and the job is another one."""
    recorder = Recorder(tmp_path)
    recorder.event("gc", 0.0, 0.0)
    recorder.flush()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as job:
        pids = Sampler(job.pid, tmp_path)._job()
        job.communicate(b"\n")
    assert {job.pid, os.getpid()} <= set(pids)


def test_cores_and_priority_that_a_script_changes_are_read_again(tmp_path: Path) -> None:
    """The change of a training process counts; the process that was started first, a shell for example, keeps its cores."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one core")
    script = f"""
import os, sys
sys.path[:0] = {[str(Path(sampler_module.__file__).parents[2])]!r}
from pathlib import Path
from headrace.attach.record.recorder import Recorder
recorder = Recorder(Path({str(tmp_path)!r}))
recorder.event("gc", 0.0, 0.0)
recorder.flush()
print("begun", flush=True)
input()
os.sched_setaffinity(0, {{min(os.sched_getaffinity(0))}})
os.nice(3)
print("changed", flush=True)
input()
"""
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as training:
        assert training.stdin is not None and training.stdout is not None
        assert training.stdout.readline() == "begun\n"
        sampler = Sampler(os.getpid(), tmp_path)
        sampler.prepare()
        nice = os.nice(0)
        sampler.sample(1.0)
        before = sampler.sample(2.0)
        training.stdin.write("\n")
        training.stdin.flush()
        assert training.stdout.readline() == "changed\n"
        after = sampler.sample(3.0)
        training.stdin.write("\n")
        training.stdin.close()
    assert before is not None and "affinity" not in before and before.get("niceness", 0) == nice
    assert after is not None and len(after["affinity"]) == 1 and after["niceness"] == min(19, nice + 3)


def test_the_end_of_a_job_has_kills_limit_and_the_last_memory_of_each_process(tmp_path: Path) -> None:
    """The worker is killed between two samples; its last memory stays known, also while it is a zombie without any."""
    group = "sys/fs/cgroup/job"
    put(tmp_path / "proc", machine((10.0, 10.0), 50.0, own_s=1.0))
    put(tmp_path, {
        "proc/100/cgroup": "0::/job\n",
        "proc/vmstat": "nr_free_pages 1\noom_kill 7\n",
        "sys/fs/cgroup/cgroup.controllers": "cpu memory",
        f"{group}/memory.max": str(500 * 1024),
        f"{group}/memory.current": str(300 * 1024),
        f"{group}/memory.events": "oom_kill 3\n",
        f"{group}/memory.peak": "900",
    })  # fmt: skip
    sampler = Sampler(100, proc=tmp_path / "proc", sys=tmp_path / "sys")
    sampler.prepare()
    sampler.sample(10.0)
    put(tmp_path, {f"{group}/memory.current": str(490 * 1024)})
    put(tmp_path / "proc", {f"{pid}/smaps_rollup": f"Rss: 400 kB\nPss:   {pid} kB\n" for pid in (100, 101)})
    sampler.sample(11.0)  # memory is short: the shares of shared pages are read
    put(tmp_path, {
        "proc/101/statm": "0 0 0 0 0 0 0",
        "proc/101/smaps_rollup": "",
        "proc/vmstat": "oom_kill 8\n",
        f"{group}/memory.events": "oom_kill 4\n",
        f"{group}/memory.peak": str(500 * 1024),
    })  # fmt: skip
    put(tmp_path / "proc", {"101/stat": (tmp_path / "proc/101/stat").read_text().replace(" 500 ", " 0 ")})
    sampler.sample(12.0)
    end = sampler.job_end(12.5)
    assert (end["oom_kills"], end["machine_oom_kills"]) == (1, 1)
    assert end["memory_limit_bytes"] == end["memory_peak_bytes"] == 500 * 1024
    assert {one["pid"]: (one["memory_bytes"], one["seen_s"], one["is_proportional"]) for one in end["processes"]} == {
        100: (100 * 1024, 0.5, True),
        101: (101 * 1024, 1.5, True),
    }


def test_a_sampler_that_is_told_to_end_writes_the_end(tmp_path: Path) -> None:
    process = start(tmp_path, os.getpid())
    try:
        deadline_s = time.monotonic() + 60
        while not (tmp_path / "sampler.jsonl").exists() or '"sample"' not in (tmp_path / "sampler.jsonl").read_text():
            assert time.monotonic() < deadline_s
            time.sleep(0.1)
        process.terminate()
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
    seen = Session.load(tmp_path).job_end
    assert seen is not None and os.getpid() in {one.pid for one in seen.processes}
