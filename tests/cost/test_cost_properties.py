"""Properties of every cost estimate: money and time never shrink where they must grow, and intervals contain their point."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from headrace.cost.estimates.budget import Limits, choose, pareto
from headrace.cost.estimates.estimate import Estimate, exactly, weakest
from headrace.cost.estimates.floors import INPUT_MODES, Job, binding, cpu_ratio, floors, gpu_rate
from headrace.cost.estimates.runs import ModePlan, Purchase, estimate_row, mode_plans
from headrace.cost.market.prices import SERVICES, Instance, PriceTable, Service
from headrace.cost.market.spot import break_even_hours, expected_run, hours_between_interruptions, young_interval_s
from hypothesis import given, settings
from hypothesis import strategies as st

TABLE = PriceTable.load()

instances = st.sampled_from(list(TABLE.instances.values()))
jobs = st.builds(
    Job,
    images=st.integers(1, 10_000_000),
    epochs=st.floats(0.1, 600),
    model=st.sampled_from(["resnet18", "resnet34", "resnet50", "resnet101", "resnet152"]),
    dataset_bytes=st.one_of(st.none(), st.floats(1e6, 1e13)),
    objects=st.one_of(st.none(), st.integers(1, 10_000_000)),
    loader=st.sampled_from(["pytorch", "headrace", "headrace-packed"]),
    input_mode=st.sampled_from(INPUT_MODES),
)
purchases = st.builds(
    Purchase,
    spot_discount=st.one_of(st.none(), st.floats(0, 0.95)),
    hours_between=st.one_of(st.none(), st.floats(0.05, 1000)),
    restart_s=st.one_of(st.none(), st.floats(0, 3600)),
    interval_s=st.one_of(st.none(), st.floats(1, 7200)),
)


@settings(max_examples=200, deadline=None)
@given(jobs, instances, st.sampled_from(SERVICES), purchases)
def test_every_row_keeps_the_rules_of_money(job: Job, instance: Instance, service: Service, purchase: Purchase) -> None:
    row = estimate_row(job, instance, service, purchase, TABLE)
    assert row.img_s is not None and row.img_s_low is not None and row.img_s_high is not None
    assert 0 < row.img_s_low <= row.img_s <= row.img_s_high
    assert 0 < row.usd_low <= row.on_demand_usd <= row.usd_high
    assert row.start_usd >= 0 and row.start_s > 0
    assert row.binds == min(row.floors, key=lambda floor: floor.img_s.point).resource
    assert row.on_demand_usd == pytest.approx(row.usd_per_hour * row.hours)
    if row.spot_usd is not None:
        assert row.spot_expected_usd is not None and row.spot_discount is not None
        assert row.spot_usd == pytest.approx(row.on_demand_usd * (1 - row.spot_discount))
        assert row.spot_expected_usd >= row.spot_usd
        assert row.best_usd <= row.total_usd
        if row.recommended == "spot":
            assert row.spot_expected_usd < row.on_demand_usd
    parts = (row.on_demand_usd, row.start_usd, row.storage_usd, row.requests_usd, row.copy_usd)
    assert row.total_usd == pytest.approx(sum(parts)) and min(parts) >= 0


@settings(max_examples=100, deadline=None)
@given(jobs, instances, purchases, st.floats(1.01, 10))
def test_more_epochs_cost_more(job: Job, instance: Instance, purchase: Purchase, factor: float) -> None:
    once = estimate_row(job, instance, "ec2", purchase, TABLE)
    more = estimate_row(replace(job, epochs=job.epochs * factor), instance, "ec2", purchase, TABLE)
    assert more.on_demand_usd > once.on_demand_usd
    if job.input_mode == "stream":  # later epochs read a cache
        assert more.usd_per_epoch <= once.usd_per_epoch * (1 + 1e-9)
    else:
        assert more.usd_per_epoch == pytest.approx(once.usd_per_epoch)


@settings(max_examples=100, deadline=None)
@given(jobs, instances)
def test_the_slowest_floor_binds(job: Job, instance: Instance) -> None:
    found = floors(job, instance, TABLE)
    assert binding(found) is found[0]
    assert all(found[0].img_s.point <= floor.img_s.point for floor in found)
    assert {"gpu", "cpu"} <= {floor.resource for floor in found}


@given(st.floats(0.01, 0.95), st.floats(1, 60), st.floats(0, 3600))
def test_the_break_even_is_where_spot_costs_what_on_demand_costs(
    discount: float, checkpoint_s: float, restart_s: float
) -> None:
    level = break_even_hours(discount, checkpoint_s=checkpoint_s, restart_s=restart_s)
    for factor, cheaper in ((1.01, True), (0.99, False)):
        run = expected_run(1.0, level * factor, checkpoint_s=checkpoint_s, restart_s=restart_s)
        assert ((1 - discount) * run.hours < 1) is cheaper


def test_the_purchase_flips_to_on_demand_at_the_break_even() -> None:
    job, instance = Job(images=1000, epochs=10, model="resnet50"), TABLE.instance("g5.xlarge")
    level = break_even_hours(0.5, checkpoint_s=2, restart_s=480)
    for hours_between, purchase in ((level * 1.02, "spot"), (level * 0.98, "on demand")):
        row = estimate_row(job, instance, "ec2", Purchase(spot_discount=0.5, hours_between=hours_between), TABLE)
        assert row.recommended == purchase
        assert row.break_even_hours == pytest.approx(level)


def test_expected_cost_grows_with_interruptions_and_restart_time() -> None:
    runs = [expected_run(10, hours, checkpoint_s=2, restart_s=480).hours for hours in (100, 10, 2, 0.5, 0.2)]
    assert runs == sorted(runs)
    restarts = [expected_run(10, 4, checkpoint_s=2, restart_s=seconds).hours for seconds in (0, 60, 600, 3600)]
    assert restarts == sorted(restarts)
    assert math.isinf(expected_run(10, 0.1, checkpoint_s=2, restart_s=480).hours)


def test_young_s_interval_is_the_best() -> None:
    best = young_interval_s(2, 4)
    assert best == pytest.approx(math.sqrt(2 * 2 * 4 * 3600))
    least = expected_run(10, 4, checkpoint_s=2, restart_s=0, interval_s=best).hours
    for factor in (0.5, 2):
        assert expected_run(10, 4, checkpoint_s=2, restart_s=0, interval_s=best * factor).hours > least


def test_a_rare_interruption_is_not_believed_to_be_rarer_than_the_limit() -> None:
    assert hours_between_interruptions(0.05, 12) == 12
    assert hours_between_interruptions(None, 12) == 12
    assert hours_between_interruptions(0.999, 1000) == pytest.approx(730 / math.log(1000))


@given(
    st.lists(st.tuples(instances, st.sampled_from(SERVICES)), min_size=1, max_size=8), st.floats(0.1, 100), st.floats(0.1, 1000)
)
@settings(max_examples=50, deadline=None)
def test_the_choice_keeps_its_limits(asked: list[tuple[Instance, Service]], hours: float, usd: float) -> None:
    job = Job(images=1_281_167, epochs=4, model="resnet50")
    rows = [estimate_row(job, one, service, Purchase(), TABLE) for one, service in asked]
    chosen = choose(rows, Limits(hours, usd))
    if chosen.row is None:
        assert all(row.total_hours > hours or row.best_usd > usd for row in rows)
        assert chosen.nearest in rows
    else:
        assert chosen.row.total_hours <= hours and chosen.row.best_usd <= usd
    front = pareto(rows)
    assert min(row.best_usd for row in rows) == front[-1].best_usd
    assert min(row.total_hours for row in rows) == front[0].total_hours


def test_several_instances_are_faster_and_dearer_an_hour() -> None:
    job, instance = Job(images=1_281_167, epochs=4, model="resnet50"), TABLE.instance("g5.xlarge")
    one, four = (estimate_row(job, instance, "ec2", Purchase(spot_discount=0.6), TABLE, instances=count) for count in (1, 4))
    assert one.hours / 4 < four.hours < one.hours
    assert four.on_demand_usd > one.on_demand_usd
    assert four.spot_interruptions == pytest.approx(one.spot_interruptions, rel=0.2)  # four times as often, a quarter as long


def test_a_model_s_rate_keeps_its_interval_and_its_source() -> None:
    assert gpu_rate("resnet50", "V100", TABLE) == exactly(1200, TABLE.document["gpus"]["V100"]["source"], "published")
    guess = gpu_rate("resnet18", "V100", TABLE)
    assert guess.kind == "estimated" and guess.low < guess.point <= guess.high and "timm" in guess.source
    assert gpu_rate("resnet50", "L4", TABLE).kind == "estimated"


def test_the_ratio_of_two_processors_widens_with_ignorance() -> None:
    known = cpu_ratio("Xeon 8488C", "Xeon E5-2686 v4", TABLE)
    assert known.point == pytest.approx(10876 / 18718)
    assumed = cpu_ratio("Xeon 8488C", "Xeon E5-2686 v4", TABLE, assumed=True)
    unknown = cpu_ratio(None, "Xeon E5-2686 v4", TABLE)
    widths = [one.high / one.low for one in (known, assumed, unknown)]
    assert widths == sorted(widths) and widths[0] > 1


def test_many_small_files_make_fastfile_slow_and_shards_do_not() -> None:
    job = Job(images=1_281_167, epochs=16, model="resnet50", dataset_bytes=141e9, objects=1_281_167, loader="headrace-packed")
    instance = TABLE.instance("p4d.24xlarge")

    def plans(job: Job) -> dict[str, ModePlan]:
        return {plan.mode: plan for plan in mode_plans(job, INPUT_MODES, instance, "sagemaker", Purchase(), TABLE)}

    small, packed = plans(job)["fastfile"].row, plans(replace(job, objects=1051))["fastfile"].row
    assert small is not None and packed is not None
    assert small.binds == "requests" != packed.binds
    assert packed.total_usd < small.total_usd
    assert plans(job)["local"].refused is not None


def test_estimates_refuse_an_interval_without_their_point() -> None:
    with pytest.raises(ValueError, match="not in"):
        Estimate(1.0, 2.0, 3.0, "given", "x")
    assert weakest(["given", "published", "estimated"]) == "estimated"
    assert weakest([]) == "given"
