"""The Triton kernels compile for every GPU generation that is supported, without a GPU, and spill no registers."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

CAPABILITIES = (75, 80, 90, 100)

COMPILE = """
import sys, tempfile, subprocess
from pathlib import Path
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from headrace.gpu.kernels import resample_kernel
from headrace.gpu.prepare_kernel import prepare_kernel

def compiled(kernel, types, constants):
    source = ASTSource(fn=kernel, signature={**types, **dict.fromkeys(constants, "constexpr")}, constexprs=constants)
    return triton.compile(source, target=GPUTarget("cuda", int(sys.argv[1]), 32))

resample = dict(flat="*u8", out="*u8", start="*i64", row="*i64", channel="*i64", column="i32", row_starts="*i32",
    row_values="*i32", row_last="*i32", column_starts="*i32", column_values="*i32", column_last="*i32", vertical_first="*u8",
    height="i32", width="i32", row_taps="i32", column_taps="i32")
kernels = {"resample": compiled(resample_kernel, resample, {"BLOCK": 256})}
for value in ("fp32", "fp16", "bf16", "u8"):
    for mix in (0, 1, 2) if value != "u8" else (0, 2):
        prepare = dict(images="*u8", out="*" + value, table="*" + value, flips="*u8", boxes="*i32", filling="*" + value,
            share="fp32", other_share="fp32", top="i32", bottom="i32", left="i32", right="i32", count="i32", height="i32",
            width="i32")
        constants = {"FLIP": True, "ERASE": True, "MIX": mix, "BLOCK": 1024}
        kernels[f"prepare {value} {mix}"] = compiled(prepare_kernel, prepare, constants)
tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
for name, kernel in kernels.items():
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"]); file.flush()
        usage = subprocess.run([tools / "cuobjdump", "--dump-resource-usage", file.name], capture_output=True, text=True)
    print(name, "|", " ".join(usage.stdout.split()))
"""


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_kernels_compile_without_spilling(capability: int) -> None:
    pytest.importorskip("triton")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", COMPILE, str(capability)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    assert len(lines) == 12
    for line in lines:
        registers, stack = (re.search(rf"{name}:(\d+)", line) for name in ("REG", "STACK"))
        assert registers is not None and stack is not None, line
        assert int(registers[1]) <= 128, line  # at least half of the threads of a multiprocessor
        assert int(stack[1]) == 0, line  # nothing is spilled
