"""The part of the diagnosis page that says what watching costs, made by benchmarks/attach_overhead.py."""

from __future__ import annotations

from pages.document import Document, page, table


def render(document: Document) -> str:
    """Return the part."""
    found = document["settings"]
    return page(
        f"`{document['command']}`, {document['date']}: {found['rounds']} rounds of runs with and without these parts of "
        f"headrace, of {found['steps']} steps of {found['step_ms']:g} ms.",
        table(
            ["per step", "added by", "plain", "added", "share", "standard error"],
            (
                (
                    row["what"],
                    row["part"],
                    f"{row['plain_us']:,.0f} µs",
                    f"{row['more_us']:+.0f} µs",
                    f"{100 * row['more_share']:+.2f} %",
                    f"{row['error_us']:.0f} µs",
                )
                for row in document["rows"]
            ),
        ),
        '"Added" is the median of the differences within a round.',
        f"The step hook alone takes {document['hook_us']:.1f} µs of CPU per step, writing the session included (least of "
        f"{found['loops']} loops of {found['loop_steps']}).",
    )
