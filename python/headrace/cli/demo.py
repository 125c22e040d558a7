"""`headrace demo`: diagnose, run, pack and train on this machine in a few minutes."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from headrace.cli import output
from headrace.demo.story import ROUNDS, Measurement, Story, default_folder, run_demo
from headrace.errors import UsageError
from headrace.training.devices import SIMULATED

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
        raise UsageError(f"--seconds must be above 0 and at most 600, not {args.seconds:g}")
    folder = (args.keep or default_folder()).absolute()
    data = args.data.absolute() if args.data else None
    story = run_demo(
        data=data,
        folder=folder,
        seconds=args.seconds,
        log=output.log,
        progress=output.progress,
    )
    output.emit(args, _document(story, folder), lambda: _render(story, folder))
    return 0


def _document(story: Story, folder: Path) -> dict[str, object]:
    return {
        "before_img_s": story.before.median_img_s,
        "after_img_s": story.after.median_img_s,
        "speedup": story.speedup,
        "verdict": story.verdict,
        "report": story.report,
        "device": story.device,
        "simulated": story.gpu_img_s is not None,
        "gpu_img_s": story.gpu_img_s,
        "rounds": {"plain": story.before.img_s, "run": story.after.img_s},
        "images": story.images,
        "images_per_round": story.images_per_round,
        "batches": story.batch,
        "before": story.before,
        "after": story.after,
        "trained": story.trained,
        "train_img_s": story.trained.median_img_s,
        "taken_over": story.taken_over,
        "reason": story.reason,
        "packed": story.packed,
        "diagnosis": story.diagnosis,
        "data": story.data,
        "folder": folder,
        "seconds": story.seconds,
    }


def _render(story: Story, folder: Path) -> None:
    table = Table(title=f"before and after, on {story.device}", title_justify="left", title_style="bold")
    table.add_column("input")
    for name in ("img/s", "GPU waits", "times as fast"):
        table.add_column(name, justify="right")
    for words, measured in (
        (f"{story.device}: the plain script", story.before),
        (f"{story.device}: the same script under headrace run", story.after),
        (f"{story.device}: headrace train, from the pack", story.trained),
    ):
        table.add_row(words, *_cells(measured, story))
    if story.gpu_img_s is not None:
        floor = f"{story.gpu_img_s / story.before.median_img_s:.1f}"
        table.add_row(f"{story.device}: its own speed", f"{story.gpu_img_s:,.0f}", "0 %", floor)
    page = output.stdout_console
    page.print(table)
    if not story.taken_over:
        page.print(f"{story.device}: headrace run left the loader alone: {escape(story.reason)}", soft_wrap=True)
    shape, dtype = story.batch[0][0], story.batch[0][1]
    page.print(
        f"{story.device}: {ROUNDS} rounds in turns of {story.images_per_round:,} images each, medians; every batch "
        f"{'×'.join(map(str, shape))} {dtype} on both sides, losses finite",
        soft_wrap=True,
    )
    if story.gpu_img_s is not None:
        source = SIMULATED["a100"][1]
        page.print(f"{story.device}: compute is a timed wait at {story.gpu_img_s:,.0f} img/s: {source}", soft_wrap=True)
    page.print(f"{story.device}: verdict {story.verdict}", soft_wrap=True)
    if story.report is not None:
        page.print(f"{story.device}: report {escape(story.report)}", soft_wrap=True)
    page.print(f"{story.device}: {story.seconds:.0f} s in all; everything lies in {escape(str(folder))}", soft_wrap=True)


def _cells(measured: Measurement, story: Story) -> tuple[str, str, str]:
    times = measured.median_img_s / story.before.median_img_s
    return f"{measured.median_img_s:,.0f}", f"{measured.wait_share:.0%}".replace("%", " %"), f"{times:.1f}"
