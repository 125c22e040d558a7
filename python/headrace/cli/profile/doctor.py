"""`headrace doctor`: print facts about this machine, what does not fit together, and the remedies."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from headrace._native import __version__
from headrace.cli.shared import output
from headrace.inspection.doctor import Advice, Examination, advise, examine

SUMMARY = "examine this machine: cores, memory, disk, GPU, driver, PyTorch; report what does not fit together"
EXAMPLE = "headrace doctor --path /data/imagenet"

GIB = 1 << 30
STYLES = {"problem": "bold red", "warning": "yellow", "note": "cyan"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `headrace doctor`."""
    parser.add_argument("--path", type=Path, metavar="FOLDER", help="storage to measure (default: this folder)")
    parser.add_argument(
        "--url", metavar="URL", help="also probe an object store: s3://, gs:// or az://bucket/prefix, or https://…"
    )


def run(args: argparse.Namespace) -> int:
    """Examine the machine and print facts and advice."""
    output.log("examining this machine (importing PyTorch and reading the disk takes some seconds)")
    found = examine(__version__, path=args.path, url=args.url)
    advice = advise(found)
    document = {
        **dataclasses.asdict(found),
        "usable_cores": found.cores.usable,
        "advice": advice,
        "problems": sum(one.level == "problem" for one in advice),
    }
    output.emit(args, document, lambda: _render(found, advice))
    return 0


def _render(found: Examination, advice: list[Advice]) -> None:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in _rows(found):
        table.add_row(name, escape(value))
    output.stdout_console.print(table)
    output.stdout_console.print()
    if not any(one.level != "note" for one in advice):
        output.stdout_console.print("[green]nothing is missing[/green]")
    for one in advice:
        output.stdout_console.print(f"[{STYLES[one.level]}]{one.level}[/]: {escape(one.what)}", soft_wrap=True)
        output.stdout_console.print(f"  → {escape(one.do)}", soft_wrap=True)


def _rows(found: Examination) -> list[tuple[str, str]]:
    kit = found.software
    rows = [
        ("headrace", f"{kit.headrace} on Python {kit.python} ({kit.executable}), {kit.system}"),
        ("PyTorch", _torch_words(found)),
        ("packages", "  ".join(f"{name} {version}" for name, version in kit.packages.items() if version) or "none"),
        ("CPU", f"{found.processor.model}; {' '.join(found.processor.flags) or 'no SIMD flags known'}"),
        ("cores", _core_words(found)),
        ("memory", _memory_words(found)),
        ("disk", _disk_words(found)),
        ("GPU", _gpu_words(found)),
    ]
    if (store := found.object_store) is not None:
        speed = f"{store.bytes_per_s / 1e6:,.0f} MB/s on one connection"
        rows.append(("object store", f"{store.object}: first byte in {1000 * store.first_byte_s:.0f} ms, {speed}"))
    return rows


def _torch_words(found: Examination) -> str:
    torch = found.software.torch
    if torch is None:
        return found.software.torch_error or "not installed"
    built = f"CUDA {torch.cuda}" if torch.cuda else (f"ROCm {torch.hip}" if torch.hip else "CPU only")
    words = f"{torch.version} (built for {built}), torchvision {torch.torchvision or 'absent'}"
    if torch.cudnn:
        words += f", cuDNN {torch.cudnn}"
    if torch.nccl:
        words += f", NCCL {torch.nccl}"
    return words


def _core_words(found: Examination) -> str:
    cores = found.cores
    quota = "no quota" if cores.quota is None else f"quota {cores.quota:g}"
    return f"{cores.usable:g} usable ({cores.machine} in the machine, affinity {cores.affinity}, {quota})"


def _memory_words(found: Examination) -> str:
    memory, shared = found.memory, found.shared_memory
    limit = "no limit" if memory.limit_bytes is None else f"limited to {memory.limit_bytes / GIB:.1f} GiB"
    shm = f"{shared.size_bytes / GIB:.1f} GiB, {shared.free_bytes / GIB:.1f} free" if shared else "absent"
    ram = f"{memory.total_bytes / GIB:.1f} GiB, {memory.available_bytes / GIB:.1f} available, {limit}"
    return f"{ram}; /dev/shm {shm}"


def _disk_words(found: Examination) -> str:
    speed = found.disk
    if speed is None:
        return "not measured: no file can be written here"
    state = {True: "cold", False: "from memory", None: "cold or not: unknown"}[speed.cold]
    small = f"small random reads {speed.small_reads_per_s:,.0f}/s, p50 {1000 * speed.small_read_p50_s:.2f} ms"
    place = f"{speed.path} ({speed.file_system}, {state})"
    return f"{place}: sequential {speed.sequential_bytes_per_s / 1e6:,.0f} MB/s, {small}, one reader"


def _gpu_words(found: Examination) -> str:
    driver = found.driver
    if driver is None:
        return f"none ({found.driver_source})"
    kinds = [
        f"{driver.gpus.count(gpu)} × {gpu.name}, {gpu.memory_bytes / GIB:.0f} GiB, compute capability "
        f"{gpu.compute_capability[0]}.{gpu.compute_capability[1]}"
        + (f", PCIe {gpu.pcie_generation} ×{gpu.pcie_width}" if gpu.pcie_generation and gpu.pcie_width else "")
        for gpu in dict.fromkeys(driver.gpus)
    ]
    cuda = f", supports CUDA {driver.cuda[0]}.{driver.cuda[1]}" if driver.cuda else ""
    return f"{'; '.join(kinds) or 'none'}; driver {driver.version}{cuda}"
