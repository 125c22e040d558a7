"""`headrace pack`: any image dataset into verified shards."""

from __future__ import annotations

import argparse
import re
import shlex
import time
from contextlib import ExitStack
from dataclasses import asdict

from headrace.cli.shared.output import ProgressBar, emit, listing_progress, log, progress, say
from headrace.datasets.open import open_stored
from headrace.datasets.shards.manifest import ERRORS
from headrace.datasets.sources.remote.store import is_url
from headrace.errors import UsageError
from headrace.inspection.inspect import deep_samples_note, sampled_values
from headrace.packing import Estimate, PackResult, pack
from headrace.packing.job import ENGINES
from headrace.system.text.sizes import count_text, parse_size, percent_text, size_text

SUMMARY = "pack an image dataset into tar shards that stream; lossless by default"
INTERRUPTED = "finishing what is being written; the same command continues. Ctrl-C once more stops now"
EXAMPLE = """
headrace pack photos/ packed/
headrace pack photos/ packed/ --max-side 500 --quality 90 --train-ratio 0.9
headrace pack photos/ faster-photos/ --layout folder --short-side 256
"""

FOLLOW_LINKS = (
    "with --layout folder: follow the tree's links into this folder outside it; other links out of it are listed, "
    "not copied. May be given again"
)

FRAMING_SHARE = 0.25  # explain tar headers and padding if they take more than this share of the shards

# PackOptions fields that are passed on unchanged if given.
_PASSED = ("codec", "max_side", "short_side", "resize", "quality", "transform", "shard_size", "shuffle")
_PASSED_TOO = ("train_ratio", "test_ratio", "seed", "unlabeled", "undecodable", "duplicates", "extras")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `headrace pack`."""
    parser.add_argument(
        "src",
        metavar="SRC",
        help="image folder; .tar, .rec, .tfrecord, a folder of these, or a pattern with *; "
        "a list (.lst, .csv, .tsv, .parquet); or any of these by the URL of a store (s3:// gs:// az:// https://)",
    )
    parser.add_argument("--root", metavar="FOLDER", help="folder of a list's images (default: the folder of the list)")
    parser.add_argument("dst", metavar="DST", help="new folder for the shards, or URL; an unfinished pack there continues")
    size = parser.add_argument_group("size (without these, every pixel stays as it is)")
    size.add_argument("--max-side", type=int, metavar="PX", help="reduce larger images to this longer side")
    size.add_argument("--short-side", type=int, metavar="PX", help="reduce larger images to this shorter side")
    size.add_argument(
        "--resize", type=int, metavar="PX", help="give every image this shorter side, enlarging smaller ones (as im2rec)"
    )
    size.add_argument(
        "--quality",
        type=int,
        metavar="1-100",
        help="quality of re-encoded JPEGs (95); if given, JPEGs of higher quality are re-encoded too",
    )
    size.add_argument("--transform", metavar="OPS", help='deterministic operations: "Resize(256), CenterCrop(224)"')
    size.add_argument("--keep-bytes", action="store_true", help="keep every file byte for byte")
    size.add_argument(
        "--restart-markers",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="insert restart markers, losslessly: a crop then decodes only what it needs of a file (on)",
    )
    what = parser.add_argument_group("what")
    what.add_argument(
        "--layout",
        choices=["shards", "folder"],
        default="shards",
        help="shards, or a copy of the tree SRC that any script reads, in which only the JPEGs change (shards)",
    )
    what.add_argument("--follow-links", action="append", default=[], metavar="FOLDER", help=FOLLOW_LINKS)
    what.add_argument("--codec", choices=["jpeg"], help="how images are stored (jpeg)")
    what.add_argument("--shard-size", type=_bytes, metavar="SIZE", help="approximate size of a shard (128MiB)")
    what.add_argument("--shuffle", type=int, nargs="?", const=0, metavar="SEED", help="shuffle the records with this seed (0)")
    what.add_argument(
        "--train-ratio", type=float, metavar="0-1", help="share of the records in DST/train; the rest goes to DST/val"
    )
    what.add_argument("--test-ratio", type=float, metavar="0-1", help="share of the records in DST/test")
    what.add_argument("--seed", type=int, metavar="N", help="choose other records for --train-ratio and --test-ratio (0)")
    what.add_argument("--classes", metavar="A,B,…", help="pack only these classes, in this order")
    bad = parser.add_argument_group("rejected records (DST/errors.jsonl lists skipped ones)")
    bad.add_argument("--undecodable", choices=["skip", "stop"], help="images that cannot be decoded or read (skip)")
    bad.add_argument("--unlabeled", choices=["skip", "stop"], help="images outside class folders (skip)")
    bad.add_argument("--duplicates", choices=["stop", "skip", "rename"], help="records with equal keys (stop)")
    bad.add_argument("--extras", choices=["keep", "drop"], help="sidecar files: masks, captions, second images (keep)")
    how = parser.add_argument_group("how")
    how.add_argument("--workers", type=int, metavar="N", help="threads, or processes of the Ray cluster (one for each core)")
    how.add_argument("--engine", choices=ENGINES, default="local", help="pack on this machine or on the Ray cluster (local)")
    how.add_argument("--sync", action="store_true", help="wait for the disk, so that the pack survives a power failure")
    how.add_argument("--unit", type=_share, metavar="i/N", help="pack every N-th shard from the i-th, for an array of N jobs")


def run(args: argparse.Namespace) -> int:
    """Pack the dataset, and print counts and sizes. Return the exit code."""
    options = {name: value for name in (*_PASSED, *_PASSED_TOO) if (value := getattr(args, name)) is not None}
    if args.classes is not None:
        options["classes"] = tuple(name for name in args.classes.split(",") if name)
    options |= {"keep_bytes": args.keep_bytes, "restart_markers": args.restart_markers}
    with ExitStack() as stack, ExitStack() as listing:
        meters: list[ProgressBar] = []
        written = packed = 0
        started_s = time.monotonic()

        def start(total: int) -> None:
            listing.close()
            meters.append(stack.enter_context(progress("packing", total, rate_of="")))

        def advance(count: int, size: int) -> None:
            nonlocal written, packed
            written += size
            packed += count if written else 0  # what an earlier run packed comes first, and without bytes
            rate = packed / max(time.monotonic() - started_s, 1e-9) if packed else None
            meters[0].advance(count, f"packing, {size_text(written)}" if written else None, rate=rate)

        result = pack(
            args.src,
            args.dst,
            workers=args.workers,
            engine=args.engine,
            layout=args.layout,
            unit=args.unit,
            root=args.root,
            follow_links=args.follow_links,
            sync=args.sync,
            on_listed=listing.enter_context(listing_progress()),
            on_start=start,
            on_progress=advance,
            on_estimate=_say_estimate,
            **options,
        )
    emit(args, asdict(result), lambda: _render_copy(result, args.src) if args.layout == "folder" else _render(result))
    return 0


def _say_estimate(expected: Estimate) -> None:
    share = expected.packed_bytes / max(1, expected.source_bytes)
    log(
        f"re-encoding changes pixels; on {count_text(expected.images, 'image')}: {percent_text(share)} of the bytes. "
        f"Expected: {size_text(expected.total_bytes)} in {expected.seconds:,.0f} s"
    )


def _render(result: PackResult) -> None:
    if result.repacked:
        say(f"{count_text(result.repacked, 'shard')} of an earlier run packed again because source files have changed")
    rate = f", {result.img_s:,.0f} img/s" if result.img_s else ""
    if not result.complete:
        say(f"{result.path}: {count_text(result.shards, 'shard')} of this job done{rate}; other jobs' shards are missing")
        return
    already = "" if result.img_s else "already complete, nothing was left to pack: "
    say(
        f"{result.path}: {already}{count_text(result.records, 'record')} in {count_text(result.shards, 'shard')}, "
        f"{size_text(result.bytes)} (source {size_text(result.source_bytes)}){rate}"
    )
    if result.framing_bytes > FRAMING_SHARE * result.bytes:
        share, each = percent_text(result.framing_bytes / result.bytes), result.framing_bytes / max(1, result.records)
        say(
            f"  {size_text(result.framing_bytes)} of it ({share}) are tar headers, labels and padding to blocks of "
            f"512 bytes: {each:,.0f} bytes a record, however small the image"
        )
    for part in result.parts:
        say(f"  {part.path}: {count_text(part.records, 'record')}")
    if result.extras:
        kept = ", ".join(f"{name} {count:,}" for name, count in result.extras.items())
        say(f"  sidecar files, unchanged: {kept}")
    if result.renamed:
        say(f"  {count_text(result.renamed, 'record')} with the key of another record: the new keys end in ~2, ~3, …")
    if result.unmarked:
        say(f"  {count_text(result.unmarked, 'JPEG')} kept byte for byte: restart markers cannot be written into such files")
    if result.other_files:
        say(f"  {count_text(result.other_files, 'other file')} left out: their endings are not those of images")
    for part in () if is_url(result.path) else (result.parts or (result,)):
        if note := deep_samples_note(sampled_values(open_stored(part.path))):
            say(f"  of a sample of {part.path}: {note}")
    for part in result.parts or (result,):
        if part.errors:
            say(f"  {count_text(part.errors, 'record')} not packed: see {part.path}/{ERRORS}")


def _render_copy(result: PackResult, source: str) -> None:
    rate = f", {result.img_s:,.0f} files/s" if result.img_s else ""
    already = "" if result.img_s else "already complete, nothing was left to copy: "
    say(
        f"{result.path}: {already}{count_text(result.records, 'JPEG')} changed, {size_text(result.bytes)} in all "
        f"(source {size_text(result.source_bytes)}){rate}"
    )
    if result.extras:
        say("  unchanged: " + ", ".join(f"{name} {count:,}" for name, count in result.extras.items()))
    if result.errors:
        what = f"{count_text(result.errors, 'file')} with faults, unchanged, or links out of the source, left out"
        say(f"  {what}: see {result.path}/{ERRORS}")
    mapping = shlex.quote(f"{source}={result.path}")
    say(f"  a script reads it in place of the source:  headrace run --data-map {mapping} -- python train.py")


def _bytes(text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _share(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if not match:
        raise UsageError(f"--unit {text!r}: i/N is expected, for example 0/4")
    return int(match[1]), int(match[2])
