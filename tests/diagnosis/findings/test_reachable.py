"""What the fixes reach is the headline, the ceiling has its own name, and overlapping intervals establish no order."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from headrace.diagnosis.diagnose import diagnose
from headrace.diagnosis.findings.reachable import with_reachable
from headrace.diagnosis.result.model import Diagnosis, Fix
from headrace.report.exports.json import document as json_document
from headrace.report.pages import html
from headrace.report.sessions.share import without_places
from headrace.report.text import terminal
from headrace.report.text.screen import first_screen
from session_factory import example_diagnosis, example_session, make_session


def with_fixes(*fixes: Fix) -> Diagnosis:
    found = example_diagnosis()
    findings = (replace(found.findings[0], fixes=fixes), *found.findings[1:])
    return with_reachable(replace(found, img_s=100.0, ceiling_img_s=3700.0, findings=findings))


def predicted(name: str, img_s: float, low: float, high: float) -> Fix:
    return Fix(name, name, img_s, (low, high), gain=img_s / 100)


def test_headline_is_what_the_best_fix_reaches_and_the_ceiling_has_its_own_name() -> None:
    diagnosis = with_fixes(predicted("num_workers=4", 106.0, 101.0, 112.0), predicted("pack", 100.0, 95.0, 105.0))
    assert diagnosis.reachable_img_s == 106.0
    assert diagnosis.reachable_fix == "num_workers=4"
    assert diagnosis.recoverable_gpu_hours_per_100 == pytest.approx(5.7, abs=0.05)
    for text in (terminal.render(diagnosis, width=120).plain, html.render(diagnosis)):
        assert "×37" not in text
        assert "wasted" not in text
        assert "(+6\xa0% predicted)" in text or "(+6 % predicted)" in text
        assert "ceiling" in text


def test_a_fix_beyond_the_ceiling_is_explained() -> None:
    """`threads=N` can shorten computing too: what it reaches is no contradiction to the ceiling of the input."""
    plain, more = "if the input kept up", "if only the input kept up; the best fix also shortens the rest of the step"
    below, beyond = predicted("pack", 150.0, 120.0, 170.0), predicted("threads=1", 400.0, 300.0, 500.0)
    lucky = replace(below, verified_img_s=210.0, verified_change=2.1)
    for fix, words in ((below, plain), (beyond, more), (lucky, "the best fix was measured above it")):
        found = replace(with_fixes(fix), ceiling_img_s=200.0)
        for text in (terminal.render(found, width=240).plain, html.render(found)):
            assert words in text
            assert (more in text) == (words == more)


def test_a_measured_gain_replaces_a_predicted_one() -> None:
    fix = replace(predicted("num_workers=4", 200.0, 150.0, 250.0), verified_img_s=120.0, verified_change=1.2)
    diagnosis = with_fixes(fix)
    assert diagnosis.reachable_img_s == 120.0
    assert "×1.2 measured" in terminal.render(diagnosis, width=120).plain


def test_a_fix_that_was_measured_and_not_predicted_counts() -> None:
    fix = Fix("threads=1", "threads=1", verified_img_s=310.0, verified_change=3.1)
    diagnosis = with_fixes(predicted("num_workers=4", 150.0, 130.0, 170.0), fix)
    assert (diagnosis.reachable_fix, diagnosis.reachable_img_s) == ("threads=1", 310.0)
    assert [one.id for one in diagnosis.fixes] == ["threads=1", "num_workers=4"], "the best first, as it is called"
    assert "×3.1 measured" in terminal.render(diagnosis, width=120).plain


def test_a_fix_that_was_measured_to_be_useless_is_no_longer_the_best() -> None:
    useless = replace(predicted("pack", 200.0, 150.0, 250.0), verified_img_s=99.0, verified_change=0.99)
    diagnosis = with_fixes(useless, predicted("cache", 120.0, 110.0, 130.0))
    assert diagnosis.reachable_fix == diagnosis.fixes[0].id == "cache"
    assert [line.helps for line in first_screen(diagnosis).fixes] == [True, False]


@pytest.mark.parametrize(
    ("fixes", "words"),
    [
        ((predicted("pack", 101.0, 95.0, 105.0),), "no fix below is predicted to help"),
        ((predicted("pack", 101.0, 95.0, 105.0), Fix("threads=1", "threads=1")), "no fix below has a known gain"),
        ((), None),
    ],
)
def test_where_no_fix_helps_no_hours_are_promised_or_lamented(fixes: tuple[Fix, ...], words: str | None) -> None:
    """Terminal, page, page to share and JSON say the same: the hours that are lost are not the headline."""
    diagnosis = with_fixes(*fixes)
    assert diagnosis.reachable_img_s is None
    assert diagnosis.recoverable_gpu_hours_per_100 is None
    session = example_session()
    shared = without_places(session, diagnosis)
    texts = [
        terminal.render(diagnosis, session=session, width=120, usd_per_hour=4.1).plain,
        html.render(diagnosis, session=session, usd_per_hour=4.1),
        html.render(shared[1], session=shared[0], usd_per_hour=4.1),
    ]
    for text in texts:
        assert "with the best fix" not in text
        assert not re.search(r"100\s(?:GPU-)?hours|\$\d", text), "hours of 100, or their price"
        assert (words or "no fix below") in text.replace("No fix", "no fix") or words is None
        assert words is not None or "no fix below" not in text.lower()
    document = json_document(diagnosis)
    assert document["reachable_img_s"] is document["recoverable_gpu_hours_per_100"] is None


def test_terminal_page_and_json_name_the_same_hours_and_the_same_money() -> None:
    diagnosis = with_fixes(predicted("num_workers=4", 200.0, 150.0, 250.0))
    assert json_document(diagnosis)["recoverable_gpu_hours_per_100"] == 50.0
    assert "best fix saves 50 of 100 GPU-hours ($205)" in terminal.render(diagnosis, width=160, usd_per_hour=4.1).plain
    page = html.render(diagnosis, usd_per_hour=4.1)
    assert "of every 100 GPU-hours saved by the best fix" in page and ">50<" in page and ">$205<" in page


def test_order_of_fixes_is_not_established_when_all_intervals_overlap() -> None:
    overlapping = with_fixes(predicted("pack", 200.0, 150.0, 260.0), predicted("cache", 180.0, 140.0, 240.0))
    apart = with_fixes(predicted("pack", 300.0, 280.0, 320.0), predicted("cache", 180.0, 140.0, 240.0))
    single = with_fixes(predicted("pack", 300.0, 280.0, 320.0))
    assert [found.fix_order_established for found in (overlapping, apart, single)] == [False, True, None]
    note = "order of these fixes is not established"
    for text in (lambda found: terminal.render(found, width=120).plain, html.render):
        assert note in text(overlapping)
        assert note not in text(apart)
        assert note not in text(single)


def test_blocked_batches_without_any_read_are_blocked_with_no_cause_seen() -> None:
    job = {"workers": 2, "cpu_s": 0.002, "blocked_s": 0.1, "compute_s": 0.01}
    unseen, seen = diagnose(make_session(read_bytes=200, **job)), diagnose(make_session(disk_bytes=3_000_000, **job))
    assert unseen.verdict == seen.verdict == "STORAGE_LATENCY"
    assert unseen.confidence <= 0.5 < seen.confidence
    assert [fix.id.partition("=")[0] for fix in unseen.fixes] == ["num_workers"]
    assert {"pack", "cache"} & {fix.id for fix in seen.fixes}
    assert any("blocked, cause not seen" in words for words in unseen.findings[0].evidence)
    for text in (terminal.render(unseen, width=120).plain, html.render(unseen)):
        assert "cause not seen" in text
        assert "storage to answer" not in text
    assert "storage to answer" in terminal.render(seen, width=120).plain


def test_blocked_batches_made_in_the_training_process_get_workers_only() -> None:
    found = diagnose(make_session(workers=0, read_bytes=200, cpu_s=0.002, blocked_s=0.1, compute_s=0.01))
    assert found.verdict == "NO_OVERLAP"
    assert [fix.id.partition("=")[0] for fix in found.fixes] == ["num_workers"]
    assert any("cause not seen" in words for words in found.findings[0].evidence)


def test_bytes_that_were_not_measured_prove_nothing() -> None:
    session = make_session(workers=2, cpu_s=0.002, blocked_s=0.1, compute_s=0.01)
    batches = tuple(replace(batch, read_bytes=None, disk_bytes=None) for batch in session.batches)
    assert diagnose(replace(session, batches=batches)).findings[0].cause_seen
