"""The sampler with a part of the machine emulated: a GPU that gets hot, or a container with a CPU quota.

    python sampler.py FOLDER PID LAUNCHER heat|quota

heat: NVML is replaced by `HotGpu`, which reports heat throttling once the job has made the file $SCENARIO_STATE. quota: the
job's processes are stopped for 40 ms of every 100 ms, as the kernel does it to a group that has used up its quota, and the
group's `cpu.stat` is played by a file that counts these stops.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

from headrace.attach import sampler
from headrace.attach.machine import procfs
from headrace.session.machine import GpuProperties, GpuSample
from headrace.system.hardware.cgroup import Cgroup

PERIOD_S, STOPPED_S = 0.1, 0.04


class HotGpu:
    """One GPU that is always busy, and hot from the moment that the job announces."""

    def __init__(self) -> None:
        self.state = Path(os.environ["SCENARIO_STATE"])

    def gpus(self) -> list[GpuProperties]:
        return [GpuProperties(0, "emulated GPU", 40 << 30, "none", max_sm_clock_mhz=1980)]

    def sample(self) -> list[GpuSample]:
        hot = self.state.exists()
        sample = GpuSample(
            0,
            busy=0.97,
            memory_used_bytes=10 << 30,
            sm_clock_mhz=1190 if hot else 1980,
            temperature_c=88.0 if hot else 60.0,
            throttle=("heat (software)",) if hot else (),
        )
        return [sample]


def play_quota(pid: int) -> Cgroup:
    """Stop the process tree of `pid` again and again. Return a control group whose files report that."""
    folder = Path(tempfile.mkdtemp(prefix="scenario-cgroup-"))
    (folder / "cpu.max").write_text("120000 100000")
    counters = folder / "cpu.stat"
    counters.write_text("nr_throttled 0\nthrottled_usec 0\n")

    def send(number: int) -> None:
        for each in procfs.descendants(pid, Path("/proc")):
            with suppress(OSError):
                os.kill(each, number)

    def play() -> None:
        stops, stopped_s = 0, 0.0
        try:
            while Path(f"/proc/{pid}").exists():
                begin_s = time.monotonic()
                send(signal.SIGSTOP)
                time.sleep(STOPPED_S)
                send(signal.SIGCONT)
                stops, stopped_s = stops + 1, stopped_s + time.monotonic() - begin_s
                fresh = folder / "fresh"
                fresh.write_text(f"nr_throttled {stops}\nthrottled_usec {stopped_s * 1e6:.0f}\n")
                fresh.replace(counters)
                time.sleep(max(0.0, PERIOD_S - (time.monotonic() - begin_s)))
        finally:
            send(signal.SIGCONT)

    threading.Thread(target=play, daemon=True).start()
    return Cgroup(2, folder, None)


def main(arguments: list[str]) -> int:
    """Run `headrace.attach.sampler` with the emulation in place."""
    what = arguments[3]
    if what == "heat":
        sampler.gpu_counters.open_counters = lambda library=None: HotGpu()  # type: ignore[assignment, misc, return-value]
    else:
        group = play_quota(int(arguments[1]))
        sampler.find_cgroup = lambda *_, **__: group  # type: ignore[assignment]
    return sampler.main(arguments[:3])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
