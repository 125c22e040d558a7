"""A Slurm cluster of one node on this machine, from Debian's packages slurm-wlm and munge, in a folder of its own."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "scancel")
SYSTEM = ("/usr/sbin", "/sbin", "/usr/bin", "/bin")

needs_slurm = pytest.mark.skipif(
    os.geteuid() != 0 or any(shutil.which(name, path=os.pathsep.join(SYSTEM)) is None for name in PROGRAMS),
    reason="untested: Slurm and munge are not installed, or this is not root",
)

CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={node}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
MpiDefault=none
ReturnToService=2
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=1,sched_interval=5,bf_interval=5
JobRequeue=1
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4
"""


class Slurm:
    """A running cluster. `environment`: for its commands."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        self.environment["PATH"] = os.pathsep.join([self.environment["PATH"], *SYSTEM])

    def command(self, *words: str, cwd: Path | None = None) -> str:
        """Run a command of Slurm and return what it prints."""
        done = subprocess.run(words, env=self.environment, cwd=cwd, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"{words}: {done.stderr}"
        return done.stdout

    def state(self, job: str) -> dict[str, str]:
        """Return what Slurm says about a job: JobState, Restarts, ExitCode, …"""
        words = self.command("scontrol", "show", "job", job).split()
        return dict(word.partition("=")[::2] for word in words)

    def logs(self) -> str:
        """Return the last lines of both daemons' logs."""
        logs = [(self.folder / f"{name}.log").read_text(errors="replace") for name in ("slurmctld", "slurmd")]
        return "\n".join("\n".join(text.splitlines()[-40:]) for text in logs)

    def start(self) -> Iterator[None]:
        """Start the three daemons in the foreground, wait until the node is idle, and end them afterwards."""
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        for name in ("state", "spool"):
            (self.folder / name).mkdir()
        host = socket.gethostname().partition(".")[0]
        text = CONFIGURATION.format(
            host=host,
            folder=self.folder,
            user=getpass.getuser(),
            controller=_free_port(),
            node=_free_port(),
            cpus=os.cpu_count(),
        )
        (self.folder / "slurm.conf").write_text(text)
        daemons = [
            ["munged", "--foreground", "--force", f"--socket={self.folder}/munge.socket", f"--key-file={key}",
             f"--pid-file={self.folder}/munge.pid", f"--seed-file={self.folder}/munge.seed"],
            ["slurmctld", "-D", "-f", f"{self.folder}/slurm.conf"],
            ["slurmd", "-D", "-f", f"{self.folder}/slurm.conf", "-N", host],
        ]  # fmt: skip
        running: list[subprocess.Popen[bytes]] = []
        try:
            for words in daemons:
                with open(self.folder / f"{words[0]}.out", "wb") as out:
                    running.append(
                        subprocess.Popen(words, env=self.environment, stdout=out, stderr=out, start_new_session=True)
                    )
                if words[0] == "munged":
                    _until(lambda: (self.folder / "munge.socket").exists(), "munged")
            _until(self._is_idle, f"the node; see {self.folder}")
            yield
        finally:
            for process in reversed(running):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGTERM)
                try:
                    process.wait(timeout=30)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()

    def _is_idle(self) -> bool:
        done = subprocess.run(
            ["sinfo", "--noheader", "--format=%T"], env=self.environment, capture_output=True, text=True, timeout=60
        )
        return done.stdout.strip() == "idle"


@contextlib.contextmanager
def slurm_node(folder: Path) -> Iterator[Slurm]:
    """Run a cluster of one node while the block runs. `folder` is empty."""
    slurm = Slurm(folder)
    with contextlib.contextmanager(slurm.start)():
        yield slurm


def _until(found: object, what: str, limit_s: float = 120.0) -> None:
    assert callable(found)
    end_s = time.monotonic() + limit_s
    while not found():
        assert time.monotonic() < end_s, f"no answer of {what}"
        time.sleep(0.1)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
