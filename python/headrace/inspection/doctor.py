"""The examination of a machine before training: hardware, software, what does not fit together, a command for each remedy.

`examine` collects facts, `advise` judges them. A fact that could not be measured is reported as unknown, never assumed to be
fine.
"""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from headrace.errors import SourceError
from headrace.inspection.object_store_probe import StoreProbe, probe_store
from headrace.system.hardware import disk, machine, nvml
from headrace.system.processes import software

__all__ = ["Advice", "Examination", "advise", "examine"]

Level = Literal["problem", "warning", "note"]

# CUDA versions for which PyTorch publishes wheels, newest first (https://download.pytorch.org/whl).
TORCH_WHEELS = ((13, 0), (12, 9), (12, 8), (12, 6), (12, 4), (12, 1), (11, 8))
NVIDIA_VENDOR = "0x10de"
GIB = 1 << 30
# Warn about less free shared memory: a few workers' batches (256 × 224 × 224 × 3 float32 = 154 MB each) fill it.
SMALL_SHARED_MEMORY_BYTES = GIB
# Warn about slower small reads: with one reader for each of eight cores, an image folder could not feed even one V100
# (about 1,200 ResNet-50 img/s).
SLOW_SMALL_READ_S = 0.010


@dataclass(frozen=True, slots=True)
class Advice:
    """A fault of the machine and its remedy. level: "problem" (the GPU cannot train) or "warning" (slow or fragile)."""

    level: Level
    what: str
    do: str


@dataclass(frozen=True, slots=True)
class Examination:
    """The facts about a machine. driver: None without an NVIDIA driver. driver_source: where headrace looked for the driver."""

    software: software.Software
    cores: machine.Cores
    processor: machine.Processor
    memory: machine.Memory
    shared_memory: machine.SharedMemory | None
    driver: nvml.Driver | None
    driver_source: str
    pci_gpus: int
    visible_devices: str | None
    disk: disk.DiskSpeed | None
    object_store: StoreProbe | None


def examine(headrace_version: str, *, path: Path | None = None, url: str | None = None) -> Examination:
    """Return the facts about this machine, measured in about ten seconds.

    headrace_version: for the report.
    path: folder on the storage to measure. Default: the working directory, if it can be measured.
    url: object store to probe. Default: none.

    Raises SourceError if the storage of `path` or the object store cannot be measured.
    """
    driver, source = nvml.find_driver()
    return Examination(
        software=software.read_software(headrace_version),
        cores=machine.cores(),
        processor=machine.processor(),
        memory=machine.memory(),
        shared_memory=machine.shared_memory(),
        driver=driver,
        driver_source=source,
        pci_gpus=count_pci_gpus(),
        visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES"),
        disk=disk.measure(path) if path is not None else _disk_of_working_directory(),
        object_store=probe_store(url) if url else None,
    )


def _disk_of_working_directory() -> disk.DiskSpeed | None:
    """Return the speed of the storage here, or None where no file can be written and none is there to read."""
    try:
        return disk.measure(Path.cwd())
    except (SourceError, OSError):
        return None


def count_pci_gpus(root: Path = Path("/")) -> int:
    """Return the number of NVIDIA display and 3D controllers (PCI class 03) on the bus; no driver is needed."""
    count = 0
    for device in (root / "sys/bus/pci/devices").glob("*"):
        try:
            vendor, kind = (device / "vendor").read_text().strip(), (device / "class").read_text().strip()
        except OSError:
            continue
        count += vendor == NVIDIA_VENDOR and kind.startswith("0x03")
    return count


def advise(found: Examination) -> list[Advice]:
    """Return the faults of a machine with their remedies, most serious first."""
    advice = [
        *_torch_advice(found),
        *_gpu_advice(found),
        *_cpu_advice(found),
        *_memory_advice(found),
        *_disk_advice(found),
    ]
    rank = {"problem": 0, "warning": 1, "note": 2}
    return sorted(advice, key=lambda one: rank[one.level])


def runs_on(architectures: tuple[str, ...], capability: tuple[int, int]) -> bool:
    """Return whether code for `architectures` runs on a GPU of this compute capability.

    Machine code `sm_XY` runs within its major version from minor Y on; `sm_XYa` only on exactly that GPU; portable
    code `compute_XY` on every later GPU (NVIDIA, CUDA C++ Programming Guide, "Binary and PTX Compatibility").
    """
    for architecture in architectures:
        kind, _, number = architecture.partition("_")
        digits = number.rstrip("abcdefghijklmnopqrstuvwxyz")
        major, minor = int(digits[:-1]), int(digits[-1])
        if number != digits:
            if (major, minor) == capability:
                return True
        elif kind == "sm":
            if major == capability[0] and minor <= capability[1]:
                return True
        elif (major, minor) <= capability:
            return True
    return False


def _install_torch(cuda: tuple[int, int] | None) -> str:
    """Return the pip command for the newest torch that this driver runs."""
    if cuda is None:
        return "pip install torch torchvision"
    for wheel in TORCH_WHEELS:
        if wheel <= cuda:
            index = f"https://download.pytorch.org/whl/cu{wheel[0]}{wheel[1]}"
            return f"pip install --force-reinstall torch torchvision --index-url {index}"
    return "pip install --force-reinstall torch torchvision"


def _torch_advice(found: Examination) -> list[Advice]:
    torch, error = found.software.torch, found.software.torch_error
    cuda = found.driver.cuda if found.driver else None
    if torch is None:
        if error is None:
            return [
                Advice(
                    "warning",
                    "PyTorch is not installed: packing and tuning work, training does not",
                    _install_torch(cuda),
                )
            ]
        return [Advice("problem", f"PyTorch is installed but does not import: {error}", _install_torch(cuda))]
    if torch.torchvision is None:
        why = torch.torchvision_error or "unknown reason"
        level: Level = "warning" if "No module" in why else "problem"
        return [Advice(level, f"torchvision does not import: {why}", "pip install --upgrade torch torchvision")]
    return []


def _gpu_advice(found: Examination) -> list[Advice]:
    driver = found.driver
    if driver is None or not driver.gpus:
        if found.pci_gpus:
            what = f"{found.pci_gpus} NVIDIA GPU(s) on the PCI bus, but no working driver ({found.driver_source})"
            return [Advice("problem", what, "sudo apt-get install -y nvidia-driver   # or the distribution's own way")]
        what = "no NVIDIA GPU: everything runs, compute is simulated where a rate is needed"
        return [Advice("note", what, "headrace demo")]
    if found.visible_devices is not None and found.visible_devices.strip() in ("", "-1"):
        what = f"CUDA_VISIBLE_DEVICES={found.visible_devices!r} hides all {len(driver.gpus)} GPU(s)"
        return [Advice("problem", what, "unset CUDA_VISIBLE_DEVICES")]
    return _cuda_advice(found, driver) + _feeding_advice(found, driver)


def _cuda_advice(found: Examination, driver: nvml.Driver) -> list[Advice]:
    torch = found.software.torch
    if torch is None:
        return []
    if torch.cuda is None:
        if torch.hip is not None:
            return [Advice("problem", "torch is built for AMD GPUs (ROCm), the GPU is NVIDIA's", _install_torch(driver.cuda))]
        what = f"torch {torch.version} is a CPU-only build on a machine with {driver.gpus[0].name}"
        return [Advice("problem", what, _install_torch(driver.cuda))]
    major, minor = (int(part) for part in torch.cuda.split(".")[:2])
    if driver.cuda and major > driver.cuda[0]:
        what = (
            f"torch {torch.version} is built for CUDA {torch.cuda}, the driver {driver.version} supports up to "
            f"{driver.cuda[0]}.{driver.cuda[1]}"
        )
        return [Advice("problem", what, _install_torch(driver.cuda))]
    advice = []
    for gpu in dict.fromkeys(driver.gpus):
        if torch.architectures and not runs_on(torch.architectures, gpu.compute_capability):
            has = " ".join(torch.architectures)
            name = f"{gpu.name} (compute capability {gpu.compute_capability[0]}.{gpu.compute_capability[1]})"
            what = f"torch {torch.version} carries no code for {name}; it has {has}"
            advice.append(Advice("problem", what, _install_torch(driver.cuda)))
    if not torch.available and not advice:
        what = f"the driver sees {len(driver.gpus)} GPU(s), torch cannot use them: {torch.error or 'no reason given'}"
        advice.append(Advice("problem", what, "nvidia-smi   # does it list the GPU? in a container: docker run --gpus all"))
    if driver.cuda and (major, minor) > driver.cuda and not advice:
        what = (
            f"torch is built for CUDA {torch.cuda}, newer than the driver's {driver.cuda[0]}.{driver.cuda[1]}: it runs "
            "(minor-version compatibility), but kernels compiled at run time may not"
        )
        advice.append(Advice("note", what, "update the NVIDIA driver when convenient"))
    return advice


def _feeding_advice(found: Examination, driver: nvml.Driver) -> list[Advice]:
    per_gpu = found.cores.usable / len(driver.gpus)
    if per_gpu >= 16:
        return []
    # 100-200 img/s per core is what ordinary JPEG loading gives; ResNet-50 in mixed precision takes 2,470 on an A100.
    what = (
        f"{per_gpu:.0f} CPU cores per GPU give roughly {100 * per_gpu:,.0f}-{200 * per_gpu:,.0f} img/s with ordinary "
        "JPEG loading, less than this GPU is likely to take"
    )
    return [Advice("note", what, "headrace diagnose -- python train.py")]


def _cpu_advice(found: Examination) -> list[Advice]:
    cores, advice = found.cores, []
    if cores.usable < cores.machine:
        reason = (
            f"a CPU quota of {cores.quota:g} cores"
            if cores.quota is not None and cores.quota < cores.affinity
            else f"an affinity mask of {cores.affinity} cores"
        )
        what = f"os.cpu_count() says {cores.machine}, but {reason} applies: one worker per visible core is too many"
        advice.append(Advice("warning", what, f"use num_workers={max(1, int(cores.usable))}"))
    if "sse2" in found.processor.flags and "avx2" not in found.processor.flags:
        what = "the CPU has no AVX2: decoding and resampling use slower code"
        advice.append(Advice("note", what, "choose a CPU of 2013 (Intel) or 2015 (AMD) or later, or expose AVX2 to the VM"))
    return advice


def _memory_advice(found: Examination) -> list[Advice]:
    advice = []
    shared = found.shared_memory
    if shared is None or shared.free_bytes < SMALL_SHARED_MEMORY_BYTES:
        free = "absent" if shared is None else f"{shared.free_bytes / GIB:.2f} GiB free"
        what = f"/dev/shm is {free}: DataLoader workers pass batches through it and die with a bus error when it is full"
        advice.append(Advice("warning", what, "docker run --shm-size=8g …   # or: sudo mount -o remount,size=8G /dev/shm"))
    memory = found.memory
    if memory.limit_bytes is not None and memory.limit_bytes < memory.total_bytes:
        what = (
            f"the control group limits memory to {memory.limit_bytes / GIB:.1f} GiB of the machine's "
            f"{memory.total_bytes / GIB:.1f}; the page cache counts too"
        )
        advice.append(Advice("note", what, 'size caches by the limit, for example cache="ram:…GiB" at half of it'))
    return advice


def _disk_advice(found: Examination) -> list[Advice]:
    speed = found.disk
    if speed is None:
        return [
            Advice(
                "note",
                "the disk is not measured: no file can be written here",
                "headrace doctor --path FOLDER   # with the data",
            )
        ]
    advice = []
    if speed.cold is False and speed.file_system not in disk.IN_MEMORY:
        what = f"{speed.path}: the page cache could not be emptied, so its read speed is memory's"
        advice.append(Advice("note", what, "headrace doctor --path FOLDER   # a folder that no other process is reading"))
    if speed.cold is not False and speed.small_read_p50_s > SLOW_SMALL_READ_S:
        slow = f"a small random read takes {1000 * speed.small_read_p50_s:.1f} ms"
        what = f"{speed.path}: {slow}: an image folder there will starve the GPU"
        advice.append(
            Advice("warning", what, f"headrace pack {shlex.quote(str(speed.path))} PACKED   # large sequential reads instead")
        )
    return advice
