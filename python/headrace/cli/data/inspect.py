"""`headrace inspect`: print facts about a dataset."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import asdict, replace

from rich.table import Column, Table
from rich.text import Text

from headrace.cli.shared.output import emit, listing_progress, stdout_console
from headrace.datasets.open import open_stored
from headrace.datasets.records.pictures import pictures
from headrace.errors import UsageError
from headrace.inspection.contact_sheet import PICTURES
from headrace.inspection.inspect import SAMPLE, Inspection, Spread, deep_samples_note, inspect_dataset
from headrace.report.pages.dataset_page import objects_text, write
from headrace.system.text.sizes import count_text, percent_text, size_text

SUMMARY = "print facts about a dataset: classes, sizes, formats, quality, restart markers, cost of decoding"
EXAMPLE = "headrace inspect photos/ --contact-sheet photos.html"

_SHOWN = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `headrace inspect`."""
    parser.add_argument(
        "path", metavar="PATH", help="packed dataset, image folder, .tar, .rec, .tfrecord, .lst, .csv, .parquet"
    )
    parser.add_argument("--root", metavar="FOLDER", help="folder of a list's images (default: the folder of the list)")
    parser.add_argument("--sample", type=int, default=SAMPLE, metavar="N", help=f"read N images ({SAMPLE})")
    parser.add_argument(
        "--contact-sheet",
        metavar="FILE",
        help="write thumbnails of 48 images to this file: .png, or .html with all facts",
    )


def run(args: argparse.Namespace) -> int:
    """Inspect the dataset and print the facts; return exit code 1 if an image of the sample cannot be read."""
    sheet = args.contact_sheet
    if sheet is not None and not sheet.endswith((".png", ".html")):
        raise UsageError(f"--contact-sheet {sheet}: a file that ends in .png or .html is expected")
    with listing_progress() as listed:
        dataset = open_stored(args.path, args.root, list_unreadable=True, on_listed=listed)
    as_page = sheet is not None and sheet.endswith(".html")
    found = inspect_dataset(dataset, sample=args.sample, sheet=None if as_page else sheet)
    if as_page:
        write(found, pictures(dataset, PICTURES), sheet)
        found = replace(found, contact_sheet=sheet)
    emit(args, asdict(found), lambda: _render(found))
    return 1 if found.unreadable else 0


def _render(found: Inspection) -> None:
    size = f", {size_text(found.bytes)}" if found.bytes is not None else ""
    stdout_console.print(
        f"{found.path}: {found.kind}, {count_text(found.records, 'record')} in {count_text(found.classes, 'class')}{size}",
        markup=False,
    )
    _render_records(found)
    if found.objects:
        _line("objects", objects_text(found.objects))
        if found.objects.remark:
            _line("", found.objects.remark)
    stdout_console.print(f"  in a sample of {count_text(found.sampled, 'image')}:")
    _render_sample(found)
    for key, reason in list(found.unreadable.items())[:_SHOWN]:
        _line("unreadable", f"{key}: {reason}")
    if len(found.unreadable) > _SHOWN:
        _line("", f"… and {len(found.unreadable) - _SHOWN} more (all with --json)")
    if found.contact_sheet:
        # Never cut: a path is there to be copied.
        stdout_console.print(Text(f"  {'contact sheet':<16}{found.contact_sheet}"), soft_wrap=True)


def _line(name: str, text: str) -> None:
    row = Table.grid(Column(width=18, no_wrap=True), Column())
    row.add_row(Text(f"  {name}"), Text(text))
    stdout_console.print(row)


def _render_records(found: Inspection) -> None:
    if found.per_class:
        alike = found.per_class.min == found.per_class.max
        _line("per class", _range(found.per_class) + ("" if alike else f"; fewest: {_list(found.smallest_classes)}"))
    if found.empty_classes:
        _line("empty classes", f"{found.empty_classes:,}")
    if found.unlabeled:
        _line("without a label", count_text(found.unlabeled, "record"))
    if found.extras:
        _line("sidecar files", _list(found.extras))
    if found.strays:
        if found.kind == "folder":
            _line("not read", f"{count_text(found.strays, 'image')} that ImageFolder ignores")
        else:
            _line("not read", f"{count_text(found.strays, 'archive member')} without an image")
    if found.ignored_folders:
        more = " …" if len(found.ignored_folders) > _SHOWN else ""
        _line("ignored folders", ", ".join(found.ignored_folders[:_SHOWN]) + more)
    if found.other_files:
        _line("other files", f"{found.other_files:,} whose endings are not those of images")


def _render_sample(found: Inspection) -> None:
    _line("formats", _list(found.formats))
    if note := deep_samples_note(found.samples):
        _line("values", note)
    if found.width and found.height and found.size_bytes:
        _line("width", _range(found.width) + " px")
        _line("height", _range(found.height) + " px")
        _line("bytes", f"{_range(found.size_bytes)}; {found.bits_per_pixel:.2f} bits a pixel")
    if found.subsampling:
        _line("JPEG", f"{_list(found.subsampling)}; {_list(found.processes)}")
    if found.quality:
        _line("quality", _range(found.quality))
    if found.restart_markers is not None:
        _line("restart markers", f"{percent_text(found.restart_markers)} of the JPEGs")
    if found.crop_ms is not None:
        rate = f"{1000 / found.crop_ms:,.0f} img/s"
        _line("decoding", f"a crop decodes in {found.crop_ms:.2f} ms on one core of this machine: {rate}")
    if found.indexed_crop_ms is not None:
        later = f"from the second epoch on in {found.indexed_crop_ms:.2f} ms: {1000 / found.indexed_crop_ms:,.0f} img/s"
        _line("", f"{later} (a loader then has a JPEG index)")


def _list(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())


def _range(spread: Spread) -> str:
    """Return median, 5th to 95th percentile, and minimum to maximum as text; a single value alone."""
    if spread.min == spread.max:
        return f"{spread.min:,.0f}"
    return f"{spread.p50:,.0f} (5–95 %: {spread.p5:,.0f}–{spread.p95:,.0f}, all: {spread.min:,.0f}–{spread.max:,.0f})"
