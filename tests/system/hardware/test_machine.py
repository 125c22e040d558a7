"""Cores, memory and CPU flags read from made-up /proc and cgroup trees."""

from __future__ import annotations

from pathlib import Path

import pytest
from headrace.system.hardware import machine


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


V2 = {"sys/fs/cgroup/cgroup.controllers": "cpu memory\n", "proc/self/cgroup": "0::/jobs/mine\n"}
V1 = {"proc/self/cgroup": "5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n1:name=systemd:/\n"}
MEMINFO = {"proc/meminfo": "MemTotal:  1000 kB\nMemFree: 10 kB\nMemAvailable:  400 kB\n"}


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, None),
        (V2 | {"sys/fs/cgroup/jobs/mine/cpu.max": "max 100000\n"}, None),
        (V2 | {"sys/fs/cgroup/jobs/mine/cpu.max": "250000 100000\n"}, 2.5),
        # the parent's limit holds for the child too, and the tighter one counts
        (V2 | {"sys/fs/cgroup/jobs/mine/cpu.max": "400000 100000", "sys/fs/cgroup/jobs/cpu.max": "150000 50000"}, 3.0),
        # in a container the own path is not visible; the mount's root is the container's group
        (V2 | {"sys/fs/cgroup/cpu.max": "50000 100000\n"}, 0.5),
        (
            V1
            | {
                "sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us": "200000\n",
                "sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_period_us": "100000\n",
            },
            2.0,
        ),
        (V1 | {"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"}, None),
        (V1 | {"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "70000\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"}, 0.7),
    ],
)
def test_the_quota_of_the_cgroup_limits_the_usable_cores(tmp_path: Path, files: dict[str, str], quota: float | None) -> None:
    found = machine.cores(write(tmp_path, files), affinity=range(8), machine=64)
    assert (found.machine, found.affinity, found.quota) == (64, 8, quota)
    assert found.usable == (8 if quota is None else min(8, quota))


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({}, None),
        (V2 | {"sys/fs/cgroup/jobs/mine/memory.max": "max\n"}, None),
        (V2 | {"sys/fs/cgroup/jobs/mine/memory.max": "max", "sys/fs/cgroup/jobs/memory.max": "500000\n"}, 500_000),
        (V1 | {"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}, None),
        (V1 | {"sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes": "123456\n"}, 123_456),
    ],
)
def test_the_limit_of_the_cgroup_limits_the_usable_memory(tmp_path: Path, files: dict[str, str], limit: int | None) -> None:
    found = machine.memory(write(tmp_path, files | MEMINFO))
    assert found == machine.Memory(total_bytes=1_024_000, available_bytes=409_600, limit_bytes=limit)
    assert found.usable_bytes == (1_024_000 if limit is None else limit)


@pytest.mark.parametrize(
    ("text", "flags"),
    [
        (
            "model name\t: Big CPU\nflags\t\t: fpu sse2 avx2 vmx\n\nmodel name: x\nflags: none\n",
            ("sse2", "avx2"),
        ),
        ("processor : 0\nFeatures\t: fp asimd evtstrm sve\n", ("asimd", "sve")),
    ],
)
def test_model_and_flags_come_from_cpuinfo(tmp_path: Path, text: str, flags: tuple[str, ...]) -> None:
    assert machine.processor(write(tmp_path, {"proc/cpuinfo": text})).flags == flags


def test_the_real_machine_can_be_read() -> None:
    found = machine.cores()
    assert 0 < found.usable <= found.affinity <= found.machine
    assert 0 < machine.memory().available_bytes <= machine.memory().total_bytes
    assert machine.processor().model
    assert machine.shared_memory(Path("/no/such/folder")) is None
