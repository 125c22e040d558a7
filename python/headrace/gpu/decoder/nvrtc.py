"""Compile the CUDA decoder for one GPU architecture with NVRTC, and keep the result in the cache folder.

NVRTC needs no driver, so compiling works, and is tested, on machines without a GPU. The cache's key is the source, the
compiler's version, its options and the architecture. A cached file carries the SHA-256 of its content: a damaged one is
compiled again.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import importlib
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.datasets.sources.archives.container_index_cache import cache_folder
from headrace.errors import HeadraceError, MissingDependencyError, SourceError
from headrace.gpu.decoder.arguments import SOURCE
from headrace.system.files.atomic_write import atomic_write
from headrace.system.files.private_cache import make_cache_folder, owned_file
from headrace.system.hardware.cuda_decoder_facts import OLDEST_CAPABILITY
from headrace.system.text.foreign_errors import first_line
from headrace.system.text.install_hints import extra_hint

__all__ = ["Usage", "compile_cubin", "cubin_for", "resource_usage", "target_for"]

# --fmad=false: no fused multiply-add, so that filter weights are rounded as on the CPU.
_OPTIONS = ("--std=c++17", "--fmad=false", "--ptxas-options=-v")
_DIGEST_BYTES = 32


@dataclass(frozen=True)
class Usage:
    """The resources of one kernel: registers, spilled bytes and stack bytes per thread; shared memory bytes per CUDA block."""

    registers: int
    shared_bytes: int
    spill_bytes: int
    stack_bytes: int


@functools.cache
def _load_from_packages() -> None:
    """Load NVRTC from the packages on `sys.path`: cuda-bindings looks into the interpreter's own site-packages only."""
    for folder in sys.path:
        for place in ("nvidia/cu*/lib", "nvidia/cuda_nvrtc/lib"):
            for library in sorted(Path(folder).glob(f"{place}/libnvrtc.so.*"), reverse=True):
                with contextlib.suppress(OSError):
                    ctypes.CDLL(str(library))
                    return


def _nvrtc() -> Any:
    """Return the bindings of NVRTC. Raise `MissingDependencyError` if they or the library are missing."""
    _load_from_packages()
    try:
        bindings = importlib.import_module("cuda.bindings.nvrtc")
        bindings.nvrtcVersion()
    except (ImportError, RuntimeError, OSError) as error:
        raise MissingDependencyError(
            f"NVRTC, CUDA's run-time compiler, cannot be loaded: {first_line(error)}",
            hint=extra_hint("gpu"),
        ) from error
    return bindings


def _checked(bindings: Any, result: tuple[Any, ...], what: str) -> Any:
    """Return the values of a call. Raise `HeadraceError` if it failed."""
    if result[0] != bindings.nvrtcResult.NVRTC_SUCCESS:
        raise HeadraceError(f"NVRTC failed ({what}): {result[0].name}")
    return result[1] if len(result) == 2 else result[1:]


def target_for(capability: tuple[int, int]) -> str:
    """Return the architecture to compile for, for example "sm_90": the capability's own, or the newest older one of its major.

    Raises `HeadraceError` if NVRTC has none, `MissingDependencyError` if NVRTC is missing.
    """
    bindings = _nvrtc()
    major, minor = capability
    known = _checked(bindings, bindings.nvrtcGetSupportedArchs(), "architectures")
    fitting = [arch for arch in known if arch // 10 == major and arch % 10 <= minor]
    if capability < OLDEST_CAPABILITY or not fitting:
        raise HeadraceError(
            f"NVRTC {version()} has no code for compute capability {major}.{minor}",
            hint="the CPU kernel decodes; a newer GPU needs a newer nvidia-cuda-nvrtc",
        )
    return f"sm_{max(fitting)}"


def version() -> str:
    """Return NVRTC's version, for example "13.2"."""
    bindings = _nvrtc()
    major, minor = _checked(bindings, bindings.nvrtcVersion(), "version")
    return f"{major}.{minor}"


def compile_cubin(target: str, source: str | None = None) -> tuple[bytes, str]:
    """Compile the decoder for `target` ("sm_75" … "sm_100").

    source: another CUDA C++ source (default: decode.cuh).

    Returns the cubin and the compiler's log. Raises `HeadraceError` with the first error of the log if the source does not
    compile, `MissingDependencyError` if NVRTC is missing.

        cubin, log = compile_cubin("sm_90")
    """
    bindings = _nvrtc()
    text = SOURCE.read_text() if source is None else source
    program = _checked(bindings, bindings.nvrtcCreateProgram(text.encode(), b"decode.cu", 0, [], []), "create program")
    try:
        options = [option.encode() for option in (f"--gpu-architecture={target}", *_OPTIONS)]
        outcome = bindings.nvrtcCompileProgram(program, len(options), options)
        log = _text(bindings, program)
        if outcome[0] != bindings.nvrtcResult.NVRTC_SUCCESS:
            first = next((line for line in log.splitlines() if "error" in line), outcome[0].name)
            raise HeadraceError(f"the CUDA decoder does not compile for {target} with NVRTC {version()}: {first}")
        cubin = bytes(_checked(bindings, bindings.nvrtcGetCUBINSize(program), "size of the cubin"))
        _checked(bindings, bindings.nvrtcGetCUBIN(program, cubin), "cubin")
    finally:
        bindings.nvrtcDestroyProgram(program)
    return cubin, log


def _text(bindings: Any, program: Any) -> str:
    """Return the compiler's log, without the NUL at its end."""
    log = bytes(_checked(bindings, bindings.nvrtcGetProgramLogSize(program), "size of the log"))
    _checked(bindings, bindings.nvrtcGetProgramLog(program, log), "log")
    return log.rstrip(b"\0").decode(errors="replace")


def resource_usage(log: str) -> dict[str, Usage]:
    """Return kernel → the resources that it takes, from ptxas's lines in the log of `compile_cubin`."""
    found = {}
    for part in log.split("Compiling entry function '")[1:]:
        registers = re.search(r"Used (\d+) registers", part)
        shared = re.search(r"(\d+) bytes smem", part)
        stack = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", part)
        if registers is not None:
            found[part.split("'", 1)[0]] = Usage(
                int(registers[1]),
                int(shared[1]) if shared else 0,
                int(stack[2]) + int(stack[3]) if stack else 0,
                int(stack[1]) if stack else 0,
            )
    return found


def cubin_for(target: str) -> bytes:
    """Return the decoder compiled for `target`, from the cache folder if it is there. The folder need not be writable.

    Raises as `compile_cubin`.
    """
    key = hashlib.sha256("\0".join((SOURCE.read_text(), version(), *_OPTIONS, target)).encode()).hexdigest()
    path = cache_folder() / "cuda" / f"decode-{target}-{key[:32]}.cubin"
    with contextlib.suppress(OSError, SourceError):  # not there, or not to be trusted: compile
        make_cache_folder(path.parent)
        cached = _read(path)
        if cached is not None:
            return cached
    cubin, _ = compile_cubin(target)
    with contextlib.suppress(OSError, SourceError):  # not writable, or full: compile again next time
        make_cache_folder(path.parent)
        atomic_write(path, hashlib.sha256(cubin).digest() + cubin, private=True)
    return cubin


def _read(path: Path) -> bytes | None:
    """Return the content of a cached file; None if there is none, it is another user's, or it is damaged."""
    if not owned_file(path):
        return None
    data = path.read_bytes()
    digest, cubin = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
    return cubin if cubin and hashlib.sha256(cubin).digest() == digest else None
