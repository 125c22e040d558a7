"""The split of a step, the share of waiting, the percentiles and the loader stages say the same."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from diagnosis_checks import check_agreement
from headrace.report.pages import html
from headrace.report.text import terminal
from headrace.session.model import Session
from session_factory import make_session

SESSIONS = 240


def random_session(seed: int) -> Session:
    """Return the session of a job with random times and workers, with and without queueing, with and without a GPU."""
    rng = random.Random(seed)

    def sometimes(high: float, *, often: float = 0.5) -> float:
        return rng.uniform(0.0, high) if rng.random() < often else 0.0

    options: dict[str, Any] = {
        "workers": rng.choice((0, 0, 1, 2, 4, 8)),
        "steps": rng.choice((20, 60, 120)),
        "compute_s": 10 ** rng.uniform(-3, -0.7),
        "cpu_s": 10 ** rng.uniform(-3, -1),
        "queue_s": sometimes(0.1),
        "blocked_s": sometimes(0.1),
        "transfer_s": rng.choice((0.0002, 0.004)),
        "next_queue_s": sometimes(0.02, often=0.3),
        "compute_queue_s": rng.choice((None, 0.0, sometimes(0.02))),
        "h2d_s": sometimes(0.05, often=0.3),
        "sync_s": sometimes(0.02, often=0.3),
        "sync_count": rng.choice((0, 0, 3)),
        "gpu_wait_share": rng.choice((None, None, 1.0, rng.random())),
        "cores": rng.choice((2, 8)),
        "foreign_cores": sometimes(1.9, often=0.3),
        "jitter": rng.choice((0.0, 0.03, 0.3)),
        "seed": seed,
    }
    if options["gpu_wait_share"] is not None:
        options["gpu_busy"] = rng.random()
    return make_session(**options)


@pytest.mark.parametrize("seed", range(SESSIONS))
def test_bar_wait_share_percentiles_and_stages_agree(seed: int) -> None:
    session = random_session(seed)
    diagnosis = check_agreement(session)
    assert diagnosis.step_s is not None
    assert diagnosis.share_of_step["other"] == 0, "every measured time has a name"
    if not session.loaders[0].num_workers and session.steps[0].gpu_wait_s is None:
        (row,) = diagnosis.stages
        parts = {"input_cpu": row.cpu_s, "input_queue": row.queue_s, "input_storage": row.blocked_s}
        collated_s = row.collate_s or 0.0
        for name, stage_s in parts.items():
            drawn_s = diagnosis.share_of_step[name] * diagnosis.step_s
            assert drawn_s == pytest.approx(stage_s or 0.0, abs=0.05 * row.wall_s + collated_s + 0.005), name


def test_queueing_for_a_core_while_a_batch_is_made_is_waiting_for_input() -> None:
    diagnosis = check_agreement(make_session(workers=0, cpu_s=0.02, queue_s=0.07, compute_s=0.005, cores=2, foreign_cores=1.9))
    assert diagnosis.wait_share is not None
    assert diagnosis.wait_share > 0.9
    assert diagnosis.share_of_step["core_wait"] < 0.01
    assert diagnosis.share_of_step["input_queue"] > 0.5
    assert diagnosis.verdict == "EXTERNAL_CPU"
    shares = {found.kind: found.share or 0.0 for found in diagnosis.findings}
    assert shares["EXTERNAL_CPU"] + shares["NO_OVERLAP"] == pytest.approx(diagnosis.wait_share, abs=0.01), "counted once"


def test_queueing_of_the_training_thread_beside_workers_is_no_slow_input() -> None:
    session = make_session(workers=4, cpu_s=0.002, compute_s=0.05, next_queue_s=0.03, compute_queue_s=0.01, foreign_cores=3.0)
    diagnosis = check_agreement(session)
    assert diagnosis.share_of_step["input_queue"] > 0.3
    assert diagnosis.verdict == "EXTERNAL_CPU"
    assert not any(found.kind.startswith(("STORAGE", "CPU_PREP")) for found in diagnosis.findings)


def test_queueing_of_the_training_thread_outside_the_input_is_called_waiting_for_a_core() -> None:
    """As in `headrace train` beside other programs: batches are ready, and the training thread gets no core."""
    session = make_session(workers=2, cpu_s=0.002, compute_s=0.1, compute_queue_s=0.075, cores=2, foreign_cores=1.9)
    diagnosis = check_agreement(session)
    assert diagnosis.share_of_step["core_wait"] == pytest.approx(0.75, abs=0.05)
    assert diagnosis.share_of_step["other"] == 0
    assert diagnosis.verdict == "EXTERNAL_CPU"
    screen = terminal.render(diagnosis, width=120).plain
    assert "wait for a core 7" in screen and "other 7" not in screen
    page = html.render(diagnosis)
    assert "<span>waiting for a core</span><b>7" in page and "<span>other</span>" not in page


def test_times_that_overlap_do_not_shrink_the_wait_for_input() -> None:
    diagnosis = check_agreement(make_session(workers=1, cpu_s=0.05, compute_s=0.02, h2d_s=0.02, compute_queue_s=0.018))
    assert diagnosis.share_of_step["compute"] == pytest.approx(0, abs=1e-6)


def test_threads_of_the_script_that_queue_for_a_core_are_not_blocked_by_storage() -> None:
    """No hook sees these batches: a thread of the script makes them. Its CPU use is small because others take the cores."""
    session = make_session(workers=1, cpu_s=0.03, queue_s=0.1, compute_s=0.01, cores=2, foreign_cores=1.8, queue_share=0.84)
    loader = replace(session.loaders[0], family="none", num_workers=0)
    steps = tuple(replace(step, process_cpu_s=0.035) for step in session.steps)
    session = replace(session, loaders=(loader,), batches=(), steps=steps)
    diagnosis = check_agreement(session)
    assert diagnosis.verdict in ("EXTERNAL_CPU", "CPU_PREP")
    assert diagnosis.share_of_step["input_storage"] == 0
    assert diagnosis.share_of_step["input_queue"] > 4 * diagnosis.share_of_step["input_cpu"] > 0
    idle = replace(session, samples=tuple(replace(sample, queue_share=0.0) for sample in session.samples))
    assert check_agreement(idle).share_of_step["input_storage"] > 0.5
