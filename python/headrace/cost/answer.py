"""The whole answer to a cost question: rows, choice, trade-offs, input modes, other loaders, sensitivity."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from headrace.cost.estimates.budget import Choice, Limits, choose, pareto
from headrace.cost.estimates.fix_effects import WatchedCost, watched_cost
from headrace.cost.estimates.floors import Job
from headrace.cost.estimates.input_modes import ModePlan, PackPlan, pack_plan, plan_modes
from headrace.cost.estimates.runs import Purchase, Row, estimate_row, hours_row
from headrace.cost.estimates.sensitivity import Change, sensitivity
from headrace.cost.market.prices import Instance, PriceTable, Service
from headrace.diagnosis.result.model import Diagnosis
from headrace.errors import UsageError

__all__ = ["Answer", "Question", "answer"]

Asked = Sequence[tuple[Instance, Service]]


@dataclass(frozen=True, slots=True)
class Question:
    """The input of a cost estimate. Either `job` or `hours` is given. rates: img/s of the whole job; each gives its own rows.

    `watched`: the diagnosis of a session, whose fixes are priced on the one machine of `asked`, or at the given price.
    """

    job: Job | None
    hours: float | None
    rates: Sequence[float]
    asked: Asked
    purchase: Purchase
    limits: Limits
    max_instances: int = 1
    compare_loaders: bool = False
    all_input_modes: bool = False
    data_region: str | None = None
    reuse_runs: int = 1
    watched: Diagnosis | None = None


@dataclass(frozen=True, slots=True)
class OtherLoader:
    """The row that would be chosen with another loader; None if no row is within the limits."""

    loader: str
    choice: Row | None


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a cost estimate.

    rows: in the order of `question.asked`. pareto: rows that no other row beats in both time and money. Other lists are empty,
    `pack` and `watched` None, where the question did not ask for them. price_date: of the price table.
    """

    question: Question
    rows: list[Row]
    choice: Choice
    pareto: list[Row]
    other_loaders: list[OtherLoader]
    input_modes: list[ModePlan]
    pack: PackPlan | None
    sensitivity: list[Change]
    watched: WatchedCost | None
    price_date: str
    region: str

    def document(self) -> dict[str, object]:
        """Return the cost estimate as JSON values; an infinite amount is None."""
        return {
            "rows": [_row_values(row) for row in self.rows],
            "choice": _row_values(self.choice.row) if self.choice.row else None,
            "reason": self.choice.reason,
            "nearest": _row_values(self.choice.nearest) if self.choice.nearest else None,
            "pareto": [
                {"instance": row.instance, "service": row.service, "hours": row.total_hours, "usd": row.best_usd}
                for row in self.pareto
            ],
            "other_loaders": [
                {"loader": other.loader, "choice": _row_values(other.choice) if other.choice else None}
                for other in self.other_loaders
            ],
            "input_modes": [asdict(plan) for plan in self.input_modes],
            "pack": asdict(self.pack) if self.pack else None,
            "sensitivity": [asdict(change) for change in self.sensitivity],
            "watched": asdict(self.watched) if self.watched else None,
            "price_date": self.price_date,
            "region": self.region,
        }

    def sentences(self, *, sources: bool = True) -> list[str]:
        """Return plain sentences: the choice, other loaders and input modes, sensitivity and, with `sources`, the sources."""
        lines = [self._choice_line(), self._gate_line(), *self._loader_lines(), *self._mode_lines(), *self._sensitivity_lines()]
        lines += self.watched.lines() if self.watched and sources else []
        if any(row.rate_kind == "estimated" for row in self.rows):
            lines.append("~ marks a rate with an estimated part; --json and --html have its interval and its arithmetic.")
        if sources:
            lines.append(f"Prices of {self.region}, {self.price_date}; {_price_words(self.rows)}")
        return [line for line in lines if line]

    def _choice_line(self) -> str:
        row = self.choice.row
        if row is None:
            near = self.choice.nearest
            words = f" The nearest: {_name(near)}, {near.total_hours:.1f} h, ${near.best_usd:,.2f}." if near else ""
            return f"{self.choice.reason[0].upper()}{self.choice.reason[1:]}.{words}"
        if len(self.rows) == 1 or self.question.hours is not None or self.question.rates:
            return ""
        low, high = (_scaled(row, bound) for bound in (row.usd_low, row.usd_high))
        return (
            f"Choice: {_name(row)}, {row.recommended}: ${row.best_usd:,.2f} (${low:,.2f} to ${high:,.2f}) "
            f"in {row.total_hours:.1f} h, {self.choice.reason}; {row.binds} binds."
        )

    def _gate_line(self) -> str:
        """Why not to add GPUs: of the choice, or of the watched job where a row has more of them; "" where nothing does."""
        row, watched = self.choice.row, self.question.watched
        words = row.gate if row is not None else None
        if words is None and watched is not None and watched.ranks == 1:
            more = any(one.gpus * one.instances > 1 for one in self.rows)
            words = next((note.text for note in watched.notes if note.kind == "more_gpus"), None) if more else None
        return f"{words[0].upper()}{words[1:]}." if words is not None else ""

    def _loader_lines(self) -> list[str]:
        lines = []
        for other in self.other_loaders:
            if other.choice is None or self.choice.row is None:
                continue
            if _name(other.choice) == _name(self.choice.row) and math.isclose(
                other.choice.best_usd, self.choice.row.best_usd, rel_tol=0.01
            ):
                lines.append(f"With {other.loader} the choice and its cost are the same: {other.choice.binds} binds there.")
            else:
                lines.append(
                    f"With {other.loader}: {_name(other.choice)}, {other.choice.recommended}, ${other.choice.best_usd:,.2f} "
                    f"in {other.choice.total_hours:.1f} h ({other.choice.binds} binds)."
                )
        return lines

    def _mode_lines(self) -> list[str]:
        usable = [plan for plan in self.input_modes if plan.refused is None]
        if not usable:
            return []
        parts = [f"{plan.mode} ${plan.usd:,.2f}" for plan in usable if plan.usd is not None]
        lines = [f"Input modes on this instance, one run: {', '.join(parts)}."]
        if self.pack is not None:
            runs = self.question.reuse_runs
            share = f", ${self.pack.usd / runs:,.2f} for each of {runs} runs" if runs > 1 else ""
            lines.append(
                f"Packing first takes {self.pack.seconds / 60:,.0f} min and ${self.pack.usd:,.2f}{share} "
                f"({self.pack.shards:,} shards instead of {self._objects():,} objects)."
            )
        return lines

    def _objects(self) -> int:
        job = self.question.job
        return (job.objects or job.images) if job else 0

    def _sensitivity_lines(self) -> list[str]:
        turning = [change for change in self.sensitivity if change.changes_choice]
        if not self.sensitivity or len(self.rows) == 1:
            return []
        if not turning:
            return ["No input, halved or doubled, changes the choice."]
        return [
            f"The choice becomes {change.instance} ({change.service}, {change.purchase}) "
            f"if {change.input} is × {change.factor:g}."
            for change in turning
        ]


def answer(question: Question, tables: Sequence[PriceTable]) -> Answer:
    """Return the cost estimate for a question, with the prices of one region or of several.

    Raises `UsageError` if it cannot be answered, such as for `max_instances` below 1 or an unknown loader.
    """
    if question.max_instances < 1:
        raise UsageError(f"--max-instances must be at least 1, not {question.max_instances}")
    if question.reuse_runs < 1:
        raise UsageError(f"--reuse-runs must be at least 1, not {question.reuse_runs}")
    table = tables[0]
    rows = [row for one in tables for row in _rows(question, question.job, one)]
    chosen = choose(rows, question.limits)
    job = question.job
    others = []
    if job is not None and question.compare_loaders:
        for loader in [name for name in ("pytorch", "headrace", "headrace-packed") if name != job.loader]:
            alternative = [row for one in tables for row in _rows(question, replace(job, loader=loader), one)]
            others.append(OtherLoader(loader, choose(alternative, question.limits).row))
    modes, pack = _input(question, chosen.row, table)
    changes = (
        [] if job is None or question.rates else sensitivity(job, question.asked, question.purchase, question.limits, table)
    )
    dates = sorted({row.price_date for row in rows})
    return Answer(
        question,
        rows,
        chosen,
        pareto(rows),
        others,
        modes,
        pack,
        changes,
        _watched(question, rows),
        " to ".join(dict.fromkeys((dates[0], dates[-1]))),
        ", ".join(one.region for one in tables),
    )


def _rows(question: Question, job: Job | None, table: PriceTable) -> list[Row]:
    asked = [(table.instances[one.name], service) for one, service in question.asked if one.name in table.instances]
    if question.hours is not None or job is None:
        return [hours_row(question.hours or 0.0, one, service, question.purchase, table) for one, service in asked]
    jobs = [replace(job, img_s=rate) for rate in question.rates] or [job]
    rows = [
        estimate_row(each, one, service, question.purchase, table, instances=count)
        for one, service in asked
        for each in jobs
        for count in range(1, question.max_instances + 1)
    ]
    return [_with_copy(row, question, table) for row in rows]


def _with_copy(row: Row, question: Question, table: PriceTable) -> Row:
    """Add the copy of the data into another region to the money of the start."""
    home, job = question.data_region, question.job
    if home is None or home == table.region or job is None or job.dataset_bytes is None:
        return row
    copy = job.dataset_bytes / 1e9 * table.document["storage"]["egress_usd_per_gb"]["value"] / question.reuse_runs
    return replace(row, start_usd=row.start_usd + copy, copy_usd=copy)


def _watched(question: Question, rows: list[Row]) -> WatchedCost | None:
    job, price = question.job, question.purchase.usd_per_hour
    alone = len(question.asked) == 1
    if question.watched is None or job is None or not rows or not (alone or price):
        return None
    machine = _name(rows[0]) if alone else "the session's machine"
    return watched_cost(
        question.watched, images=job.images, epochs=job.epochs, usd_per_hour=rows[0].usd_per_hour, machine=machine
    )


def _input(question: Question, row: Row | None, table: PriceTable) -> tuple[list[ModePlan], PackPlan | None]:
    """Return the input modes and the packing plan for the chosen instance, if they were asked for and sizes are known."""
    job = question.job
    if job is None or row is None or not question.all_input_modes:
        return [], None
    if job.dataset_bytes is None:
        raise UsageError("--input-mode auto needs the size of the dataset", hint="--bytes N and --objects N, or --data PATH")
    known = replace(job, objects=job.objects or job.images)
    instance = table.instance(row.instance)
    plans = plan_modes(known, instance, row.service, row.usd_per_hour, table, runs=question.reuse_runs)
    few_objects = known.objects is not None and known.objects < job.images / 10
    return plans, None if few_objects else pack_plan(known, instance, row.usd_per_hour, table)


def _row_values(row: Row) -> dict[str, object]:
    values = asdict(row)
    values["total_hours"], values["best_usd"] = row.total_hours, row.best_usd
    return {name: None if isinstance(value, float) and math.isinf(value) else value for name, value in values.items()}


def _name(row: Row) -> str:
    count = f"{row.instances} × " if row.instances > 1 else ""
    return count + ("ml." if row.service == "sagemaker" else "") + row.instance


def _scaled(row: Row, bound: float) -> float:
    """Return the recommended cost if the run took the time of a bound of the interval."""
    return row.best_usd * bound / row.on_demand_usd if row.on_demand_usd else bound


def _price_words(rows: Sequence[Row]) -> str:
    sources = dict.fromkeys(row.price_source for row in rows)
    return "; ".join(sources) + "."
