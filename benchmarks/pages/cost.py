"""The page of benchmarks/cost.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pages.document import Document, count, facts, note, page, percent, table

LOADERS = {"pytorch": "plain PyTorch", "headrace": "headrace, folder", "headrace-packed": "headrace, packed"}


def render(document: Document) -> str:
    """Return the page."""
    found = document["settings"]
    return page(
        "# Cost",
        f"What `headrace cost` answers for {found['model']} on ImageNet ({found['images']:,} images, {found['epochs']:g} "
        f"epochs, {found['dataset_bytes'] / 1e9:,.0f} GB), and its predictions beside real jobs. `benchmarks/cost.py` describes"
        " the method.",
        facts(document),
        f"## The choice among all machines\n\nPrices of {document['price_date']}. Spot with its expected interruptions; "
        "time from the order to the last step.",
        choice_table(document),
        same(document),
        "## The run on some machines, on demand",
        machine_table(document),
        "## Predicted and observed seconds of real jobs on this machine",
        f"Downloads of {found['photographs']:,} photographs, packed, at {found['server_bytes_per_s'] / 1e6:g} MB/s; batches of "
        f"{found['batch_size']}.",
        job_table(document),
        error(document),
        note("cost"),
    )


def choice_table(document: Document) -> str:
    rows = []
    for row in document["choices"]:
        limit = f"{row['deadline_h']:g} h" if row["deadline_h"] else "none"
        chosen = row["choice"]
        cells = (
            ("none", "", "", "")
            if chosen is None
            else (name(chosen), chosen["binds"], hours(chosen["hours"]), money(chosen["usd"]))
        )
        rows.append((limit, LOADERS[row["loader"]], *cells))
    return table(["deadline", "loader", "choice", "binds", "time", "cost"], rows, right=2)


def same(document: Document) -> str:
    """Say for which deadlines the loaders do not change the choice or its cost."""
    lines = []
    for deadline in dict.fromkeys(row["deadline_h"] for row in document["choices"]):
        chosen = [row["choice"] for row in document["choices"] if row["deadline_h"] == deadline]
        words = f"With a deadline of {deadline:g} h" if deadline else "Without a deadline"
        machines = {name(one) if one else "none" for one in chosen}
        costs = {round(one["usd"], 2) if one else None for one in chosen}
        if len(machines) > 1:
            lines.append(f"- {words} the loader changes the choice.")
        elif len(costs) > 1:
            lines.append(f"- {words} the loader changes the cost, not the choice.")
        else:
            lines.append(f"- {words} the loader changes neither the choice nor its cost: {chosen[0]['binds']} binds.")
    return "\n".join(lines)


def machine_table(document: Document) -> str:
    by_machine: dict[str, dict[str, Mapping[str, Any]]] = {}
    for row in document["machines"]:
        by_machine.setdefault(row["instance"], {})[row["loader"]] = row
    rows = [
        (
            instance,
            *(
                f"{one['seconds_per_epoch']:,.0f} s, {money(one['on_demand_usd'])} ({one['binds']})"
                for one in by_loader.values()
            ),
        )
        for instance, by_loader in by_machine.items()
    ]
    return table(["instance", *(f"{words}: an epoch, the run" for words in LOADERS.values())], rows, right=3)


def job_table(document: Document) -> str:
    if not document["jobs"]:
        return "No job was run for this page: `make bench-cost`."
    head = ["job", "start", "download", "training", "predicted", "factor of the others", "observed", "error"]
    rows = [
        (
            f"{job['model']}, {job['pixels']} px, {job['images']:,} images, {count(job['epochs'], 'epoch')}",
            f"{job['start_s']:.1f} s",
            f"{job['download_s']:.1f} s",
            f"{job['training_s']:.1f} s ({job['floor_img_s']:,.1f} img/s)",
            f"{job['predicted_s']:.1f} s",
            f"{job['factor']:.2f}",
            f"{job['observed_s']:.1f} s ({job['observed_download_s']:.1f} s download)",
            percent(job["error"], 1),
        )
        for job in document["jobs"]
    ]
    return table(head, rows, right=7)


def error(document: Document) -> str:
    if document["median_error"] is None:
        return ""
    worst = max(job["error"] for job in document["jobs"])
    return (
        f"Median error {percent(document['median_error'], 1)}, largest {percent(worst, 1)}, over {len(document['jobs'])} jobs. "
        f"Predicted × factor of the others is compared with observed."
    )


def name(row: Mapping[str, Any]) -> str:
    return f"{'ml.' if row['service'] == 'sagemaker' else ''}{row['instance']}, {row['recommended']}"


def hours(value: float) -> str:
    return f"{value:.1f} h" if value >= 1 else f"{60 * value:.0f} min"


def money(value: float) -> str:
    return f"${value:,.2f}"
