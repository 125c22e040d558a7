"""The machine of a session: its facts, and the samples of its counters, as plain data. None means not measured, never 0."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ForeignProgram", "GpuProperties", "GpuSample", "Host", "Sample"]


@dataclass(frozen=True, slots=True)
class GpuProperties:
    """Properties of one GPU, from NVML. `cuda`: the newest CUDA version that the driver supports."""

    index: int
    name: str
    memory_bytes: int | None = None
    driver: str | None = None
    max_sm_clock_mhz: int | None = None
    cuda: str | None = None


@dataclass(frozen=True, slots=True)
class Host:
    """The machine that the job ran on. affinity: numbers of the cores that the job may run on; empty when unknown.

    remote_mounts: mounted file systems behind which a network may be; None where that is not known.
    """

    hostname: str = ""
    cores_online: int | None = None
    cores_affinity: int | None = None
    affinity: tuple[int, ...] = ()
    quota_cores: float | None = None
    memory_bytes: int | None = None
    memory_limit_bytes: int | None = None
    cgroup: str | None = None
    kernel: str = ""
    cpu_model: str | None = None
    gpus: tuple[GpuProperties, ...] = ()
    remote_mounts: int | None = None

    @property
    def cores(self) -> float | None:
        """Cores that the job can use at once: the least known number of online cores, affinity and quota."""
        known = [count for count in (self.cores_online, self.cores_affinity, self.quota_cores) if count]
        return float(min(known)) if known else None


@dataclass(frozen=True, slots=True)
class GpuSample:
    """The counters of one GPU in one sample. busy: share of the time in which at least one kernel ran, 0 to 1."""

    index: int
    busy: float | None = None
    memory_used_bytes: int | None = None
    sm_clock_mhz: int | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    throttle: tuple[str, ...] | None = None
    pcie_receive_bytes_s: float | None = None
    sm_active: float | None = None
    tensor_active: float | None = None
    dram_active: float | None = None


@dataclass(frozen=True, slots=True)
class ForeignProgram:
    """A program outside the job: pid, the kernel's name of the process, and the cores that it used."""

    pid: int
    name: str
    cores: float


@dataclass(frozen=True, slots=True)
class Sample:
    """Counters of the machine over the interval that ends at `time_s`. Shares are 0 to 1, rates per second.

    core_busy: use of each online core, by number.
    own_cores, foreign_cores: cores used by the command and its children, and by other programs on the job's cores.
    queue_share: share of their runnable time in which the command's threads waited for a core.
    pressure_cpu, pressure_io, pressure_memory: share of the time in which some task waited for the resource (PSI).
    throttled_share: time in which the CPU quota stopped the job, over the interval, added up over cores.
    memory_left_bytes: what the job may still take: the least of what the machine has available and what each control group
        above the job has left. Other programs of the machine count here; `memory_used_bytes` may be that of the job's group.
    own_memory_bytes, workers_memory_bytes: resident memory without files of the job's processes, and of its workers. Pages
        that a fork shares count in each process from the start, so copying them changes nothing here.
    affinity, quota_cores: the cores that training processes and workers may run on, and the quota, where they are not those of
        `Host` any more. niceness: the greatest of these processes, where it is not 0.
    foreign_programs: the programs behind `foreign_cores`, largest first and without tiny ones, where they were read.
    """

    time_s: float
    interval_s: float
    core_busy: tuple[float, ...] = ()
    own_cores: float | None = None
    foreign_cores: float | None = None
    queue_share: float | None = None
    runnable: int | None = None
    pressure_cpu: float | None = None
    pressure_io: float | None = None
    pressure_memory: float | None = None
    throttled_share: float | None = None
    memory_used_bytes: int | None = None
    memory_limit_bytes: int | None = None
    memory_left_bytes: int | None = None
    own_memory_bytes: int | None = None
    workers_memory_bytes: int | None = None
    disk_read_bytes_s: float | None = None
    disk_busy: float | None = None
    network_receive_bytes_s: float | None = None
    loopback_receive_bytes_s: float | None = None
    shared_memory_free_bytes: int | None = None
    major_faults_s: float | None = None
    processes: int | None = None
    workers: int | None = None
    affinity: tuple[int, ...] | None = None
    quota_cores: float | None = None
    niceness: int | None = None
    gpus: tuple[GpuSample, ...] = ()
    foreign_programs: tuple[ForeignProgram, ...] | None = None
