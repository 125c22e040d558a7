"""Counters of the machine, read from made-up /proc and cgroup trees: version 1, version 2, none, and a fake NVML."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from headrace.attach import nvml, procfs
from headrace.attach.cgroup import find_cgroup
from headrace.attach.sampler import Sampler
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
    assert sample["pressure_cpu"] == 0


def test_absent_sources_are_listed_and_left_out(tmp_path: Path) -> None:
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


def test_cgroup_version_2(tmp_path: Path) -> None:
    put(
        tmp_path,
        {
            "proc/7/cgroup": "0::/job/inner\n",
            "sys/fs/cgroup/cgroup.controllers": "cpu memory",
            "sys/fs/cgroup/job/cpu.max": "150000 100000",
            "sys/fs/cgroup/job/memory.max": "max",
            "sys/fs/cgroup/job/inner/cpu.max": "max 100000",
            "sys/fs/cgroup/job/inner/memory.max": "2000000",
            "sys/fs/cgroup/job/inner/memory.current": "900000",
            "sys/fs/cgroup/job/inner/memory.stat": "anon 1\ninactive_file 300000\n",
            "sys/fs/cgroup/job/inner/cpu.stat": "usage_usec 5\nnr_throttled 3\nthrottled_usec 2500000\n",
            "sys/fs/cgroup/job/inner/cpu.pressure": "some avg10=0 avg60=0 avg300=0 total=1\n",
        },
    )
    group = find_cgroup(7, proc=tmp_path / "proc", sys=tmp_path / "sys")
    assert group is not None
    assert group.version == 2
    assert group.quota_cores() == 1.5  # the limit of the group above binds
    assert group.memory_limit_bytes() == 2_000_000
    assert group.memory_used_bytes() == 600_000
    assert group.throttled_s() == 2.5
    put(tmp_path, {"sys/fs/cgroup/job/cpu.stat": "nr_throttled 9\nthrottled_usec 7000000\n"})
    assert group.throttled_s() == 7.0  # so does what it stopped
    assert group.pressure_file("cpu") is not None
    assert group.pressure_file("io") is None


def test_cgroup_version_1(tmp_path: Path) -> None:
    base = "sys/fs/cgroup"
    put(
        tmp_path,
        {
            "proc/7/cgroup": "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n",
            f"{base}/cpu,cpuacct/docker/abc/cpu.cfs_quota_us": "200000",
            f"{base}/cpu,cpuacct/docker/abc/cpu.cfs_period_us": "100000",
            f"{base}/cpu,cpuacct/docker/abc/cpu.stat": "nr_periods 9\nthrottled_time 3000000000\n",
            f"{base}/memory/docker/abc/memory.limit_in_bytes": "9223372036854771712",
            f"{base}/memory/docker/abc/memory.usage_in_bytes": "5000",
        },
    )
    group = find_cgroup(7, proc=tmp_path / "proc", sys=tmp_path / "sys")
    assert group is not None
    assert group.version == 1
    assert group.quota_cores() == 2.0
    assert group.throttled_s() == 3.0
    assert group.memory_limit_bytes() is None
    assert group.memory_used_bytes() == 5000


def test_cgroup_of_a_container_that_sees_only_its_own_root(tmp_path: Path) -> None:
    put(
        tmp_path,
        {
            "proc/7/cgroup": "0::/kubepods/pod1/abc\n",
            "sys/fs/cgroup/cgroup.controllers": "cpu",
            "sys/fs/cgroup/cpu.max": "50000 100000",
        },
    )
    group = find_cgroup(7, proc=tmp_path / "proc", sys=tmp_path / "sys")
    assert group is not None
    assert group.quota_cores() == 0.5
    assert group.throttled_s() is None


def test_no_cgroup(tmp_path: Path) -> None:
    assert find_cgroup(7, proc=tmp_path, sys=tmp_path) is None


@pytest.mark.parametrize(
    ("name", "whole"),
    [("sda", True), ("sda1", False), ("nvme0n1", True), ("nvme0n1p2", False), ("loop0", False), ("dm-0", False)],
)
def test_only_whole_disks_count(name: str, whole: bool) -> None:
    assert procfs._is_whole_disk(name) is whole


class FakeNvml:
    """The functions of the library that are used, for one GPU; the ones not listed fail as unsupported."""

    def __init__(self, reasons: int = 0) -> None:
        self.reasons = reasons

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: 3  # NVML_ERROR_NOT_SUPPORTED

    def nvmlInit_v2(self) -> int:
        return 0

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = 1
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: int, handle: Any) -> int:
        handle._obj.value = 1
        return 0

    def nvmlDeviceGetName(self, handle: Any, name: Any, size: int) -> int:
        name.value = b"NVIDIA Test"
        return 0

    def nvmlDeviceGetUtilizationRates(self, handle: Any, use: Any) -> int:
        use._obj.gpu = 40
        return 0

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: Any, reasons: Any) -> int:
        reasons._obj.value = self.reasons
        return 0


def test_nvml_reads_what_there_is_and_leaves_the_rest_out() -> None:
    library = nvml.open_nvml(FakeNvml(reasons=0x21))
    assert library.gpus()[0].name == "NVIDIA Test"
    assert library.gpus()[0].memory_bytes is None
    sample = library.sample(0)
    assert sample.busy == 0.4
    assert sample.throttle == ("heat (software)",)  # 0x1, idle, is no fault
    assert sample.power_w is None
    assert "power_w" not in nvml.as_json(sample)


class FakeHopper(FakeNvml):
    """Counters that a GPU has from Hopper on; `refuses` names metrics that this one does not give."""

    def __init__(self, refuses: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.refuses = refuses
        self.looks: list[int] = []

    def nvmlSystemGetCudaDriverVersion_v2(self, version: Any) -> int:
        version._obj.value = 12080
        return 0

    def nvmlGpmQueryDeviceSupport(self, handle: Any, support: Any) -> int:
        assert support._obj.version == 1
        support._obj.is_supported = 1
        return 0

    def nvmlGpmSampleAlloc(self, sample: Any) -> int:
        sample._obj.value = 100 + len(self.looks)
        self.looks.append(0)
        return 0

    def nvmlGpmSampleGet(self, handle: Any, sample: Any) -> int:
        self.looks[sample.value - 100] = max(self.looks) + 1
        return 0

    def nvmlGpmMetricsGet(self, request: Any) -> int:
        asked = request._obj
        assert asked.version == 1
        assert self.looks[asked.second - 100] == self.looks[asked.first - 100] + 1, "the later sample is the second"
        for place in range(asked.count):
            metric = asked.metrics[place]
            metric.code = 3 if metric.metric in self.refuses else 0
            metric.value = {2: 61.0, 5: 35.0, 10: 44.0, 21: 512.0}[metric.metric]
        return 0


def test_hopper_says_how_full_it_is() -> None:
    library = nvml.open_nvml(FakeHopper())
    assert library.gpus()[0].cuda == "12.8"
    assert library.sample(0).sm_active is None, "one look says nothing"
    for _ in range(3):
        sample = library.sample(0)
        assert (sample.sm_active, sample.tensor_active, sample.dram_active) == pytest.approx((0.61, 0.35, 0.44))
        assert sample.pcie_receive_bytes_s == 512 * 2**20


def test_metrics_that_are_refused_are_not_measured() -> None:
    library = nvml.open_nvml(FakeHopper(refuses=(5, 21)))
    library.sample(0)
    sample = library.sample(0)
    assert sample.sm_active == pytest.approx(0.61)
    assert sample.tensor_active is None
    assert sample.pcie_receive_bytes_s is None


def test_the_structures_are_laid_out_as_in_nvml_h() -> None:
    from headrace.attach import gpm

    assert ctypes.sizeof(gpm._Metric) == 40
    assert gpm._MetricsGet.metrics.offset == 24
    assert ctypes.sizeof(gpm._Support) == 8


@pytest.mark.parametrize(
    ("bits", "names"),
    [
        (0x0, ()),
        (0x1 | 0x2 | 0x10, ()),  # idle, application clocks, sync boost: no fault
        (0x4, ("power cap",)),
        (0x8 | 0x40, ("hardware slowdown", "heat (hardware)")),
        (0x80, ("power brake",)),
    ],
)
def test_reasons_for_lower_clocks(bits: int, names: tuple[str, ...]) -> None:
    assert nvml.throttle_names(bits) == names


def test_no_driver_is_said_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    with pytest.raises(nvml.NvmlError, match="no NVIDIA driver"):
        nvml.open_nvml()


def test_the_real_sampler_follows_a_process_to_its_end(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time\nend = time.time() + 1.6\nwhile time.time() < end: pass"])
    sampler = subprocess.Popen([sys.executable, "-m", "headrace.attach.sampler", str(tmp_path), str(child.pid), "0"])
    child.wait()
    assert sampler.wait(20) == 0
    session = Session.load(tmp_path)
    assert session.host.cores_online
    assert session.samples
    assert any((sample.own_cores or 0) > 0.02 for sample in session.samples)
