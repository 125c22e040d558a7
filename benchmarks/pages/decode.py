"""The page of benchmarks/decode.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pages.document import Document, count, facts, name_of, note, page, percent, table


def render(document: Document) -> str:
    """Return the page."""
    settings = document["settings"]
    return page(
        "# Decoding, one core",
        "JPEG bytes → random crop → 224×224 → flip, one thread, in memory.\n"
        f"{settings['images']} photographs (mean {settings['mean_kb']} KB), the same boxes for all; median of "
        f"{count(settings['rounds'], 'interleaved round')}, CPU time.\n`benchmarks/decode.py` describes the method.",
        facts(document),
        rates(document),
        note("decode"),
        *(whole_images(document["whole_images"], settings["rounds"]) if "whole_images" in document else ()),
        two_threads(document["two_threads"]),
        *(profile(document["profile"]) if document["profile"] else ()),
    )


def rates(document: Document) -> str:
    """Return the table of ways."""
    return table(
        ["way", "does", "img/s per core", "least – greatest", "× full decode"],
        (
            (
                name_of(row, "way"),
                row["does"],
                f"{row['img_s']['median']:,.0f}",
                f"{row['img_s']['least']:,.0f} – {row['img_s']['greatest']:,.0f}",
                f"{row['times_full_decode']:.2f}",
            )
            for row in document["rows"]
        ),
    )


def whole_images(sets: list[dict[str, Any]], rounds: int) -> tuple[str, ...]:
    """Return the section on the decoding of whole images: a row for each way, two columns for each set of files."""
    ways = [row["way"] for row in sets[0]["ways"]]
    rows = []
    for number in range(len(ways)):
        cells = [one["ways"][number] for one in sets]
        rows.append([name_of(cells[0], "way"), *(f"{cell['img_s']:,.0f} ({cell['times']:.2f} ×)" for cell in cells)])
    return (
        "## Whole images",
        "JPEG bytes → all pixels, without a crop: what `headrace run` does in place of OpenCV's and torchvision's readers. "
        f"img/s per core, and × libjpeg-turbo. For each image and way the least of {count(rounds, 'round')} counts.",
        table(["way", *(f"{one['images']} ({one['mean_kb']:.0f} KB)" for one in sets)], rows),
        note("decode_whole"),
    )


def two_threads(found: Mapping[str, Any] | None) -> str:
    """Return the section that compares two threads with one."""
    if found is None:
        return "Two threads against one: not measured, because there is only one core."
    rows = (("1", f"{found['one_img_s']:,.0f}", "1.00"), ("2", f"{found['two_img_s']:,.0f}", f"{found['times']:.2f}"))
    return page(
        "## Two threads",
        f"Restart-marked files, wall time, {count(found['rounds'], 'round')} on {found['usable_cores']} usable cores. For each "
        "chunk of 50 images the least time counts.",
        table(["threads", "img/s", "× one thread"], rows),
    )


def profile(found: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the section on where the time goes."""
    rows = []
    for stage in found["stages"]:
        cells = []
        for way in stage["ways"]:
            cell = f"{way['us']:.0f} ({percent(way['share'])})"
            cells.append(cell if way["times_floor"] is None else f"{cell}, {way['times_floor']:.1f} ×")
        floor = "none stated" if stage["floor_us"] is None else f"{stage['floor_us']:.1f}"
        rows.append([stage["stage"], *cells, floor])
    rows.append(["all", *(f"{whole:.0f}" for whole in found["whole_us"]), ""])
    return (
        "## Where the time goes",
        f"{found['images']} of the photographs, one thread, {found['extension']}. For each stage of each image the least of "
        f"{count(found['rounds'], 'round')} counts; the table shows the mean. µs per image, share of the whole, "
        "and × the floor "
        "of the stage.",
        table(["stage", *found["ways"], "floor of the last"], rows),
        f"Measured for the floors: {found['clock_ghz']:.2f} GHz; {found['look_up_ns']:.2f} ns for one look-up in "
        "a chain (load, "
        f"shift, index); {found['read_gb_s']:.1f} GB/s reading the files; {found['copy_gb_s']:.1f} GB/s copying (read plus "
        f"written) in the L2 cache.\nThe mean file has {found['file_bytes'] / 1000:,.0f} KB. "
        f"The mean crop has {found['blocks']:,.0f} blocks, {found['ac_symbols']:,.0f} AC symbols "
        f"({found['long_symbols']:,.0f} of them longer than a window) and {found['pixels']:,.0f} pixels. It takes "
        f"{found['multiplications'] / 1e6:.1f} million multiplications to resize.",
        note("decode_stages"),
    )
