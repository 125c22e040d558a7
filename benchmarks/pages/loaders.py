"""The page of benchmarks/loaders.py."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pages.document import Document, count, facts, name_of, note, page, percent, spread, table

RATES = ["loader", "uint8 img/s", "× DataLoader", "CPU s / 1000", "float32 img/s", "× DataLoader", "CPU s / 1000"]
OTHER = ["loader", "memory uint8", "memory float32", "first batch", "import", "main thread, share of a core (uint8, float32)"]


def render(document: Document) -> str:
    """Return the page."""
    settings, repeats = document["settings"], document["settings"]["repeats"]
    measured = "one measurement each" if repeats == 1 else f"median (least–greatest) of {repeats} interleaved repeats"
    cores = sorted({row["cores"] for row in document["rates"]}, reverse=True)
    return page(
        "# Loaders",
        f"Random order, RandomResizedCrop({settings['size']}), flip, batches of {settings['batch_size']}; "
        f"{settings['photographs']} photographs in the page cache; as many workers or threads as cores; {measured}, windows of "
        f"{settings['seconds']:g} s.\n`benchmarks/loaders.py` describes the method.",
        facts(document),
        *(section(document, n) for n in cores),
        f"## Memory, start and hand-over ({count(cores[0], 'core')})",
        table(OTHER, map(other, document["other"])),
        f"A process that has done nothing but `import torch` takes {document['torch_import_mib']:,.0f} MiB.",
        "\n".join(
            [
                *(f"- Not installed, so not measured: {name}." for name in document["absent"]),
                *(f"- Failed: {name}: `{reason}`." for name, reason in document["failed"].items()),
            ]
        ),
        note("loaders"),
    )


def section(document: Document, cores: int) -> str:
    """Return the section on one number of cores."""
    return page(f"## {count(cores, 'core')}", rates(row for row in document["rates"] if row["cores"] == cores))


def rates(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return the table of rates on one number of cores."""
    return table(RATES, ([name_of(row, "loader"), *side(row["uint8"]), *side(row["float32"])] for row in rows))


def side(found: Mapping[str, Any]) -> list[str]:
    """Return the cells of one type of values: rate, times the DataLoader, CPU time."""
    times = "–" if found["times"] is None else f"{found['times']:.2f}"
    return [spread(found["img_s"], between="–"), times, f"{found['cpu_s_per_1000']:.2f}"]


def other(row: Mapping[str, Any]) -> list[str]:
    """Return the cells that are not rates."""
    main = ", ".join(percent(row[f"main_thread_{kind}"], 1) for kind in ("uint8", "float32"))
    memory = [f"{row[f'memory_{kind}_mib']:,.0f} MiB" for kind in ("uint8", "float32")]
    return [name_of(row, "loader"), *memory, f"{row['first_batch_s']:.2f} s", f"{row['import_s']:.2f} s", main]
