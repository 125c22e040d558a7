"""The page of benchmarks/object_store.py."""

from __future__ import annotations

from pages.document import Document, facts, note, page, percent, table

HEAD = ["server", "cold epoch", "share of the cap", "first batch", "requests", "bytes fetched / data", "cache's most / bound"]


def render(document: Document) -> str:
    """Return the page."""
    found = document["settings"]
    return page(
        "# Object stores",
        f"{found['images']} JPEGs, {found['data_mib']:.1f} MiB, shards of {found['shard_mib']:.1f} MiB; medians of "
        f"{found['rounds']}.\nLink: {found['latency_ms']:g} ms for each request, {found['cap_mb_s']:g} MB/s over "
        "all connections. "
        "The budget of the first batch is three round trips and one shard's bytes at the cap "
        f"({found['first_batch_budget_ms']:.0f} ms).",
        facts(document),
        f"Load of the machine in the last five minutes, with the benchmark's own: {found['load_5_min']:.0f}.",
        table(
            HEAD,
            (
                (
                    row["server"],
                    row["epoch"],
                    percent(row["share_of_cap"]),
                    f"{row['first_batch_ms']:.0f} ms",
                    f"{row['requests']:.0f}",
                    f"{row['fetched_share']:.2f}",
                    f"{row['cache_most_mb']:.0f} / {row['cache_bound_mb']:.0f} MB",
                )
                for row in document["rows"]
            ),
            right=5,
        ),
        note("object_store"),
    )
