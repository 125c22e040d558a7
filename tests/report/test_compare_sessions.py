"""`compare_sessions`: faster only beyond the noise, parts of the step that changed, settings that differ."""

from __future__ import annotations

import json
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from headrace.cli.main import main
from headrace.diagnosis.diagnose import diagnose
from headrace.report.pages import compare_page
from headrace.report.sessions.compare_sessions import SessionComparison, compare_sessions
from headrace.report.sessions.session_settings import LOADER_FIELDS, differences
from headrace.session.model import ObservedLoader, Session
from session_factory import make_session


def compared(before: Session, after: Session) -> SessionComparison:
    return compare_sessions(before, after, diagnose(before), diagnose(after))


def test_more_workers_are_seen_as_the_cause_of_a_faster_run() -> None:
    found = compared(make_session(workers=1, cpu_s=0.06), make_session(workers=4, cpu_s=0.06))
    assert found.word == "faster"
    assert found.change is not None and found.change > 2
    assert [(one.name, one.before, one.after) for one in found.differences] == [("num_workers", "1", "4")]
    assert found.moved[0].part == "input_cpu" and found.moved[0].change_s < -0.02
    assert "faster" in found.sentences[0] and found.sentences[2].startswith("Per step, waiting for input: decode")


def test_equal_runs_that_differ_by_noise_are_about_the_same() -> None:
    found = compared(make_session(jitter=0.1, seed=1), make_session(jitter=0.1, seed=2))
    assert found.word == "about the same"
    assert found.differences == ()
    assert found.noise is not None and 0 < found.noise < 0.2


def test_fewer_workers_are_slower() -> None:
    assert compared(make_session(workers=4, cpu_s=0.06), make_session(workers=1, cpu_s=0.06)).word == "slower"


def test_steps_of_other_size_are_compared_per_image() -> None:
    found = compared(make_session(batch_size=32), make_session(batch_size=64))
    assert found.per == "1,000 images"
    assert found.change == pytest.approx(2, rel=0.05)
    assert sum(part.before_s or 0 for part in found.moved) == pytest.approx(1000 / (found.before_img_s or 1))


def printed(before: Session, after: Session, folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What `headrace compare` prints, and its page up to the settings."""
    places = [str(session.save(folder / name)) for session, name in ((before, "a"), (after, "b"))]
    assert main(["compare", *places]) == 0
    return capsys.readouterr().out + compared_page(before, after).partition("<main")[2].partition('id="settings"')[0]


@pytest.mark.parametrize("noise_s", [-2.46e-6, 2.46e-6, -4e-9, 0.0])
def test_times_have_the_digits_that_a_step_deserves(tmp_path: Path, capsys: pytest.CaptureFixture[str], noise_s: float) -> None:
    """Two clocks that disagree by microseconds print no -0.00246 ms, and a part of no weight is not shown."""

    def with_part(session: Session) -> Session:
        return replace(session, steps=tuple(replace(step, h2d_s=noise_s) for step in session.steps))

    sessions = with_part(make_session(workers=1, cpu_s=0.06)), with_part(make_session(workers=4, cpu_s=0.06))
    for session in sessions:
        assert min(diagnose(session).share_of_step.values()) >= 0
    text = printed(*sessions, tmp_path, capsys)
    assert not re.search(r"[-−]\d[\d.]* ms (?:before|after)|\d\.\d{3,}\s*ms|e-\d\d|[-+−]0 (?:%|ms)|\d{4,}\.\d ms", text), text
    assert re.search(r"[−+]\d\d\.\d\s*ms", text), "the change itself, to a tenth of a millisecond of 60"


def test_differences_within_the_noise_are_said_to_be_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = make_session(jitter=0.1, seed=1), make_session(jitter=0.1, seed=2)
    found = compared(one, other)
    assert all(part.within_noise for part in found.moved)
    text = printed(one, other, tmp_path, capsys)
    assert "about the same" in text and "within the noise: equal runs could differ by" in text.replace("\xa0", " ")
    assert "within noise" in text and not re.search(r"[+−]\d+\.\d ms", text)
    assert len(found.sentences) == 2, "no part is named as changed"
    faster = compared(make_session(workers=1, cpu_s=0.06), make_session(workers=4, cpu_s=0.06))
    assert faster.moved[0].within_noise is False and "within the noise" not in faster.sentences[0]
    short = compared(make_session(steps=12), make_session(steps=12, seed=1))
    assert {part.within_noise for part in short.moved} == {None}, "unknown is not called noise"


def test_equal_sessions_have_no_change_to_show(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(make_session(), make_session(), tmp_path, capsys)
    assert "±0 %" in text.replace("\xa0", " ") and "none" in text and "-0" not in text.replace("\xa0", " ")


def test_a_notebook_shows_the_sentences_and_the_parts_of_the_step() -> None:
    found = compared(make_session(workers=1, cpu_s=0.06), make_session(workers=4, cpu_s=0.06))
    html = replace(found, sentences=(*found.sentences, "<script>\x1b[2J"))._repr_html_()
    assert found.moved[0].label in html and html.count("<tr>") == 1 + len(found.shown)
    assert "faster" in html and "<script>" not in html and "\x1b" not in html


def test_a_session_without_steps_is_not_comparable() -> None:
    found = compared(Session(), make_session())
    assert found.word == "not comparable" and found.change is None and found.noise is None
    assert "not measured" in found.sentences[0]


def test_short_runs_have_no_known_noise() -> None:
    short = make_session(steps=12)
    assert compared(short, replace(short)).noise is None


@pytest.mark.parametrize("as_json", [True, False])
def test_the_verb_prints_json_or_sentences(tmp_path: Path, capsys: pytest.CaptureFixture[str], as_json: bool) -> None:
    before = make_session(workers=1, cpu_s=0.06).save(tmp_path / "a")
    after = make_session(workers=4, cpu_s=0.06).save(tmp_path / "b")
    assert main(["compare", str(before), str(after), *(["--json"] if as_json else [])]) == 0
    out = capsys.readouterr().out
    if as_json:
        assert json.loads(out)["word"] == "faster"
    else:
        assert "The second run is faster" in out and "num_workers" in out


def test_the_verb_names_a_missing_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(tmp_path / "none"), str(tmp_path)]) == 1
    assert str(tmp_path / "none") in capsys.readouterr().err


def with_process(session: Session, **changes: Any) -> Session:
    return replace(session, processes=tuple(replace(one, **changes) for one in session.processes if one.role == "main"))


def named(before: Session, after: Session) -> dict[str, tuple[str, str, str]]:
    return {one.name: (one.group, one.before, one.after) for one in differences(before, after)}


def test_everything_that_was_set_differently_is_listed() -> None:
    plain = make_session()
    before = with_process(plain, versions={"numpy": "2.2", "timm": "1.0"}, environment={"OMP_NUM_THREADS": "8"},
                          thread_settings={"torch": 8, "cv2": 8}, python="3.11.7")  # fmt: skip
    after = with_process(plain, versions={"numpy": "2.3"}, environment={"OMP_NUM_THREADS": "1", "CUDA_LAUNCH_BLOCKING": "1"},
                         thread_settings={"torch": 1, "cv2": 8}, torch_threads=1, python="3.12.1", world_size=2)  # fmt: skip
    after = replace(
        after,
        command=("python", "train.py", "--amp"),
        host=replace(after.host, quota_cores=2.0, kernel="6.8", memory_limit_bytes=1 << 30),
        loaders=tuple(replace(one, pin_memory=True, take_over="active") for one in after.loaders),
        facts={"configuration": {"optimizer": "AdamW", "lr": 0.001, "autocast": "bfloat16"}},
    )
    before = replace(before, facts={"configuration": {"optimizer": "SGD", "lr": 0.1, "autocast": None}})
    assert named(before, after) == {
        "command": ("command", "python train.py", "python train.py --amp"),
        "cores": ("machine", "4", "2"),
        "CPU quota in cores": ("machine", "unknown", "2"),
        "kernel": ("machine", "6.1", "6.8"),
        "memory limit": ("machine", "unknown", "1 GiB"),
        "ranks": ("machine", "1", "2"),
        "Python": ("versions", "3.11.7", "3.12.1"),
        "numpy": ("versions", "2.2", "2.3"),
        "timm": ("versions", "1.0", "not used"),
        "OMP_NUM_THREADS": ("variables", "8", "1"),
        "CUDA_LAUNCH_BLOCKING": ("variables", "not set", "1"),
        "torch threads": ("threads", "8", "1"),
        "pin_memory": ("loader", "no", "yes"),
        "headrace run": ("loader", "no", "yes"),
        "optimizer": ("model", "SGD", "AdamW"),
        "learning rate": ("model", "0.1", "0.001"),
        "autocast": ("model", "none", "bfloat16"),
    }


def test_the_address_of_an_own_transform_is_no_difference() -> None:
    def with_transform(transform: str) -> Session:
        session = make_session()
        return replace(session, loaders=tuple(replace(one, transform=transform) for one in session.loaders))

    one, other = (with_transform(f"Compose(<Own object at {at}>)") for at in ("0x7f310d7db390", "0x7f0a21c4e0d0"))
    assert named(one, other) == {}
    assert named(one, with_transform("Compose(<Other object at 0x7f310d7db390>)"))["transform"][1:] == (
        "Compose(<Own object>)", "Compose(<Other object>)"
    )  # fmt: skip


def test_what_an_older_session_did_not_record_is_no_difference() -> None:
    older = make_session()
    newer = with_process(older, versions={"numpy": "2.3"}, environment={"CUDA_VISIBLE_DEVICES": "0"})
    assert named(older, newer) == {}
    assert named(older, replace(newer, facts={"configuration": {"optimizer": "SGD"}})) == {}


def test_every_field_of_a_loader_is_compared_or_known_not_to_be_a_setting() -> None:
    facts = {"pid", "loader", "sample_paths", "overridden", "pipeline", "remade", "image_folder"}
    facts |= {"take_over", "take_over_reason", "native_part", "passes", "pass_start_s", "pass_stop_s"}
    assert {field.name for field in fields(ObservedLoader)} == facts | set(LOADER_FIELDS)


def compared_page(before: Session, after: Session, names: tuple[str, str] = ("a", "b")) -> str:
    was, now = diagnose(before), diagnose(after)
    sides = compare_page.Side("Before", names[0], before, was), compare_page.Side("After", names[1], after, now)
    return compare_page.render(compare_sessions(before, after, was, now), *sides)


def test_the_page_draws_both_runs_to_one_scale_of_step_times() -> None:
    page = compared_page(make_session(workers=1, cpu_s=0.06), make_session(workers=4, cpu_s=0.06))
    widths = [float(width) for width in re.findall(r'<div style="width:([\d.]+)%"><div class="bar">', page)]
    assert len(widths) == 2 and widths[0] == 100
    assert widths[1] == pytest.approx(100 * 0.0205 / 0.0605, rel=0.1)
    assert page.count('class="cells"') == 2, "two heat maps"
    scales = [re.findall(r"bottom:([\d.]+)%\"><span>(\d+ ms)", part) for part in page.split('class="run"')[1:]]
    assert scales[0] == scales[1]
    assert "num_workers" in page and "The second run is faster" in page
    assert page.count(">before<") == page.count(">after<")
    assert "<script" not in page and "http" not in page.replace("http-equiv", "")
    assert len(page) < 500_000


def test_the_page_of_sessions_without_steps_says_so() -> None:
    page = compared_page(Session(), make_session())
    assert "not measured" in page and "Nothing was recorded over time" in page
    assert "The rates cannot be compared" in page


def test_names_from_a_run_are_escaped_on_the_page() -> None:
    hostile = "<script>alert(1)</script>\x1b[31m"
    session = replace(make_session(), command=("python", hostile), cwd=hostile)
    page = compared_page(session, make_session(), (hostile, "b"))
    assert "<script" not in page and "&lt;script&gt;" in page and "\x1b" not in page


def test_the_verb_writes_a_private_page_or_one_to_share(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = replace(make_session(workers=1, cpu_s=0.06), command=("python", "/home/me/secret-project/train.py")).save(
        tmp_path / "a"
    )
    after = make_session(workers=4, cpu_s=0.06).save(tmp_path / "b")
    assert main(["compare", str(before), str(after), "--html", "--json"]) == 0
    page = Path(json.loads(capsys.readouterr().out)["page"])
    assert page == after / "comparison.html" and page.stat().st_mode & 0o777 == 0o600
    assert "secret-project" in page.read_text()
    shared = tmp_path / "shared.html"
    assert main(["compare", str(before), str(after), "--html", "--share", "--out", str(shared)]) == 0
    assert str(shared) in capsys.readouterr().out
    text = shared.read_text()
    assert "secret-project" not in text and "…/train.py" in text and ">box<" not in text
    assert main(["compare", str(before), str(after), "--out", str(shared)]) == 2
