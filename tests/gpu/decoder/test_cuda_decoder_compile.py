"""The CUDA decoder compiles for each GPU generation within its budget of registers, and is cached safely."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from headrace.errors import HeadraceError, MissingDependencyError
from headrace.gpu.decoder import nvrtc
from headrace.gpu.decoder.arguments import KERNELS, SOURCE

TARGETS = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100")

REGISTERS, REGISTERS_OF_TURING = 40, 56
"""Registers of a thread: with 65,536 of a multiprocessor, 1,536 threads fit (1,024 on Turing, which holds no more)."""

SHARED_BYTES = {"headrace_entropy": 10_400, "headrace_idct": 2_304}
"""Shared memory of a CUDA block. 12 blocks of entropy decoding, 1,536 threads, take 122 KiB; A100, H100 and B200 have more."""


@pytest.fixture(autouse=True)
def compiler() -> None:
    try:
        nvrtc.version()
    except MissingDependencyError as error:
        pytest.skip(f"{error}; {error.hint}")


@pytest.mark.parametrize("target", TARGETS)
def test_compiles_within_its_budget(target: str) -> None:
    cubin, log = nvrtc.compile_cubin(target)
    assert cubin.startswith(b"\x7fELF")
    usage = nvrtc.resource_usage(log)
    assert set(usage) == {kernel.name for kernel in KERNELS}
    for name, used in usage.items():
        most = 80 if name == "headrace_weights" else REGISTERS_OF_TURING if target == "sm_75" else REGISTERS
        assert 0 < used.registers <= most, (name, used)
        assert used.spill_bytes == used.stack_bytes == 0, (name, used)
        assert used.shared_bytes <= SHARED_BYTES.get(name, 0), (name, used)


def test_spills_are_seen() -> None:
    """The parser of the log finds what the budget forbids."""
    cramped = SOURCE.read_text().replace("resident = 768 / threads", "resident = 1536 / threads")
    assert cramped != SOURCE.read_text()
    used = nvrtc.resource_usage(nvrtc.compile_cubin("sm_80", cramped)[1])["headrace_weights"]
    assert used.registers <= REGISTERS and used.spill_bytes > 0 and used.stack_bytes > 0


def test_a_source_that_does_not_compile_names_the_line() -> None:
    with pytest.raises(HeadraceError, match=r"does not compile for sm_90 .*decode.cu\(1\): error"):
        nvrtc.compile_cubin("sm_90", "int broken(")


def test_the_target_is_the_newest_architecture_that_the_gpu_runs() -> None:
    assert nvrtc.target_for((9, 0)) == "sm_90"
    assert nvrtc.target_for((8, 6)) == "sm_86"
    assert nvrtc.target_for((8, 5)) == "sm_80"
    for unknown in [(7, 0), (6, 1), (99, 0)]:
        with pytest.raises(HeadraceError, match=f"compute capability {unknown[0]}.{unknown[1]}"):
            nvrtc.target_for(unknown)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "cuda"


def forbid_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(target: str, source: str | None = None) -> tuple[bytes, str]:
        raise AssertionError("compiled again")

    monkeypatch.setattr(nvrtc, "compile_cubin", refuse)


def test_a_compiled_decoder_is_cached(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = nvrtc.cubin_for("sm_80")
    [file] = cache.glob("decode-sm_80-*.cubin")
    assert file.stat().st_mode & 0o777 == 0o600
    with monkeypatch.context() as patch:
        forbid_compiling(patch)
        assert nvrtc.cubin_for("sm_80") == first
        with pytest.raises(AssertionError, match="compiled again"):
            nvrtc.cubin_for("sm_90")


@pytest.mark.matrix(keep=1)
@pytest.mark.parametrize("damage", ["truncated", "changed", "empty"])
def test_a_damaged_cache_file_is_compiled_again(cache: Path, damage: str) -> None:
    first = nvrtc.cubin_for("sm_80")
    [file] = cache.glob("*.cubin")
    sound = file.read_bytes()
    changed = {"truncated": sound[:-9], "changed": sound[:-1] + bytes([sound[-1] ^ 1]), "empty": b""}
    file.write_bytes(changed[damage])
    assert nvrtc.cubin_for("sm_80") == first
    assert file.read_bytes() == sound


def test_a_cache_folder_that_cannot_be_used_is_no_error(cache: Path) -> None:
    cache.parent.mkdir()
    cache.write_text("a file where the folder belongs")
    assert nvrtc.cubin_for("sm_80").startswith(b"\x7fELF")
    assert cache.read_text() == "a file where the folder belongs"


def test_a_cache_folder_that_others_may_write_is_not_read(cache: Path) -> None:
    nvrtc.cubin_for("sm_80")
    [file] = cache.glob("*.cubin")
    cache.chmod(0o777)
    file.write_bytes(b"planted by somebody")
    assert nvrtc.cubin_for("sm_80").startswith(b"\x7fELF")
    assert file.read_bytes() == b"planted by somebody"


def test_without_nvrtc_the_reason_is_one_line(tmp_path: Path) -> None:
    """In a process whose cuda-bindings cannot be imported."""
    code = (
        "import sys; sys.modules['cuda.bindings.nvrtc'] = None\n"
        "from headrace.errors import MissingDependencyError\n"
        "from headrace.gpu.decoder.nvrtc import cubin_for\n"
        "try: cubin_for('sm_90')\n"
        "except MissingDependencyError as error: print(error, '|', error.hint)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.startswith("NVRTC, CUDA's run-time compiler, cannot be loaded: ")
    assert done.stdout.count("\n") == 1 and "pip install" in done.stdout
