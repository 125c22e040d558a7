"""The whole answer to a cost question: rows, choice, trade-offs, input modes, other loaders, sensitivity."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from headrace.cost.estimates.budget import Choice, Limits, choose, pareto
from headrace.cost.estimates.fix_effects import WatchedCost, watched_cost
from headrace.cost.estimates.floors import INPUT_MODES, SHARD_BYTES, Job
from headrace.cost.estimates.input_modes import PackPlan, pack_plan
from headrace.cost.estimates.runs import ModePlan, Purchase, Row, estimate_row, hours_row, mode_plans
from headrace.cost.estimates.sensitivity import Change, sensitivity
from headrace.cost.market.prices import Instance, PriceTable, Service
from headrace.diagnosis.result.model import Diagnosis
from headrace.errors import UsageError
from headrace.report.text import numbers
from headrace.report.text.notebook import notebook_html
from headrace.system.text.sizes import number_text

__all__ = ["SHOWN_ROWS", "Answer", "Question", "answer", "total_text", "usd"]

SHOWN_ROWS = 12
"""Show at most this many rows, the cheapest, in the table of a terminal or a notebook."""

Asked = Sequence[tuple[Instance, Service]]


@dataclass(frozen=True, slots=True)
class Question:
    """The input of a cost estimate. Either `job` or `hours` is given. rates: img/s of the whole job; each gives its own rows.

    `all_input_modes`: a row for each input mode that a machine can use, not for the job's alone.
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
    watched: Diagnosis | None = None


@dataclass(frozen=True, slots=True)
class OtherLoader:
    """The row that would be chosen with another loader; None if no row is within the limits, or for the reason in `refused`."""

    loader: str
    choice: Row | None
    refused: str | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a cost estimate.

    rows: in the order of `question.asked`. pareto: rows that no other row beats in both time and money. input_modes: of the
    chosen machine. left_out: machines without a row, by the reason. packed: the choice if the data lie in shards, where the
    number of objects was estimated and the loader reads shards. Other lists are empty, `pack` and `watched` None, where the
    question did not ask for them. price_date: of the price table.
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
    left_out: dict[str, list[str]] = field(default_factory=dict)
    packed: Row | None = None

    def label(self, row: Row) -> str:
        """Return the name of a row: its machines, with the input mode where the rows have several."""
        return f"{row.name}, {row.input_mode}" if self.question.all_input_modes else row.name

    def document(self) -> dict[str, object]:
        """Return the cost estimate as JSON values; an infinite amount is None."""
        return {
            "rows": [_row_values(row) for row in self.rows],
            "choice": _row_values(self.choice.row) if self.choice.row else None,
            "reason": self.choice.reason,
            "nearest": _row_values(self.choice.nearest) if self.choice.nearest else None,
            "pareto": [
                {
                    "instance": row.instance,
                    "service": row.service,
                    "input_mode": row.input_mode,
                    "hours": row.total_hours,
                    "usd": row.best_usd,
                }
                for row in self.pareto
            ],
            "other_loaders": [
                {
                    "loader": other.loader,
                    "choice": _row_values(other.choice) if other.choice else None,
                    "refused": other.refused,
                }
                for other in self.other_loaders
            ],
            "input_modes": [_mode_values(plan) for plan in self.input_modes],
            "pack": asdict(self.pack) if self.pack else None,
            "sensitivity": [asdict(change) for change in self.sensitivity],
            "watched": asdict(self.watched) if self.watched else None,
            "left_out": self.left_out,
            "packed": _row_values(self.packed) if self.packed else None,
            "price_date": self.price_date,
            "region": self.region,
        }

    def _repr_html_(self) -> str:
        """Return the cheapest rows and the sentences, which notebooks show."""
        rows = sorted(self.rows, key=lambda row: row.best_usd)[:SHOWN_ROWS]
        more = len(self.rows) - len(rows)
        sentences = [*([f"The {len(rows)} cheapest of {len(self.rows)} rows."] if more else []), *self.sentences()]
        cells = [
            (
                self.label(row),
                numbers.image_rate(row.img_s) if row.img_s else "–",
                row.binds,
                numbers.seconds(row.hours * 3600),
                total_text(row, row.total_usd),
                total_text(row, row.spot_total_usd),
            )
            for row in rows
        ]
        return notebook_html(sentences, ("instance", "img/s", "binds", "run", "total", "total, spot"), cells)

    def choice_words(self, row: Row) -> str:
        """Return what the chosen row is: its machine, how it is bought, and where there was a choice, interval and reason."""
        words = f"{self.label(row)}, {row.recommended}"
        if not self._has_choice():
            return words
        low, high = (_scaled(row, bound) for bound in (row.usd_low, row.usd_high))
        return f"{words}, ${low:,.2f} to ${high:,.2f}: {self.choice.reason}"

    def sentences(self, *, page: bool = False) -> list[str]:
        """Return plain sentences: the choice, other loaders and input modes, sensitivity, the sources.

        `page`: leave out what the page of the estimate has in figures and tables: the choice, the watched fixes, the sources.
        """
        lines = [] if page and self.choice.row is not None else [self._choice_line()]
        lines += [self._gate_line(), *self._loader_lines(), *self._mode_lines(), *_data_lines(self.rows)]
        lines += [self._packed_line(), *self._load_lines()]
        lines += [f"Left out: {words}." for words in _left_out_words(self.left_out)]
        lines += self._sensitivity_lines()
        lines += self.watched.lines() if self.watched and not page else []
        if any(row.rate_kind == "estimated" for row in self.rows):
            lines.append("~ marks a rate with an estimated part; --json and --html have its interval and its arithmetic.")
        if not page:
            lines.append(f"Prices of {self.region}, {self.price_date}; {_price_words(self.rows)}")
        return [line for line in lines if line]

    def _choice_line(self) -> str:
        row = self.choice.row
        if row is None:
            near = self.choice.nearest
            words = f" The nearest: {self.label(near)}, {near.total_hours:.1f} h, {_best(near)}." if near else ""
            return f"{self.choice.reason[0].upper()}{self.choice.reason[1:]}.{words}"
        if not self._has_choice():
            return ""
        low, high = (_scaled(row, bound) for bound in (row.usd_low, row.usd_high))
        return (
            f"Choice: {self.label(row)}, {row.recommended}: {_best(row)} (${low:,.2f} to ${high:,.2f}) "
            f"in {row.total_hours:.1f} h, {self.choice.reason}; {row.binds} binds."
        )

    def _has_choice(self) -> bool:
        return len(self.rows) > 1 and self.question.hours is None and not self.question.rates

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
            if other.refused is not None:
                lines.append(f"With {other.loader} no machine can be priced: {other.refused}.")
            if other.choice is None or self.choice.row is None:
                continue
            if self._shown(other.choice) == self._shown(self.choice.row):
                lines.append(f"With {other.loader} the choice and its cost are the same: {other.choice.binds} binds there.")
            else:
                name, purchase, usd = self._shown(other.choice)
                hours, binds = other.choice.total_hours, other.choice.binds
                lines.append(f"With {other.loader}: {name}, {purchase}, {usd} in {hours:.1f} h ({binds} binds).")
        return lines

    def _shown(self, row: Row) -> tuple[str, str, str]:
        return self.label(row), row.recommended, _best(row)

    def _mode_lines(self) -> list[str]:
        chosen, usable = self.choice.row, [plan.row for plan in self.input_modes if plan.row is not None]
        if not usable or chosen is None:
            return []
        parts = [f"{row.input_mode} {_purchase(row)}" for row in usable]
        lines = [f"Input modes of {chosen.name}, one run: {', '.join(parts)}."]
        if self.pack is not None and self.question.job is not None:
            runs = self.question.job.reuse_runs
            share = f", ${self.pack.usd / runs:,.2f} for each of {runs} runs" if runs > 1 else ""
            lines.append(
                f"Packing first takes {self.pack.seconds / 60:,.0f} min and ${self.pack.usd:,.2f}{share}, which no total holds "
                f"({self.pack.shards:,} shards of {self.question.job.images:,} images)."
            )
        return lines

    def _packed_line(self) -> str:
        packed, job = self.packed, self.question.job
        if packed is None or job is None or self.choice.row is None or self._shown(packed) == self._shown(self.choice.row):
            return ""
        (name, purchase, usd), count = self._shown(packed), _shards(job)
        words = f"{name}, {purchase}, {usd} in {packed.total_hours:.1f} h ({packed.binds} binds)"
        return f"Packed into {count:,} shards of 128 MiB (--objects {count}): {words}."

    def _load_lines(self) -> list[str]:
        """Say what an augmentation load that was asked for needs on the chosen machine."""
        job, row = self.question.job, self.choice.row or self.choice.nearest
        cpu = next((floor for floor in row.floors if floor.resource == "cpu"), None) if row else None
        if job is None or row is None or cpu is None or row.input_vcpus is None:
            return []
        if job.augmentation is None and job.img_s_per_core is None:
            return []
        return [
            f"Input: {cpu.arithmetic}; what else binds on {self.label(row)} needs {number_text(row.input_vcpus)} "
            f"of its {row.vcpus} vCPUs ({cpu.img_s.source.partition('; ')[0]})."
        ]

    def _sensitivity_lines(self) -> list[str]:
        turning = [change for change in self.sensitivity if change.changes_choice]
        if not self.sensitivity or len(self.rows) == 1:
            return []
        if not turning:
            return ["No input, halved or doubled, changes the choice."]
        modes = {change.input_mode: f", {change.input_mode}" if self.question.all_input_modes else "" for change in turning}
        return [
            f"The choice becomes {change.instance} ({change.service}, {change.purchase}{modes[change.input_mode]}) "
            f"if {change.input} is × {change.factor:g}."
            for change in turning
        ]


def _data_lines(rows: Iterable[Row]) -> list[str]:
    """Return sentences on what the data of the rows rest on: an estimated number of objects, and what no total has."""
    rows = list(rows)
    guesses = dict.fromkeys(row.guess for row in rows if row.guess is not None)
    lines = [f"The store is taken to hold {guess}; --objects N says how many, --data PATH counts them." for guess in guesses]
    lacking = dict.fromkeys(part for row in rows for part in row.missing)
    return [*lines, *([f"≥ marks a total without {'; without '.join(lacking)}."] if lacking else [])]


def answer(question: Question, tables: Sequence[PriceTable]) -> Answer:
    """Return the cost estimate for a question, with the prices of one region or of several.

    Raises `UsageError` if it cannot be answered, such as for `max_instances` below 1 or an unknown loader.
    """
    job = question.job
    if question.max_instances < 1:
        raise UsageError(f"--max-instances must be at least 1, not {question.max_instances}")
    if job is not None and job.reuse_runs < 1:
        raise UsageError(f"--reuse-runs must be at least 1, not {job.reuse_runs}")
    if job is not None and question.all_input_modes and job.dataset_bytes is None:
        raise UsageError("--input-mode auto needs the size of the dataset", hint="--bytes N and --objects N, or --data PATH")
    plans, rows = [], []
    if job is None:
        rows = [row for table in tables for row in _rows_of_hours(question, table)]
    else:
        plans = [plan for table in tables for plan in _plans(question, job, question.asked, question.purchase, table)]
        rows = _rows(plans)
    left_out = _left_out(plans)
    if not rows and left_out:
        reasons = "; ".join(_left_out_words(left_out))
        raise UsageError(f"no machine can be priced: {reasons}", hint="--input-mode auto takes what each machine can use")
    chosen = choose(rows, question.limits)
    modes, pack = _input(question, chosen.row, tables)
    dates = sorted({row.price_date for row in rows})
    return Answer(
        question,
        rows,
        chosen,
        pareto(rows),
        _other_loaders(question, tables),
        modes,
        pack,
        _sensitivity(question, tables[0]),
        _watched(question, rows),
        " to ".join(dict.fromkeys((dates[0], dates[-1]))),
        ", ".join(one.region for one in tables),
        left_out,
        _packed(question, chosen.row, tables),
    )


def _rows_of_hours(question: Question, table: PriceTable) -> list[Row]:
    hours, known = question.hours or 0.0, table.instances
    asked = [(known[one.name], service) for one, service in question.asked if one.name in known]
    return [hours_row(hours, one, service, question.purchase, table) for one, service in asked]


def _plans(question: Question, job: Job, asked: Asked, purchase: Purchase, table: PriceTable) -> list[ModePlan]:
    """Return the plans of a job on the machines of `asked` that the table has: each rate, number of instances, input mode."""
    return [
        plan
        for one, service in asked
        if one.name in table.instances
        for each in [replace(job, img_s=rate) for rate in question.rates] or [job]
        for count in range(1, question.max_instances + 1)
        for plan in _modes(question, each, table.instances[one.name], service, purchase, table, count)
    ]


def _modes(
    question: Question, job: Job, instance: Instance, service: Service, purchase: Purchase, table: PriceTable, count: int
) -> list[ModePlan]:
    modes = INPUT_MODES if question.all_input_modes else (job.input_mode,)
    plans = mode_plans(job, modes, instance, service, purchase, table, instances=count)
    if modes != ("local",):
        return plans
    # Who asks for `local` alone says that the data lie there already. The row says what it lacks.
    return [replace(plans[0], row=estimate_row(job, instance, service, purchase, table, instances=count), refused=None)]


def _rows(plans: Iterable[ModePlan]) -> list[Row]:
    return [plan.row for plan in plans if plan.row is not None]


def _left_out(plans: Sequence[ModePlan]) -> dict[str, list[str]]:
    """Return the machines without any row, by the reason."""
    priced = {plan.machine for plan in plans if plan.row is not None}
    reasons = {plan.machine: plan.refused for plan in plans if plan.refused and plan.machine not in priced}
    return {why: [name for name, reason in reasons.items() if reason == why] for why in dict.fromkeys(reasons.values())}


def _left_out_words(left_out: Mapping[str, Sequence[str]]) -> list[str]:
    named = {why: ", ".join(names) if len(names) < 4 else f"{len(names)} machines" for why, names in left_out.items()}
    return [f"{names} ({why})" for why, names in named.items()]


def _other_loaders(question: Question, tables: Sequence[PriceTable]) -> list[OtherLoader]:
    job, found = question.job, []
    if job is None or not question.compare_loaders:
        return []
    for loader in [name for name in ("pytorch", "headrace", "headrace-packed") if name != job.loader]:
        other = replace(job, loader=loader)
        plans = [plan for one in tables for plan in _plans(question, other, question.asked, question.purchase, one)]
        rows = _rows(plans)
        refused = None if rows else "; ".join(_left_out(plans))
        found.append(OtherLoader(loader, choose(rows, question.limits).row, refused))
    return found


def _packed(question: Question, row: Row | None, tables: Sequence[PriceTable]) -> Row | None:
    """Return the choice if the data lie in shards, where their layout is not known and the loader reads shards."""
    job = question.job
    if job is None or row is None or row.guess is None or job.dataset_bytes is None or job.loader != "headrace-packed":
        return None
    shards = replace(job, objects=_shards(job), objects_source="shards of 128 MiB")
    plans = [plan for one in tables for plan in _plans(question, shards, question.asked, question.purchase, one)]
    return choose(_rows(plans), question.limits).row


def _shards(job: Job) -> int:
    return max(1, round((job.dataset_bytes or 0.0) / SHARD_BYTES))


def _sensitivity(question: Question, table: PriceTable) -> list[Change]:
    def rows_of(job: Job, asked: Asked, purchase: Purchase) -> list[Row]:
        return _rows(_plans(question, job, asked, purchase, table))

    if question.job is None or question.rates:
        return []
    return sensitivity(question.job, question.asked, question.purchase, question.limits, table, rows_of)


def _watched(question: Question, rows: list[Row]) -> WatchedCost | None:
    job, price = question.job, question.purchase.usd_per_hour
    alone = len(question.asked) == 1
    if question.watched is None or job is None or not rows or not (alone or price):
        return None
    machine = rows[0].name if alone else "the session's machine"
    return watched_cost(
        question.watched, images=job.images, epochs=job.epochs, usd_per_hour=rows[0].usd_per_hour, machine=machine
    )


def _input(question: Question, row: Row | None, tables: Sequence[PriceTable]) -> tuple[list[ModePlan], PackPlan | None]:
    """Return the input modes of the chosen machine, and the plan of packing the data, if all input modes were asked for."""
    job = question.job
    if job is None or row is None or not question.all_input_modes:
        return [], None
    table = next(one for one in tables if one.region == row.region)
    instance = table.instance(row.instance)
    this = replace(job, img_s=row.floors[0].img_s.point) if question.rates else job
    plans = _modes(question, this, instance, row.service, question.purchase, table, row.instances)
    few_objects = job.objects is not None and job.objects < job.images / 10
    return plans, None if few_objects else pack_plan(job, instance, row.usd_per_hour, table)


def _row_values(row: Row) -> dict[str, object]:
    values = asdict(row)
    values["total_hours"], values["best_usd"] = row.total_hours, row.best_usd
    return {name: None if isinstance(value, float) and math.isinf(value) else value for name, value in values.items()}


def _mode_values(plan: ModePlan) -> dict[str, object]:
    """Return the JSON values of an input mode. usd: of the whole run on demand, as `total_usd` of its row."""
    row = plan.row
    return {
        "mode": plan.mode,
        "start_s": row.start_s if row else None,
        "seconds_per_epoch": row.seconds_per_epoch if row else None,
        "binds": row.binds if row else None,
        "storage_usd": row.storage_usd if row else None,
        "requests_usd": row.requests_usd if row else None,
        "usd": row.total_usd if row else None,
        "best_usd": row.best_usd if row else None,
        "arithmetic": row.data_arithmetic if row else "",
        "refused": plan.refused,
    }


def _best(row: Row) -> str:
    return ("≥ " if row.missing else "") + f"${row.best_usd:,.2f}"


def _purchase(row: Row) -> str:
    """Return the total on demand in words, and that of spot where it is less."""
    spot = f" (spot ${row.best_usd:,.2f})" if row.recommended == "spot" else ""
    return f"{'≥ ' if row.missing else ''}${row.total_usd:,.2f}{spot}"


def _scaled(row: Row, bound: float) -> float:
    """Return the recommended cost if the training took the time of a bound of the interval."""
    training = row.spot_expected_usd if row.recommended == "spot" and row.spot_expected_usd else row.on_demand_usd
    return row.best_usd + training * (bound / row.on_demand_usd - 1) if row.on_demand_usd else bound


def total_text(row: Row, value: float | None) -> str:
    """Return a total of a row as text, with ≥ where the row lacks a part."""
    return ("≥ " if row.missing and value is not None else "") + usd(value)


def _price_words(rows: Sequence[Row]) -> str:
    sources = dict.fromkeys(row.price_source for row in rows)
    return "; ".join(sources) + "."


def usd(value: float | None) -> str:
    """Return an amount of USD as text: "$1.50", a dash for None, "never ends" for infinity."""
    if value is None:
        return "–"
    return f"${value:,.2f}" if math.isfinite(value) else "never ends"
