"""The page of a dataset: the facts of `headrace inspect`, class balance and a contact sheet, as one HTML file."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path

from headrace.datasets.records.pictures import Picture
from headrace.errors import HeadraceError
from headrace.inspection.inspect import Inspection, Spread, deep_samples_note
from headrace.inspection.object_sizes import ObjectSizes
from headrace.report.drawing.markup import Html, no_break, tag
from headrace.report.drawing.plot import ends, stretched
from headrace.report.pages.page import figure, footer, header, html_page, write_page
from headrace.system.text.sizes import count_text, percent_text, size_text

__all__ = ["objects_text", "render", "write"]

MAX_BARS = 400
"""Draw at most this many bars of the class balance; with more classes, several share a bar."""

MAX_LISTED = 50
"""List at most this many of the images that cannot be read."""

STYLE = """
.balance svg { display: block; margin-top: 1rem; width: 100%; height: 9rem; border-bottom: 1px solid var(--hair); }
.balance rect { fill: var(--compute); }
.balance .ends { gap: 0 2rem; margin-top: 0.4rem; }
.sheet { display: grid; grid-template-columns: repeat(auto-fill, minmax(8.5rem, 1fr)); gap: 1.4rem 1rem; align-items: end; }
figure { margin: 0; min-width: 0; }
figure img, .missing-image { display: block; max-width: 100%; border-radius: 0.2rem; }
.missing-image { height: 6rem; padding: 0.6rem; overflow: hidden; background: var(--panel); color: var(--warn);
  font-size: 0.75rem; line-height: 1.35; }
figcaption { margin-top: 0.35rem; font-size: 0.75rem; line-height: 1.35; color: var(--quiet); }
figcaption span { display: block; overflow: hidden; white-space: nowrap; text-overflow: ellipsis; }
figcaption .class { color: var(--ink); font-weight: 600; }
.facts th { width: 11rem; font-weight: 400; color: var(--quiet); }
"""


def write(found: Inspection, pictures: Sequence[Picture], path: str | PathLike[str]) -> None:
    """Write the page of an inspected dataset in one piece. Raises `HeadraceError` when it cannot be written."""
    write_page(Path(path), render(found, pictures), name="contact sheet", error=HeadraceError)


def render(found: Inspection, pictures: Sequence[Picture]) -> str:
    """Return the HTML text of the page."""
    scope = f"{found.kind} · sizes and formats from {found.sampled:,} of {found.records:,} images"
    return html_page(
        f"{found.path} · headrace",
        header(found.path, scope),
        tag("main", _figures(found), _balance(found), _facts(found), _unreadable(found), _sheet(pictures)),
        footer("inspect"),
        css=STYLE,
        images=True,
    )


def _figures(found: Inspection) -> Html:
    cost = f"{found.crop_ms:.2f} ms" if found.crop_ms is not None else None
    cells = [
        figure(f"{found.records:,}", "images"),
        figure(f"{found.classes:,}", "classes"),
        figure(size_text(found.bytes) if found.bytes is not None else None, "of images"),
        figure(cost, "to decode a random crop on one core of this machine"),
        figure(_share(found.restart_markers), "of the JPEGs have restart markers"),
    ]
    return tag("section", tag("div", *cells, class_="money"), id="verdict")


def _share(share: float | None) -> str | None:
    return None if share is None else percent_text(share)


def _balance(found: Inspection) -> Html | None:
    """Return a chart of the records per class, largest first, with at most `MAX_BARS` bars; None without labelled records."""
    counts = sorted(found.records_per_class.values(), reverse=True)
    if not counts or not counts[0]:
        return None
    bars = min(len(counts), MAX_BARS)
    chosen = [counts[number * len(counts) // bars] for number in range(bars)]
    room = 1000 / bars
    shapes = [
        tag(
            "rect",
            x=round(number * room, 2),
            y=round(100 - 100 * count / counts[0], 2),
            width=round(room * 0.86, 2),
            height=100,
        )
        for number, count in enumerate(chosen)
    ]
    chart = stretched(*shapes, width=1000, label="records of each class")
    if counts[0] == counts[-1]:
        sentence = f"Every class has {counts[0]:,} images."
    elif counts[-1]:
        sentence = f"The largest class has {counts[0]:,} images, {counts[0] / counts[-1]:,.1f} times as many as the smallest."
    else:
        sentence = f"The largest class has {counts[0]:,} images; {found.empty_classes:,} classes have none."
    return tag(
        "section",
        tag("h2", "Class balance"),
        tag("p", no_break(sentence), class_="lead"),
        chart,
        ends(f"most: {_named(found.largest_classes)}", f"fewest: {_named(found.smallest_classes)}"),
        class_="balance",
    )


def _named(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name}: {count:,}" for name, count in counts.items())


def _facts(found: Inspection) -> Html:
    rows = [
        ("records per class", _range(found.per_class)),
        ("without a label", f"{found.unlabeled:,}" if found.unlabeled else None),
        ("sidecar files", ", ".join(f"{name} {count:,}" for name, count in found.extras.items()) or None),
        (
            "images that ImageFolder skips" if found.kind == "folder" else "files without an image",
            f"{found.strays:,}" if found.strays else None,
        ),
        ("ignored folders", ", ".join(found.ignored_folders) or None),
        ("formats", _counts(found.formats)),
        ("values", deep_samples_note(found.samples)),
        ("JPEG subsampling", _counts(found.subsampling)),
        ("JPEG process", _counts(found.processes)),
        ("JPEG quality", _range(found.quality)),
        ("width", _range(found.width, " px")),
        ("height", _range(found.height, " px")),
        ("bytes per image", _range(found.size_bytes)),
        ("bits per pixel", f"{found.bits_per_pixel:.2f}" if found.bits_per_pixel is not None else None),
        ("decoding", _cost(found)),
        ("objects in a store", objects_text(found.objects) if found.objects else None),
        ("advice", found.objects.remark if found.objects else None),
    ]
    lines = [tag("tr", tag("th", name, scope="row"), tag("td", no_break(text))) for name, text in rows if text]
    return tag("section", tag("h2", "What the images are"), tag("div", tag("table", *lines, class_="facts"), class_="scroll"))


def _range(spread: Spread | None, unit: str = "") -> str | None:
    if spread is None:
        return None
    return f"{spread.p50:,.0f}{unit} (5–95 %: {spread.p5:,.0f}–{spread.p95:,.0f}, all: {spread.min:,.0f}–{spread.max:,.0f})"


def _counts(counts: Mapping[str, int]) -> str | None:
    total = sum(counts.values())
    return ", ".join(f"{name} {count:,} ({percent_text(count / total)})" for name, count in counts.items()) or None


def _cost(found: Inspection) -> str | None:
    if found.crop_ms is None or found.decode_ms is None:
        return None
    minutes = found.records * found.crop_ms / 60_000
    once = f"{minutes:,.1f} min" if minutes >= 1 else f"{60 * minutes:,.1f} s"
    words = f"a random crop: {1000 / found.crop_ms:,.0f} img/s on one core of this machine; all images once take {once}"
    if found.indexed_crop_ms is not None:
        words += f". With a JPEG index, from the second epoch on: {1000 / found.indexed_crop_ms:,.0f} img/s"
    return f"{words}. Whole images: {1000 / found.decode_ms:,.0f} img/s"


def objects_text(found: ObjectSizes) -> str:
    """Return the number of objects and their histogram as text: `400 objects: 4.0 KiB to 16.0 KiB 12 %, …`."""
    bins = [
        f"{size_text(one.from_bytes)} to {size_text(one.below_bytes)} {percent_text(one.objects / found.sampled)}"
        for one in found.histogram
        if one.objects
    ]
    return f"{count_text(found.objects, 'object')}: {', '.join(bins)}"


def _unreadable(found: Inspection) -> Html | None:
    if not found.unreadable:
        return None
    listed = list(found.unreadable.items())
    items = [tag("li", tag("code", key), f": {reason}") for key, reason in listed[:MAX_LISTED]]
    more = tag("p", f"and {len(listed) - MAX_LISTED:,} more", class_="note") if len(listed) > MAX_LISTED else None
    return tag("section", tag("h2", f"Cannot be read: {len(listed):,} of {found.sampled:,}"), tag("ul", *items), more)


def _sheet(pictures: Sequence[Picture]) -> Html:
    return tag("section", tag("h2", "Images spread over the dataset"), tag("div", *map(_one, pictures), class_="sheet"))


def _one(picture: Picture) -> Html:
    if picture.jpeg is None:
        picture_tag = tag("div", picture.problem, class_="missing-image")
    else:
        data = base64.b64encode(picture.jpeg).decode()
        picture_tag = tag(
            "img", src=f"data:image/jpeg;base64,{data}", width=picture.width, height=picture.height, alt=picture.key
        )
    caption = [tag("span", picture.class_name, class_="class"), tag("span", picture.key)]
    return tag("figure", picture_tag, tag("figcaption", *caption), title=picture.key)
