"""Sessions that others wrote: wrong values are errors in words, and no text acts on a terminal or as a format."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from headrace.cli.main import main
from headrace.diagnosis.diagnose import diagnose
from headrace.diagnosis.endings.victim import find_victim
from headrace.diagnosis.measure.hot_functions import late_resize_words
from headrace.diagnosis.measure.machine import measure_machine
from headrace.diagnosis.measure.rank import measure_ranks
from headrace.diagnosis.measure.series import heat_map
from headrace.diagnosis.result.model import FlameChart, HotFunction
from headrace.errors import SessionError
from headrace.report.exports import perfetto
from headrace.report.sessions.session_folder import DIAGNOSIS_FILE, read_session_folder, write_diagnosis
from headrace.report.sessions.share import without_places
from headrace.session.endings import ProcessEnd, RaisedError
from headrace.session.machine import GpuSample, Sample
from headrace.session.model import Session
from headrace.system.hardware import machine
from session_factory import example_session
from traced_memory import at_most

WRONG = ("x", -1, 1e308, float("nan"), 10**30, [[1]], {})
ACTIVE = "\x1b[2J\u202e\x9b\r"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    session = example_session()
    session.save(tmp_path)
    write_diagnosis(diagnose(session), tmp_path)
    return tmp_path


def change(folder: Path, **changes: Any) -> None:
    file = folder / DIAGNOSIS_FILE
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


@pytest.mark.parametrize("kind", ["--text", "--openmetrics", "--html", "--json"])
def test_a_verdict_is_one_of_ours_and_no_format_string(kind: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change(folder, verdict="{share:>2000000000}")  # it filled 2 GB with spaces before
    assert main(["report", str(folder), kind]) == 1
    assert "there is no kind" in capsys.readouterr().err


def test_openmetrics_prints_no_active_characters(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change(folder, share_of_step={f"wait{ACTIVE}": 0.5}, reachable_fix=f"pack{ACTIVE}", reachable_img_s=3.0)
    assert main(["report", str(folder), "--openmetrics"]) == 0
    printed = capsys.readouterr().out
    assert not {"\x1b", "\u202e", "\x9b", "\r"} & set(printed)
    assert r"pack\\x1b[2J\\u202e\\x9b\\r" in printed


def changed_documents(value: Any, wrong: Any, levels: int = 3) -> list[Any]:
    """The document with one value replaced, for each value in it."""
    if levels == 0 or not isinstance(value, dict | list) or not value:
        return [wrong]
    found = [wrong]
    items = list(value.items()) if isinstance(value, dict) else list(enumerate(value[:2]))
    for key, item in items:
        for other in changed_documents(item, wrong, levels - 1):
            copy = dict(value) if isinstance(value, dict) else list(value)
            copy[key] = other  # type: ignore[index]
            found.append(copy)
    return found


@pytest.mark.matrix(keep=3)
@pytest.mark.parametrize("wrong", WRONG, ids=repr)
def test_wrong_values_in_a_diagnosis_are_errors_in_words_or_harmless(wrong: Any, folder: Path) -> None:
    from headrace.report.exports import openmetrics
    from headrace.report.text import terminal

    file = folder / DIAGNOSIS_FILE
    document = json.loads(file.read_text())
    refused = 0
    for changed in changed_documents({name: document[name] for name in sorted(document)}, wrong, 2):
        file.write_text(json.dumps(changed))
        try:
            session, diagnosis = read_session_folder(folder)
        except SessionError:
            refused += 1
            continue
        terminal.render(diagnosis, session=session)
        openmetrics.render(diagnosis, session)
    assert refused


@pytest.mark.matrix(keep=3)
@pytest.mark.parametrize("wrong", WRONG, ids=repr)
def test_wrong_values_in_a_session_are_errors_in_words_or_harmless(wrong: Any, folder: Path) -> None:
    (folder / DIAGNOSIS_FILE).unlink()
    file = folder / "session.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    first = {line["kind"]: number for number, line in reversed(list(enumerate(lines)))}
    few = [line for number, line in enumerate(lines) if number in first.values() or line["kind"] in ("steps", "batches")][:150]
    first = {line["kind"]: number for number, line in reversed(list(enumerate(few)))}
    refused = 0
    for number in first.values():
        for name in few[number]:
            changed = [*few[:number], {**few[number], name: wrong}, *few[number + 1 :]]
            file.write_text("".join(json.dumps(line) + "\n" for line in changed))
            try:
                read_session_folder(folder)
            except SessionError:
                refused += 1
    assert refused


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        ("session", "started_at", 1e17),
        ("session", "started_at", -1e17),
        ("loader", "num_workers", 1e17),
        ("loader", "num_workers", 10**17),
    ],
)
def test_wrong_values_in_a_session_end_no_page_and_no_trace(kind: str, name: str, value: float, folder: Path) -> None:
    """A year that is none ended the page, and 10^17 workers the trace: never."""
    (folder / DIAGNOSIS_FILE).unlink()
    file = folder / "session.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    changed = [line | {name: value} if line["kind"] == kind else line for line in lines]
    file.write_text("".join(json.dumps(line) + "\n" for line in changed))
    for words in (["--html"], ["--perfetto"], ["--tensorboard"]):
        assert main(["report", str(folder), *words]) == 0


def test_a_link_in_a_session_is_no_folder_to_write_to(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A stranger's folder may hold `tensorboard` as a link to a folder of the reader's."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (folder / "tensorboard").symlink_to(elsewhere)
    assert main(["report", str(folder), "--tensorboard"]) == 1
    assert "is a link, which is not followed" in capsys.readouterr().err
    assert not list(elsewhere.iterdir())
    assert main(["report", str(folder), "--tensorboard", "--out", str(elsewhere)]) == 0


def rewritten(folder: Path, changed: Callable[[dict[str, Any]], list[dict[str, Any]]]) -> None:
    """Write the session without a diagnosis, and each line as what `changed` makes of it."""
    (folder / DIAGNOSIS_FILE).unlink(missing_ok=True)
    file = folder / "session.jsonl"
    lines = [new for line in file.read_text().splitlines() for new in changed(json.loads(line))]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize(
    "job",
    [
        {"usd": "x"},
        {"epoch_s": [1]},
        {"seconds": True},
        {"instances": [1]},
        {"rules": [{"rule": "r", "fires": 0.5, "why": "w"}]},
    ],
    ids=repr,
)
def test_values_that_no_page_can_show_are_an_error_in_words(
    job: dict[str, Any], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Facts have no fixed types, so only the panel that shows one finds out. Each ended in a traceback."""
    fact = {"kind": "fact", "name": "sagemaker_job", "value": job}
    rewritten(folder, lambda line: [line, fact] if line["kind"] == "session" else [line])
    assert main(["report", str(folder), "--html"]) == 1
    assert "cannot be shown: its values contradict each other" in capsys.readouterr().err


def test_jobs_that_cannot_be_compared_are_an_error_in_words(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their ratio is no number that can be rounded."""
    places = []
    for name, seconds in (("a", 1e-320), ("b", 1e18)):
        session = replace(example_session(), facts={"sagemaker_job": {"billable_s": seconds}})
        places.append(str(session.save(tmp_path / name)))
    assert main(["compare", *places]) == 1
    assert "cannot be compared: its values contradict each other" in capsys.readouterr().err


def test_settings_of_any_number_are_compared_in_a_moment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each was looked for in all: a session of a megabyte took minutes."""
    places = []
    for value in "ab":
        job = {"hyperparameters": {f"k{number}": value for number in range(20_000)}}
        places.append(str(replace(example_session(), facts={"sagemaker_job": job}).save(tmp_path / value)))
    began_s = time.process_time()
    assert main(["compare", *places]) == 0
    assert time.process_time() - began_s < 10
    assert "and 19,800 more: --json lists all" in capsys.readouterr().out
    long = [str(replace(example_session(), command=(name * 3_000_000,)).save(tmp_path / name)) for name in "cd"]
    assert main(["compare", *long]) == 0
    assert len(capsys.readouterr().out) < 20_000


@pytest.mark.parametrize("values", [{"core_busy": [0.5] * 9000}, {"gpus": [{"index": 0}] * 9000}], ids=["cores", "gpus"])
def test_a_sample_of_more_cores_than_any_machine_has_is_refused(values: dict[str, Any], folder: Path) -> None:
    """One sample of a million cores gave each of the others as many: gigabytes of a heat map from 2 MB."""
    line = {"kind": "sample", "time_s": 1.0, "interval_s": 0.5, **values}
    rewritten(folder, lambda old: [old, line] if old["kind"] == "session" else [old])
    with pytest.raises(SessionError, match="a sample of more than 8,192 cores or GPUs"):
        read_session_folder(folder)


def test_an_affinity_that_names_a_core_again_and_again_takes_no_memory() -> None:
    session = example_session()
    host = replace(session.host, affinity=(1,) * 200_000)
    with at_most(len(session.samples) * 200_000):
        found = measure_machine(replace(session, host=host), ())
    assert len(found.core_busy) == 1


def test_a_heat_map_takes_the_mean_of_those_samples_that_have_the_core() -> None:
    samples = [Sample(0.5 * number, 0.5, core_busy=(0.5,) * (1 + number % 2)) for number in range(4)]
    found = heat_map(Session(samples=(*samples, replace(samples[1], core_busy=(0.0, 1.0, 0.25), gpus=(GpuSample(0, 0.5),)))))
    assert found is not None
    assert found.cores == ((0.5, 0.5, 0.5, 0.5, 0.0), (None, 0.5, None, 0.5, 1.0), (None, None, None, None, 0.25))
    assert found.gpus == ((None, None, None, None, 0.5),)


def test_steps_of_any_number_of_processes_take_no_time_for_each_other() -> None:
    """Each process looked at the steps of all: ten thousand of them took minutes."""
    session = example_session()
    steps = tuple(replace(session.steps[0], pid=10_000 + number) for number in range(10_000))
    began_s = time.process_time()
    assert len(measure_ranks(replace(session, steps=session.steps + steps))) == 1
    assert time.process_time() - began_s < 3


def test_a_text_without_addresses_is_shared_in_a_moment() -> None:
    """80 kB of it took 20 seconds, and a megabyte an hour."""
    session = replace(example_session(), command=("a." * 20_000,))
    began_s = time.process_time()
    shared, _ = without_places(session, diagnose(session))
    assert shared.command == session.command
    assert time.process_time() - began_s < 3


def test_a_long_address_is_shared_in_a_moment() -> None:
    """20 kB of one took 20 seconds, and a megabyte hours."""
    session = replace(example_session(), command=(f"s3://{'x' * 20_000}/photos/", "gs://own/cat.jpg,s3://own", "file:///"))
    began_s = time.process_time()
    shared, _ = without_places(session, diagnose(session))
    assert shared.command == ("s3://…/photos", "gs://…/cat.jpg,s3://…/own", "file://…")
    assert time.process_time() - began_s < 3


def test_a_long_name_of_a_transform_is_searched_in_a_moment() -> None:
    """16 kB of one took ten seconds, and a megabyte half a day."""
    session = example_session()
    session = replace(session, loaders=tuple(replace(one, transform="a" * 40_000) for one in session.loaders))
    began_s = time.process_time()
    assert late_resize_words(session, session.loaders[0].transform) == ()
    assert time.process_time() - began_s < 3


@pytest.mark.parametrize("words", ["DataLoader worker (pid 1", "DataLoader worker (pid 1) is killed by signal: x"])
def test_a_long_error_is_searched_in_a_moment(words: str) -> None:
    """A message of 500 kB that begins to name a lost worker again and again took half a minute."""
    began_s = time.process_time()
    end = ProcessEnd(1, 1.0, "exception", errors=(RaisedError("RuntimeError", words * 20_000),))
    assert find_victim(example_session(), end) is None
    assert time.process_time() - began_s < 3


def test_a_loader_that_is_listed_twice_has_its_arrows_once() -> None:
    """A trace looked at all steps and batches for each line of a loader."""
    session = example_session()
    assert perfetto.trace(replace(session, loaders=session.loaders * 2)) == perfetto.trace(session)


def test_a_heat_map_of_rows_of_any_length_takes_no_memory(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A row of a megabyte and a million short ones were a picture of a terabyte."""
    drawn = json.loads((folder / DIAGNOSIS_FILE).read_text())["heat_map"]
    change(folder, heat_map=drawn | {"gpus": [[0.5] * 4000, *([[0.5]] * 4000)]})
    with at_most(12 << 20):
        assert main(["report", str(folder), "--html"]) == 1
    assert "rows of one length" in capsys.readouterr().err


def test_a_process_stands_once_in_a_sample_of_a_standstill(folder: Path) -> None:
    """A few megabytes of one process, again and again, took hours to judge."""
    line = {"kind": "standstill", "time_s": 9.0, "since_s": 1.0, "processes": [{"pid": 7}, {"pid": 7}]}
    rewritten(folder, lambda old: [old, line] if old["kind"] == "session" else [old])
    with pytest.raises(SessionError, match="two processes of one number"):
        read_session_folder(folder)


def test_the_files_of_a_session_together_take_no_more_than_the_free_memory(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each file alone is within its limit."""
    rewritten(folder, lambda line: [line])
    monkeypatch.setenv("HEADRACE_RECORD_LIMIT", "1MiB")
    for number in range(4):
        (folder / f"process-{number}.jsonl").write_text('{"kind":"steps","rows":[' + "0," * 30_000 + "0]}\n")
    free = machine.Memory(1 << 34, 1 << 23, None)
    monkeypatch.setattr(machine, "memory", lambda: free)
    with pytest.raises(SessionError, match=r"take 11\.\d MiB or more in memory, and 8\.0 MiB are free"):
        read_session_folder(folder)


def with_stacks(folder: Path, stacks: list[Any]) -> None:
    """Write a session without a diagnosis that holds these stacks only."""
    (folder / DIAGNOSIS_FILE).unlink()
    file = folder / "session.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    pid = next(line["pid"] for line in lines if line["kind"] == "loader")
    own = {"kind": "stacks", "pid": pid, "role": "batch", "loader": 0, "stacks": stacks}
    kept = [line for line in lines if line["kind"] != "stacks"]
    file.write_text("".join(json.dumps(line) + "\n" for line in [*kept, own]))


def test_a_stack_of_any_depth_is_refused(folder: Path) -> None:
    """One of 20,000 functions, a line of a megabyte, took four minutes."""
    with_stacks(folder, [[1, 0, [[f"f{depth}", "a.py", depth] for depth in range(20_000)]]])
    with pytest.raises(SessionError, match="a stack of 20,000 functions"):
        read_session_folder(folder)


def test_stacks_too_rare_to_be_drawn_end_no_page(folder: Path) -> None:
    with_stacks(folder, [[1, 0, [[f"f{number}", "a.py", number]]] for number in range(3000)])
    assert main(["report", str(folder), "--html"]) == 0
    session = Session.load(folder)
    write_diagnosis(replace(diagnose(session), flame_charts=(FlameChart("batch", 3000, ()),)), folder)
    assert main(["report", str(folder), "--html"]) == 0


def test_functions_of_an_unknown_role_end_no_page(folder: Path) -> None:
    _, diagnosis = read_session_folder(folder)
    function = HotFunction("<role>", "<own>", "a.py", 3, 0.5, 0.5)
    charts = (FlameChart("<chart>", 3, ()),)
    write_diagnosis(replace(diagnosis, hot_functions=(function,), flame_charts=charts), folder)
    assert main(["report", str(folder), "--html"]) == 0
    page = (folder / "report.html").read_text()
    for name in ("role", "own", "chart"):
        assert f"&lt;{name}&gt;" in page and f"<{name}>" not in page


def test_a_session_holds_a_bounded_number_of_values(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / DIAGNOSIS_FILE).unlink()
    monkeypatch.setenv("HEADRACE_RECORD_LIMIT", "1MiB")
    for text in ('{"kind":"steps","rows":[' + "[]," * 100_000 + "[]]}\n", '{"kind":0}\n' * 40_000):
        (folder / "session.jsonl").write_text(text)
        with at_most(4 << 20), pytest.raises(SessionError, match="values, more than the limit of 65,536"):
            read_session_folder(folder)


def test_deep_json_is_an_error_in_words(folder: Path) -> None:
    (folder / DIAGNOSIS_FILE).write_text('{"a":' * 100_000)
    with pytest.raises(SessionError, match="not a diagnosis"):
        read_session_folder(folder)
    (folder / DIAGNOSIS_FILE).unlink()
    (folder / "session.jsonl").write_text('{"kind":' * 100_000)
    with pytest.raises(SessionError):
        read_session_folder(folder)
