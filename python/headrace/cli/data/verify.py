"""`headrace verify`: check a packed dataset."""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from dataclasses import asdict

from headrace.cli.shared.output import ProgressBar, emit, listing_progress, log, progress, say
from headrace.inspection.verify import VerifyResult, verify
from headrace.system.text.sizes import count_text

SUMMARY = "check a packed dataset: manifest, digests, every record's checksum; with --decode every image"
EXAMPLE = "headrace verify packed/ --decode"

_SHOWN = 20  # print at most this many problems; --json lists all


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `headrace verify`."""
    parser.add_argument("path", metavar="PATH", help="folder of a packed dataset")
    parser.add_argument("--decode", action="store_true", help="decode every image completely")
    parser.add_argument("--workers", type=int, metavar="N", help="threads (one for each core)")


def run(args: argparse.Namespace) -> int:
    """Verify the packed dataset and print the problems; return exit code 1 if there are any."""
    with ExitStack() as stack, ExitStack() as listing:
        meters: list[ProgressBar] = []

        def start(total: int) -> None:
            listing.close()
            meters.append(stack.enter_context(progress("verifying", total / 1e6, unit="MB")))

        result = verify(
            args.path,
            decode=args.decode,
            workers=args.workers,
            on_listed=listing.enter_context(listing_progress()),
            on_start=start,
            on_progress=lambda size: meters[0].advance(size / 1e6),
        )
    emit(args, asdict(result), lambda: _render(result))
    return 0 if result.ok else 1


def _render(result: VerifyResult) -> None:
    for problem in result.problems[:_SHOWN]:
        say(f"{problem.file}{': ' + problem.key if problem.key else ''}: {problem.detail}")
    if len(result.problems) > _SHOWN:
        say(f"… and {len(result.problems) - _SHOWN} more (all with --json)")
    what = "every byte and every pixel" if result.decoded else "every byte"
    if result.ok:
        held = f"{count_text(result.records, 'record')} in {count_text(result.shards, 'shard')}"
        say(f"{result.path}: {held}, intact ({what} checked)")
    else:
        log(f"{result.path}: {count_text(len(result.problems), 'problem')}")
