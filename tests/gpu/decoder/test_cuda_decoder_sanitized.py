"""The CUDA decoder reads and writes only its own memory, and computes nothing undefined, whatever the files hold."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest
from headrace import _native
from headrace.images.restart_markers import restart_markers
from sample_images import jpeg

PROGRAM = Path(__file__).with_name("decode_under_sanitizers.cpp")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The host build with the address and undefined-behaviour sanitizers."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler (apt install build-essential)")
    built = tmp_path_factory.mktemp("sanitized") / "decode"
    flags = ["-std=c++17", "-O1", "-g", "-ffp-contract=off", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    made = subprocess.run(
        [compiler, *flags, str(PROGRAM), "-o", str(built)], capture_output=True, text=True, timeout=300, check=False
    )
    if made.returncode and ("asan" in made.stderr or "ubsan" in made.stderr):
        pytest.skip("the compiler has no sanitizers")
    assert made.returncode == 0, made.stderr
    return built


def damaged(program: Path, folder: Path, files: list[bytes], size: tuple[int, int], order: str = "forwards") -> int:
    """Decode `files`, whole, and return in how many the kernels found damage."""
    plan = _native.CudaPlan(files, *size, None, [True] * len(files), None, None, 2_000_000, 1)
    buffer = np.empty(plan.size, np.uint8)
    plan.fill(buffer, 1)
    words = [len(files), *size, len(plan.groups)]
    words += [number for *numbers, chunks in plan.groups for number in (*numbers, *chunks)]
    path = folder / "plan"
    path.write_bytes(struct.pack(f"={len(words) + 1}Q", *words, plan.size) + buffer.tobytes())
    command = [str(program), str(path), order]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return int(done.stdout)


def scan_of(data: bytes) -> int:
    return data.index(b"\xff\xda") + 14


def broken(file: bytes, rng: np.random.Generator) -> bytes:
    """The file with changed bytes of its scan, or of its tables."""
    data = bytearray(file)
    first, last = (scan_of(file), len(data) - 2) if rng.random() < 0.7 else (20, scan_of(file))
    for place in rng.integers(first, last, int(rng.integers(1, 12))):
        data[place] = int(rng.integers(0, 256))
    return bytes(data)


@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0"])
def test_sound_files_of_many_sizes(program: Path, tmp_path: Path, subsampling: str) -> None:
    sizes = [(1, 1), (7, 9), (16, 16), (17, 33), (100, 75), (333, 5), (5, 333)]
    files = [restart_markers(jpeg(*size, seed, subsampling=subsampling)) for seed, size in enumerate(sizes)]
    for order in ("forwards", "backwards"):
        assert damaged(program, tmp_path, files, (40, 61), order) == 0


def test_damaged_files(program: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(6)
    sound = [restart_markers(jpeg(90, 70, seed, subsampling=kind)) for seed, kind in enumerate(["4:4:4", "4:2:2", "4:2:0"])]
    files = [broken(sound[number % 3], rng) for number in range(400)]
    assert damaged(program, tmp_path, files, (24, 24)) > 20


def test_segments_of_noise_and_of_nothing_but_ones(program: Path, tmp_path: Path) -> None:
    """Where codes are missing from the tables, where magnitudes are long, and where the data ends at once."""
    rng = np.random.default_rng(7)
    files = []
    for number in range(60):
        data = bytearray(restart_markers(jpeg(64, 48, number)))
        at = scan_of(bytes(data))
        fill = (
            rng.integers(0, 255, len(data) - 2 - at, dtype=np.uint8)
            if number % 2
            else np.full(len(data) - 2 - at, 254, np.uint8)
        )
        keep = [at + i for i in range(len(data) - 3 - at) if data[at + i] == 0xFF and 0xD0 <= data[at + i + 1] <= 0xD7]
        markers = {place: bytes(data[place : place + 2]) for place in keep}
        data[at:-2] = fill.tobytes()
        for place, marker in markers.items():
            data[place : place + 2] = marker
        files.append(bytes(data))
    assert damaged(program, tmp_path, files, (24, 24)) > 30
