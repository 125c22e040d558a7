"""Datasets and loaders as HTML for notebooks: a title, facts, and a strip of pictures. Plain elements with inline styles.

Colours come from the page, so that light and dark notebooks both work. All names from the data are escaped.
"""

from __future__ import annotations

import base64
import html
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from headrace.datasets.records.pictures import Picture, pictures
from headrace.datasets.records.table import Tabled
from headrace.system.text.printable import printable_lines

__all__ = ["STRIP", "dataset_facts", "dataset_strip", "names_text", "notebook_html"]

STRIP = 8  # pictures of the strip
_NAMES = 6  # class names that are listed
_CELL = "text-align:left;padding:0.1em 1em 0.1em 0;border:0;background:none"
_NAME = "font-weight:normal;opacity:0.75;vertical-align:top;white-space:nowrap"
_FIGURE = "display:inline-block;margin:0 0.6em 0.6em 0;vertical-align:bottom;max-width:128px"
_CAPTION = "font-size:0.8em;opacity:0.75;overflow:hidden;white-space:nowrap;text-overflow:ellipsis"


def names_text(names: Sequence[str], most: int) -> str:
    """Return up to `most` names, and how many more there are: `'cat', 'dog' and 8 more`."""
    shown = ", ".join(map(repr, names[:most]))
    return shown if len(names) <= most else f"{shown} and {len(names) - most:,} more"


def dataset_facts(dataset: Tabled) -> dict[str, str]:
    """Return the facts of a dataset in words, by name. No image is read."""
    facts: dict[str, str] = {"kind": dataset.kind}
    if dataset.stream is not None:
        return facts | {"records": "a stream: they come in order, through a Loader"}
    labels = dataset.table.label
    facts["records"] = f"{len(dataset):,}"
    facts["classes"] = f"{len(dataset.classes):,}" + (f": {names_text(dataset.classes, _NAMES)}" if dataset.classes else "")
    counts = np.bincount(labels[labels >= 0], minlength=len(dataset.classes))
    if len(counts):
        least, most = int(counts.min()), int(counts.max())
        facts["records per class"] = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    unlabeled = int((labels < 0).sum())
    return facts | ({"without a label": f"{unlabeled:,}"} if unlabeled else {})


def dataset_strip(dataset: Tabled) -> list[Picture] | str:
    """Return thumbnails of a few records, or in words why there are none: printing must not wait for a network."""
    if dataset.stream is not None:
        return ""
    if dataset.fetcher is not None:
        return "The pictures are in an object store: headrace.show_batch(dataset) fetches some."
    return pictures(dataset, STRIP)


def notebook_html(title: str, facts: Mapping[str, str], strip: Sequence[Picture] | str) -> str:
    """Return a title, a table of facts and a strip of pictures as HTML. A fact of several lines keeps its lines."""
    rows = "".join(
        f'<tr style="background:none"><th style="{_CELL};{_NAME}">{_text(name)}</th>'
        f'<td style="{_CELL};white-space:pre-wrap">{_text(value)}</td></tr>'
        for name, value in facts.items()
    )
    below = f"<p>{_text(strip)}</p>" if isinstance(strip, str) else "".join(_figures(strip))
    return (
        f'<div class="headrace"><p><b>{_text(title)}</b></p><table style="border:0"><tbody>{rows}</tbody></table>'
        f'<div style="margin-top:0.6em">{below}</div></div>'
    )


def _figures(strip: Sequence[Picture]) -> Iterator[str]:
    for one in strip:
        if one.jpeg is None:
            picture = f'<div style="padding:1em 0;font-size:0.8em;white-space:normal">{_text(one.problem)}</div>'
        else:
            source = f"data:image/jpeg;base64,{base64.b64encode(one.jpeg).decode()}"
            picture = f'<img src="{source}" width="{one.width}" height="{one.height}" alt="{_text(one.key)}">'
        caption = f'<div style="{_CAPTION}">{_text(one.class_name or one.key)}</div>'
        yield f'<div style="{_FIGURE}" title="{_text(one.key)}">{picture}{caption}</div>'


def _text(text: str) -> str:
    """Escape a text, with visible escapes for direction marks and bytes that are no UTF-8."""
    return html.escape(printable_lines(text))
