"""A diagnosis that shows itself: `print` gives its first screen, the last line of a notebook's cell too."""

from __future__ import annotations

import io
from dataclasses import fields

from rich.console import Console

from headrace.diagnosis.result.model import Diagnosis
from headrace.report.text.terminal import render, to_ascii
from headrace.system.text.printable import printable_lines

__all__ = ["ShownDiagnosis", "shown"]

NOTEBOOK_WIDTH = 100
"""Columns of the first screen in a notebook."""


class ShownDiagnosis(Diagnosis):
    """A diagnosis whose text is its first screen, as `headrace diagnose` prints it."""

    __slots__ = ()

    def __str__(self) -> str:
        console = Console()
        screen = render(self, width=console.width).plain
        return printable_lines(to_ascii(screen) if console.options.ascii_only else screen)

    def _repr_html_(self) -> str:
        """Return the first screen in colour, which notebooks show."""
        console = Console(record=True, width=NOTEBOOK_WIDTH, file=io.StringIO(), color_system="truecolor", legacy_windows=False)
        console.print(render(self, width=NOTEBOOK_WIDTH), markup=False, highlight=False)
        frame = '<pre class="headrace" style="line-height:1.3;white-space:pre-wrap;overflow-wrap:anywhere">{code}</pre>'
        return printable_lines(console.export_html(inline_styles=True, code_format=frame))


def shown(diagnosis: Diagnosis) -> ShownDiagnosis:
    """Return a diagnosis as one that shows itself; all fields stay."""
    return ShownDiagnosis(**{field.name: getattr(diagnosis, field.name) for field in fields(diagnosis)})
