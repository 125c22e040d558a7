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
from headrace.gpu.augmentation.augment_kernels import bilinear_kernel, blur_across_kernel, blur_down_kernel, hue_kernel
from headrace.gpu.preparation.prepare_kernel import prepare_kernel

def compiled(kernel, types, constants):
    source = ASTSource(fn=kernel, signature={**types, **dict.fromkeys(constants, "constexpr")}, constexprs=constants)
    return triton.compile(source, target=GPUTarget("cuda", int(sys.argv[1]), 32), options={"enable_fp_fusion": False})

kernels = {}
for value in ("fp32", "fp16", "bf16", "u8"):
    for mix in (0, 1, 2) if value != "u8" else (0, 2):
        prepare = dict(images="*u8", out="*" + value, table="*" + value, flips="*u8", boxes="*i32", filling="*" + value,
            share="fp32", other_share="fp32", top="i32", bottom="i32", left="i32", right="i32", count="i32", height="i32",
            width="i32")
        constants = {"FLIP": True, "ERASE": True, "MIX": mix, "BLOCK": 1024}
        kernels[f"prepare {value} {mix}"] = compiled(prepare_kernel, prepare, constants)
blur = dict(weights="*fp32", height="i32", width="i32", columns="i32")
kernels["blur across"] = compiled(blur_across_kernel, dict(images="*u8", out="*fp32", **blur, taps="i32"), {"BLOCK": 256})
down = dict(sums="*fp32", out="*u8", **blur, first="i32", taps="i32")
kernels["blur down"] = compiled(blur_down_kernel, down, {"BLOCK": 256})
hue = dict(images="*u8", out="*u8", sectors="*i32", parts="*fp32", shares="*fp32", pixels="i32")
kernels["hue"] = compiled(hue_kernel, hue, {"BLOCK": 256})
affine = dict(images="*u8", out="*u8", numbers="*fp64", columns="i32", height="i32", width="i32", edges="i32")
kernels["bilinear"] = compiled(bilinear_kernel, affine, {"BLOCK": 256})
tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
for name, kernel in kernels.items():
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"]); file.flush()
        usage = subprocess.run([tools / "cuobjdump", "--dump-resource-usage", file.name], capture_output=True, text=True)
        code = subprocess.run([tools / "cuobjdump", "-sass", file.name], capture_output=True, text=True).stdout
    ptx = kernel.asm["ptx"]
    joined = sum(ptx.count(name) for name in ("fma.rn.f32", "fma.rn.f64", "div.full", "div.approx"))
    if "div" not in ptx:  # which the assembler makes of sums that are joined to products
        joined += code.count("FFMA") + code.count("DFMA")
    print(name, "|", " ".join(usage.stdout.split()), f"JOINED:{joined} CODE:{len(code)}")
"""


@pytest.mark.slow
@pytest.mark.parametrize("capability", CAPABILITIES)
def test_kernels_compile_without_spilling_and_round_every_step(capability: int) -> None:
    pytest.importorskip("triton")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", COMPILE, str(capability)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    assert len(lines) == 15
    for line in lines:
        registers, stack, joined, code = (_number(name, line) for name in ("REG", "STACK", "JOINED", "CODE"))
        assert registers <= 128, line  # at least half of the threads of a multiprocessor
        assert stack == 0, line  # nothing is spilled
        assert code > 0 and joined == 0, line  # no product is joined to a sum, no division is approximate


def _number(name: str, line: str) -> int:
    found = re.search(rf"{name}:(\d+)", line)
    assert found is not None, line
    return int(found[1])
