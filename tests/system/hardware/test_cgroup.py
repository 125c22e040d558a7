"""Limits and counters of control groups, read from made-up /proc and cgroup trees: version 1, version 2, none."""

from __future__ import annotations

from pathlib import Path

from headrace.system.hardware.cgroup import find_cgroup


def put(root: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def test_limits_and_counters_of_version_2(tmp_path: Path) -> None:
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


def test_kills_for_memory_and_the_peak_are_read_in_both_versions(tmp_path: Path) -> None:
    base = "sys/fs/cgroup"
    put(tmp_path / "2", {
        "proc/7/cgroup": "0::/job\n",
        f"{base}/cgroup.controllers": "memory",
        f"{base}/job/memory.events": "low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n",
        f"{base}/job/memory.peak": "1000",
    })  # fmt: skip
    put(tmp_path / "1", {
        "proc/7/cgroup": "4:memory:/a\n3:cpu,cpuacct:/a\n",
        f"{base}/memory/a/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
        f"{base}/memory/a/memory.max_usage_in_bytes": "1000",
    })  # fmt: skip
    for version in ("1", "2"):
        group = find_cgroup(7, proc=tmp_path / version / "proc", sys=tmp_path / version / "sys")
        assert group is not None and group.version == int(version)
        assert (group.oom_kills(), group.memory_peak_bytes()) == (2, 1000)
    (tmp_path / "2" / base / "job/memory.events").unlink()
    group = find_cgroup(7, proc=tmp_path / "2/proc", sys=tmp_path / "2/sys")
    assert group is not None and group.oom_kills() is None


def test_limits_and_counters_of_version_1(tmp_path: Path) -> None:
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


def test_a_container_that_sees_only_its_own_root(tmp_path: Path) -> None:
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


def test_no_cgroup_is_none(tmp_path: Path) -> None:
    assert find_cgroup(7, proc=tmp_path, sys=tmp_path) is None


def test_the_root_of_a_namespace_limits_the_groups_below(tmp_path: Path) -> None:
    """A container sees its own group as the root of the mount; a process in a group below has that limit too."""
    put(
        tmp_path,
        {
            "proc/7/cgroup": "0::/init\n",
            "sys/fs/cgroup/cgroup.controllers": "cpu memory",
            "sys/fs/cgroup/cpu.max": "250000 100000",
            "sys/fs/cgroup/memory.max": "3000000",
            "sys/fs/cgroup/init/cpu.max": "max 100000",
        },
    )
    group = find_cgroup(7, proc=tmp_path / "proc", sys=tmp_path / "sys")
    assert group is not None
    assert group.quota_cores() == 2.5
    assert group.memory_limit_bytes() == 3_000_000
