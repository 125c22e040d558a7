"""The JSON document that a benchmark writes to benchmarks/results/data, from which render.py makes the pages."""

from __future__ import annotations

import importlib
import json
import shlex
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import machine_facts
from pages.document import DATA
from render import measured, module_of, write

__all__ = ["document", "publish", "spread"]


def document(name: str, packages: Sequence[str], *, settings: dict[str, Any], **parts: Any) -> dict[str, Any]:
    """Return the document of the benchmark that runs now.

    Args:
        name: the page's name, which is the file's.
        packages: whose versions are recorded.
        settings: what the run was asked for: images, rounds, sizes.
        parts: the results, as the page's `render` reads them.
    """
    script = Path(sys.argv[0]).resolve()
    command = shlex.join(["python", f"benchmarks/{script.name}", *sys.argv[1:]])
    return {
        "name": name,
        "command": command,
        "date": time.strftime("%Y-%m-%d"),
        "machine": machine_facts.description(),
        "versions": machine_facts.versions(packages),
        "commit": machine_facts.commit(),
        "remarks": [],
        "settings": settings,
        **parts,
    }


def spread(rounds: Sequence[float]) -> dict[str, Any]:
    """Return median, least and greatest of the values, and the values themselves, in the order of the rounds."""
    return {
        "median": statistics.median(rounds),
        "least": min(rounds),
        "greatest": max(rounds),
        "rounds": list(rounds),
    }


def publish(found: dict[str, Any], *, save: bool, file: Path | None = None) -> None:
    """Print the page of a document. With `save` also write the document, and all pages anew.

    Raise SystemExit where a page shows a row that the document lacks: the document is kept in the current folder.

    Args:
        found: the document.
        save: whether `--write` was given.
        file: where the document goes instead, without pages (for machines without the repository).
    """
    name = found["name"]
    print(importlib.import_module(module_of(name)).render(found))
    text = json.dumps(found, indent=1, ensure_ascii=False) + "\n"
    if file is not None:
        file.write_text(text, encoding="utf-8")
    elif save:
        DATA.mkdir(parents=True, exist_ok=True)
        document = DATA / f"{name}.json"
        before = document.read_text(encoding="utf-8") if document.exists() else None
        document.write_text(text, encoding="utf-8")
        try:
            write(measured())
        except LookupError as missing:  # after many minutes of measuring: nothing of it may be lost
            kept = Path(f"{name}.json").absolute()
            kept.write_text(text, encoding="utf-8")
            if before is not None:
                document.write_text(before, encoding="utf-8")
            raise SystemExit(f"the pages were not written: {missing}\nthe measurement is kept in {kept}") from None
