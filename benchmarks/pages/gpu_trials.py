"""The page of the measurement `trials` of benchmarks/gpu/run.py: the matrix of `headrace trials dali` on a real GPU."""

from __future__ import annotations

from headrace.system.text.sizes import count_text

from pages import awaits_gpu
from pages.document import Document, facts, page
from pages.trials import experiment

COMMAND = f"{awaits_gpu.COMMAND} ARGS='--only trials'"


def render(document: Document) -> str:
    """Return the page."""
    found, dropped = document["experiments"], document["settings"].get("dropped", 0)
    missing = f"{count_text(dropped, 'cell')} without a result yet." if dropped else ""
    return page(
        "# Trials on a GPU",
        f"`{COMMAND}` on a machine with a CUDA GPU measures this matrix. A call ends within nine minutes; the next goes on "
        "with the cells that did not fit. The model computes on the GPU, in FP32 and batches of 32 as published; "
        "[the guide](../../docs/guides/trials.md) says what each figure is, and [trials](trials.md) has the same matrix beside "
        "a simulated GPU.",
        "" if found else "**Not measured yet**: no machine with a GPU was at hand. Nothing on this page is a measurement.",
        facts(document),
        missing,
        *(part for name in found for part in experiment(name, found[name])),
    )
