"""The CUDA decoder's source, compiled for the host: the very kernels, run by loops over blocks and threads."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from headrace.gpu.decoder.arguments import KERNELS, SOURCE, BatchArguments

SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-g", "-O1")


@functools.cache
def compile_for_host(*flags: str) -> Path:
    """Return the compiled library. The test is skipped where there is no C++ compiler."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler (apt install build-essential)")
    folder = Path(tempfile.gettempdir()) / f"headrace-cuda-on-host-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    key = hashlib.sha256("\0".join((SOURCE.read_text(), compiler, *flags)).encode()).hexdigest()[:24]
    library = folder / f"{key}.so"
    if not library.exists():
        made = folder / f"{key}-{os.getpid()}.so"
        options = ["-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-ffp-contract=off", "-shared", "-fPIC", *flags]
        source = f'#include "{SOURCE}"\n'
        command = [compiler, *options, "-x", "c++", "-", "-o", str(made)]
        subprocess.run(command, input=source, text=True, check=True, capture_output=True, timeout=300)
        made.replace(library)
    return library


class HostLauncher:
    """Runs the kernels on the host, over CPU tensors."""

    def __init__(self, library: Path | None = None, backwards: bool = False) -> None:
        self._library = ctypes.CDLL(str(library or compile_for_host()))
        self._backwards = backwards
        self.launches = 0

    def run(self, arguments: BatchArguments, chunks: list[int]) -> None:
        self.launches += 1
        for kernel, blocks in zip(KERNELS, chunks, strict=True):
            getattr(self._library, kernel.name)(ctypes.byref(arguments), ctypes.c_uint(blocks), int(self._backwards))

    def sizes(self) -> list[int]:
        """Pieces of work of a block, and the sizes of the records, as the source has them."""
        found = (ctypes.c_uint * 8)()
        self._library.headrace_sizes(found)
        return list(found)
