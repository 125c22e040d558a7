"""`headrace demo`: diagnose, run, pack and train on this machine in a few minutes."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from headrace.cli.shared import output
from headrace.demo.run_demo import ROUNDS, DemoResult, Measurement, default_folder, run_demo
from headrace.errors import UsageError
from headrace.system.text.sizes import count_text, percent_text
from headrace.training.distributed.devices import SIMULATED

SUMMARY = "show all of it on this machine: diagnose a slow script, run it faster unmodified, pack its images, train"
EXAMPLE = """
headrace demo
headrace demo --data /data/my-images --keep demo-run
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `headrace demo`."""
    add = parser.add_argument
    add(
        "--data",
        type=Path,
        metavar="DIR",
        help="use your own image folder (DIR/CLASS/image.jpg) instead of the demo's photographs",
    )
    add("--seconds", type=float, default=8.0, metavar="N", help="seconds of each measurement of the plain script (default: 8)")
    add("--keep", type=Path, metavar="DIR", help=f"work in DIR, and keep everything there (default: {default_folder()})")


def run(args: argparse.Namespace) -> int:
    """Run the demo and print its table."""
    if not 0 < args.seconds <= 600:
        raise UsageError(f"--seconds, the length of a measurement, must be above 0 and at most 600, not {args.seconds:g}")
    folder = (args.keep or default_folder()).absolute()
    data = args.data.absolute() if args.data else None
    result = run_demo(
        data=data,
        folder=folder,
        seconds=args.seconds,
        log=output.log,
        progress=output.progress,
    )
    output.emit(args, _document(result, folder), lambda: _render(result, folder))
    return 0


def _document(result: DemoResult, folder: Path) -> dict[str, object]:
    return {
        "before_img_s": result.before.median_img_s,
        "after_img_s": result.after.median_img_s,
        "speedup": result.speedup,
        "verdict": result.verdict,
        "report": result.report,
        "device": result.device,
        "simulated": result.gpu_img_s is not None,
        "gpu_img_s": result.gpu_img_s,
        "rounds": {"plain": result.before.img_s, "run": result.after.img_s},
        "images": result.images,
        "images_per_round": result.images_per_round,
        "batches": result.batch,
        "before": result.before,
        "after": result.after,
        "trained": result.trained,
        "train_img_s": result.trained.median_img_s,
        "taken_over": result.taken_over,
        "reason": result.reason,
        "packed": result.packed,
        "diagnosis": result.diagnosis,
        "data": result.data,
        "folder": folder,
        "seconds": result.seconds,
    }


def _render(result: DemoResult, folder: Path) -> None:
    table = Table(title=f"before and after, on {result.device}", title_justify="left", title_style="bold")
    table.add_column("input", overflow="fold")
    for name in ("img/s", "GPU waits", "times as fast"):
        table.add_column(name, justify="right", no_wrap=True)
    for words, measured in (
        (f"{result.device}: the plain script", result.before),
        (f"{result.device}: the same script under headrace run", result.after),
        (f"{result.device}: headrace train, from the pack", result.trained),
    ):
        table.add_row(words, *_cells(measured, result))
    if result.gpu_img_s is not None:
        floor = f"{result.gpu_img_s / result.before.median_img_s:.1f}"
        table.add_row(f"{result.device}: its own speed", f"{result.gpu_img_s:,.0f}", "0 %", floor)
    page = output.stdout_console
    page.print(table)
    if not result.taken_over:
        page.print(f"{result.device}: headrace run did not take over the loader: {escape(result.reason)}", soft_wrap=True)
    shape, dtype = result.batch[0][0], result.batch[0][1]
    page.print(
        f"{result.device}: {ROUNDS} rounds in turns of {count_text(result.images_per_round, 'image')} each, medians; "
        "every batch "
        f"{'×'.join(map(str, shape))} {dtype} on both sides, losses finite",
        soft_wrap=True,
    )
    if result.gpu_img_s is not None:
        source = SIMULATED["a100"][1]
        page.print(f"{result.device}: compute is a timed wait at {result.gpu_img_s:,.0f} img/s: {source}", soft_wrap=True)
    page.print(f"{result.device}: verdict {result.verdict}", soft_wrap=True)
    if result.report is not None:
        page.print(f"{result.device}: report {escape(result.report)}", soft_wrap=True)
    page.print(f"{result.device}: {result.seconds:.0f} s in all; all files are in {escape(str(folder))}", soft_wrap=True)


def _cells(measured: Measurement, result: DemoResult) -> tuple[str, str, str]:
    times = measured.median_img_s / result.before.median_img_s
    return f"{measured.median_img_s:,.0f}", percent_text(measured.wait_share), f"{times:.1f}"
