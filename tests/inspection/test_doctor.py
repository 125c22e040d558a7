"""`headrace doctor`: advice from made-up examinations; disk speed and object store measured at a small scale."""

from __future__ import annotations

import json
import os
import resource
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from headrace.cli.main import main
from headrace.errors import SourceError, UsageError
from headrace.inspection import doctor
from headrace.inspection.object_store_probe import probe_store
from headrace.system.hardware import disk, machine, nvml
from headrace.system.processes import software
from object_store import Bucket, TestCertificate, needs_obstore, serving

A100 = nvml.Device("NVIDIA A100", 80 << 30, (8, 0))
GB300 = nvml.Device("NVIDIA GB300", 288 << 30, (10, 3))
TORCH = software.Torch(
    version="2.9.0+cu128",
    cuda="12.8",
    hip=None,
    cudnn=91002,
    nccl="2.27.5",
    architectures=("sm_70", "sm_80", "sm_90"),
    available=True,
    devices=1,
    error=None,
    torchvision="0.24",
    torchvision_error=None,
    threads=16,
)
HEALTHY = doctor.Examination(
    software=software.Software("0.1.0", "3.11.7", "/usr/bin/python3", "Linux", {"numpy": "2"}, TORCH, None),
    cores=machine.Cores(machine=32, affinity=32, quota=None),
    processor=machine.Processor("CPU", ("sse2", "avx2")),
    memory=machine.Memory(total_bytes=64 << 30, available_bytes=60 << 30, limit_bytes=None),
    shared_memory=machine.SharedMemory(32 << 30, 32 << 30),
    driver=nvml.Driver("570.86", (12, 8), (A100,)),
    driver_source="NVML",
    pci_gpus=1,
    visible_devices=None,
    disk=disk.DiskSpeed("/data", "ext4", 1e9, 5000.0, 0.0002, 110_000.0, "files", True),
    object_store=None,
)


def with_torch(**changes: object) -> doctor.Examination:
    return replace(HEALTHY, software=replace(HEALTHY.software, torch=replace(TORCH, **changes)))


def with_driver(**changes: object) -> doctor.Examination:
    assert HEALTHY.driver is not None
    return replace(HEALTHY, driver=replace(HEALTHY.driver, **changes))


def test_a_healthy_machine_gets_no_advice() -> None:
    assert doctor.advise(HEALTHY) == []


@pytest.mark.parametrize(
    ("found", "level", "what", "do"),
    [
        (with_torch(cuda=None, version="2.9.0+cpu"), "problem", "CPU-only build", "whl/cu128"),
        (with_torch(cuda=None, hip="6.2"), "problem", "ROCm", "whl/cu128"),
        (with_driver(cuda=(11, 8)), "problem", "supports up to 11.8", "whl/cu118"),
        (with_driver(cuda=(12, 2)), "note", "minor-version compatibility", "update"),
        (
            with_driver(gpus=(replace(A100, name="GB300", compute_capability=(10, 3)),)),
            "problem",
            "10.3",
            "pip install",
        ),
        (with_torch(available=False, error="CUDA error 802"), "problem", "CUDA error 802", "nvidia-smi"),
        (with_torch(torchvision=None, torchvision_error="undefined symbol"), "problem", "undefined symbol", "pip"),
        (replace(HEALTHY, driver=None), "problem", "no working driver", "nvidia-driver"),
        (replace(HEALTHY, driver=None, pci_gpus=0), "note", "no NVIDIA GPU", "headrace demo"),
        (replace(HEALTHY, visible_devices=""), "problem", "CUDA_VISIBLE_DEVICES", "unset"),
        (replace(HEALTHY, cores=machine.Cores(64, 64, 16.0)), "warning", "quota of 16", "num_workers=16"),
        (replace(HEALTHY, cores=machine.Cores(64, 20, 40.0)), "warning", "affinity mask of 20", "num_workers=20"),
        (replace(HEALTHY, cores=machine.Cores(4, 4, None)), "note", "4 CPU cores per GPU", "headrace diagnose"),
        (replace(HEALTHY, processor=machine.Processor("old", ("sse2",))), "note", "AVX2", "CPU"),
        (replace(HEALTHY, shared_memory=machine.SharedMemory(64 << 20, 64 << 20)), "warning", "0.06 GiB", "--shm-size"),
        (replace(HEALTHY, shared_memory=None), "warning", "/dev/shm is absent", "--shm-size"),
        (replace(HEALTHY, memory=machine.Memory(64 << 30, 1 << 30, 8 << 30)), "note", "8.0 GiB", "cache"),
        (replace(HEALTHY, disk=replace(HEALTHY.disk, small_read_p50_s=0.03)), "warning", "30.0 ms", "headrace pack"),
        (replace(HEALTHY, disk=replace(HEALTHY.disk, cold=False)), "note", "could not be emptied", "--path"),
        (replace(HEALTHY, software=replace(HEALTHY.software, torch=None)), "warning", "not installed", "pip install"),
        (
            replace(HEALTHY, software=replace(HEALTHY.software, torch=None, torch_error="libcudart.so.12 missing")),
            "problem",
            "libcudart.so.12 missing",
            "pip install",
        ),
    ],
)
def test_each_fault_has_one_remedy(found: doctor.Examination, level: str, what: str, do: str) -> None:
    advice = doctor.advise(found)
    assert len(advice) == 1, advice
    assert advice[0].level == level
    assert what in advice[0].what
    assert do in advice[0].do
    assert "\n" not in advice[0].do


@pytest.mark.parametrize(
    ("architectures", "capability", "runs"),
    [
        (("sm_80",), (8, 0), True),
        (("sm_80",), (8, 6), True),
        (("sm_86",), (8, 0), False),
        (("sm_80",), (9, 0), False),
        (("compute_80",), (9, 0), True),
        (("sm_90a",), (9, 0), True),
        (("sm_100a",), (10, 3), False),
        (("sm_120",), (12, 1), True),
        ((), (8, 0), False),
    ],
)
def test_runs_on_compares_architectures_with_compute_capability(
    architectures: tuple[str, ...], capability: tuple[int, int], runs: bool
) -> None:
    assert doctor.runs_on(architectures, capability) is runs


def test_gpus_on_the_bus_are_counted_without_a_driver(tmp_path: Path) -> None:
    for name, vendor, kind in [("a", "0x10de", "0x030200"), ("b", "0x10de", "0x040300"), ("c", "0x8086", "0x030000")]:
        device = tmp_path / "sys/bus/pci/devices" / name
        device.mkdir(parents=True)
        (device / "vendor").write_text(vendor + "\n")
        (device / "class").write_text(kind + "\n")
    assert doctor.count_pci_gpus(tmp_path) == 1
    assert doctor.count_pci_gpus(tmp_path / "none") == 0


def test_disk_speed_is_measured_on_existing_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "PROBE_FILE_BYTES", 8 << 20)
    for index in range(20):
        (tmp_path / f"{index}.bin").write_bytes(os.urandom(100_000))
    (tmp_path / "link").symlink_to("nowhere")
    os.sync()
    found = disk.measure(tmp_path, budget_s=0.2)
    assert found.files == "20 files found there"
    assert found.sequential_bytes_per_s > 0 and found.small_reads_per_s > 0
    assert found.small_read_bytes == 100_000
    assert found.cold in (True, None) or found.file_system in disk.IN_MEMORY


def test_disk_speed_of_an_empty_folder_uses_a_temporary_file(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(disk, "PROBE_FILE_BYTES", 4 << 20)
    found = disk.measure(tmp_path, budget_s=0.2)
    assert found.files == "a temporary file"
    assert found.small_read_bytes == disk.SMALL_READ_BYTES
    assert list(tmp_path.iterdir()) == []


def test_disk_speed_of_a_file_larger_than_the_memory(tmp_path: Path) -> None:
    """A byte for each page of a sparse file is gigabytes, and a mapping of all of it is refused."""
    with open(tmp_path / "shard", "wb") as file:
        file.truncate(1 << 42)
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = disk.measure(tmp_path, budget_s=0.1)
    assert found.sequential_bytes_per_s > 0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - used < 256 << 10


def test_disk_speed_waits_for_no_pipe_that_takes_the_place_of_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "shard")
    with pytest.raises(OSError, match="a named pipe, not a file"):
        disk._measure(tmp_path, [(tmp_path / "shard", 1 << 20)], 0.1, 0, "files")


def test_mounts_of_other_users_may_have_any_name(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_bytes(b"/dev/a / ext4 rw 0 0\nfs /mnt/\xff\x0b\xe2\x80\xa8 fuse rw 0 0\nfs /a\\134b\\011 fuse.tab rw 0 0\n")
    assert disk.file_system(Path("/mnt"), mounts) == "ext4"
    assert disk.file_system(Path("/a\\b\t/data"), mounts) == "fuse.tab"


def test_disk_speed_of_a_missing_path_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="does not exist"):
        disk.measure(tmp_path / "absent")


def test_file_system_is_that_of_the_longest_mount(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/a / ext4 rw 0 0\ns3 {tmp_path} fuse.s3 rw 0 0\nx {tmp_path}/da tmpfs rw 0 0\n")
    (tmp_path / "data").mkdir()
    assert disk.file_system(tmp_path / "data", mounts) == "fuse.s3"
    assert disk.file_system(Path("/"), mounts) == "ext4"


@pytest.fixture
def served() -> Bucket:
    """Two objects below train/, the larger one last."""
    return Bucket({"train/a.tar": b"y" * 100, "train/b.tar": b"x" * 5000})


@pytest.fixture
def server(served: Bucket, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A plain web server that is an S3 endpoint too; the bucket's name is b."""
    with serving(served) as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
        yield endpoint


@needs_obstore
def test_the_probe_reads_a_file_over_http(server: str) -> None:
    found = probe_store(f"{server}/b/train/b.tar")
    assert (found.object, found.read_bytes) == (f"{server}/b/train/b.tar", 5000)
    assert 0 < found.first_byte_s < 10 and found.bytes_per_s > 0
    with pytest.raises(SourceError, match="does not exist"):
        probe_store(f"{server}/b/absent")


@needs_obstore
@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl")
def test_the_probe_reads_a_file_over_https(served: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate = TestCertificate(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate.authority))
    with serving(served, certificate) as endpoint:
        assert endpoint.startswith("https://")
        assert probe_store(f"{endpoint}/b/train/b.tar").read_bytes == 5000


@needs_obstore
def test_the_probe_reads_the_largest_object_under_an_s3_prefix(server: str) -> None:
    for url in ("s3://b/train", "s3://b/train/", "s3://b", "s3://b/train/b.tar"):
        found = probe_store(url)
        assert (found.url, found.object, found.read_bytes) == (url, "s3://b/train/b.tar", 5000)
    for url in ("s3://b/none", "s3://b/train/none"):
        with pytest.raises(SourceError, match="nothing lies under this prefix"):
            probe_store(url)


@needs_obstore
def test_the_probe_uses_the_loaders_client(server: str, served: Bucket) -> None:
    """It makes ranged requests, with the same retries."""
    served.fault = lambda number, key, part: "cut" if number == 2 else None
    assert probe_store("s3://b/train").read_bytes == 5000
    assert served.requests[0] == "list" and set(served.requests[1:]) == {"train/b.tar"}
    assert len(served.requests) > 3


def test_the_probe_refuses_other_addresses() -> None:
    with pytest.raises(UsageError, match="only s3"):
        probe_store("ftp://host/x")


def test_doctor_prints_one_document(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(disk, "PROBE_FILE_BYTES", 4 << 20)
    monkeypatch.setattr(software, "read_torch", lambda python: (TORCH, None))
    assert main(["doctor", "--path", str(tmp_path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["software"]["torch"]["cuda"] == "12.8"
    assert document["usable_cores"] > 0
    assert isinstance(document["advice"], list)
    assert main(["doctor", "--path", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "usable" in printed and "built for CUDA 12.8" in printed


def test_torch_is_examined_in_a_child_process(tmp_path: Path) -> None:
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\necho \"ModuleNotFoundError: No module named 'torch'\" >&2; exit 1\n")
    fake.chmod(0o755)
    assert software.read_torch(str(fake)) == (None, None)
    fake.write_text("#!/bin/sh\necho 'ImportError: libcudart.so.12' >&2; exit 1\n")
    assert software.read_torch(str(fake)) == (None, "ImportError: libcudart.so.12")


@pytest.mark.slow
def test_a_folder_that_cannot_be_written_costs_the_disk_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(path: Path) -> None:
        raise SourceError(f"{path}: a test file cannot be written")

    monkeypatch.setattr(doctor.disk, "measure", fail)
    found = doctor.examine("1")
    assert found.disk is None and found.cores.usable >= 1
    assert any("disk is not measured" in one.what for one in doctor.advise(found))
    with pytest.raises(SourceError):
        doctor.examine("1", path=tmp_path)
