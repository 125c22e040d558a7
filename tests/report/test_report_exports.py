"""The exports: JSON with its schema, Perfetto trace, OpenMetrics text, TensorBoard events."""

from __future__ import annotations

import gzip
import json
import re
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from headrace.diagnosis.result.model import Diagnosis
from headrace.errors import SessionError
from headrace.report.exports import openmetrics, perfetto, tensorboard
from headrace.report.exports.json import document, schema
from headrace.session.model import Event, Session
from session_factory import example_diagnosis, example_session

SCHEMA_FILE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "diagnosis.schema.json"
EMPTY = Diagnosis("INSUFFICIENT_DATA", 0.0, {}, (), None, None, ())
TYPES: dict[str, Any] = {"string": str, "integer": int, "number": (int, float), "boolean": bool, "object": dict, "array": list}


def check(value: Any, rule: dict[str, Any], root: dict[str, Any], where: str = "$") -> None:
    """The parts of JSON Schema that our schema uses."""
    known = {"$ref", "anyOf", "const", "enum", "type", "properties", "required", "additionalProperties", "items", "prefixItems"}
    also = {"minItems", "maxItems", "minimum", "maximum", "description", "$schema", "$id", "title", "$defs"}
    assert rule.keys() <= known | also, where
    if "$ref" in rule:
        return check(value, root["$defs"][rule["$ref"].rsplit("/", 1)[1]], root, where)
    if "anyOf" in rule:
        return _check_any(value, rule["anyOf"], root, where)
    assert value == rule.get("const", value), where
    assert value in rule.get("enum", [value]), where
    if rule.get("type") == "null":
        assert value is None, where
    elif "type" in rule:
        assert isinstance(value, TYPES[rule["type"]]), f"{where}: {value!r} is not {rule['type']}"
    if isinstance(value, dict):
        assert set(rule.get("required", ())) <= value.keys(), where
        for key, item in value.items():
            check(item, rule.get("properties", {}).get(key, rule.get("additionalProperties", {})), root, f"{where}.{key}")
    if isinstance(value, list):
        assert rule.get("minItems", 0) <= len(value) <= rule.get("maxItems", len(value)), where
        for number, item in enumerate(value):
            inner = rule["prefixItems"][number] if "prefixItems" in rule else rule.get("items", {})
            check(item, inner, root, f"{where}[{number}]")
    if isinstance(value, int | float):
        assert rule.get("minimum", value) <= value <= rule.get("maximum", value), where
    return None


def _check_any(value: Any, rules: list[dict[str, Any]], root: dict[str, Any], where: str) -> None:
    failures = []
    for rule in rules:
        try:
            return check(value, rule, root, where)
        except AssertionError as error:
            failures.append(str(error))
    raise AssertionError(f"{where}: fits none of {len(rules)}: {failures}")


def as_json(value: Any) -> Any:
    return json.loads(json.dumps(value, allow_nan=False))


def test_the_published_schema_is_that_of_the_code() -> None:
    assert json.loads(SCHEMA_FILE.read_text()) == schema(), "write it anew: make results"


@pytest.mark.parametrize("diagnosis", [example_diagnosis(), EMPTY], ids=["example", "empty"])
@pytest.mark.parametrize("panels", [True, False])
def test_document_fits_the_schema(diagnosis: Diagnosis, panels: bool) -> None:
    made = as_json(document(diagnosis, panels=panels))
    check(made, schema(), schema())
    assert ("heat_map" in made) == panels


def test_the_schema_refuses_wrong_documents() -> None:
    good = as_json(document(example_diagnosis()))
    for wrong in ({"verdict": "SLOW"}, {"confidence": "high"}, {"format_version": 1}, {"share_of_step": {"compute": 1.2}}):
        with pytest.raises(AssertionError):
            check(good | wrong, schema(), schema())
    with pytest.raises(AssertionError):
        check({key: value for key, value in good.items() if key != "findings"}, schema(), schema())


def two_loaders_that_take_turns() -> Session:
    """Return a session of a script that draws from two loaders in each step: the steps of the one overlap the other's."""
    session = example_session()
    second = [replace(step, loader=1, start_s=step.start_s + step.wait_s / 2) for step in session.steps]
    return replace(session, steps=tuple(sorted((*session.steps, *second), key=lambda step: step.start_s)))


def unrounded() -> Session:
    """Return a session whose steps follow each other without a gap, at times that are no whole microseconds."""
    steps, now_s = [], 2.0
    for number, step in enumerate(example_session().steps):
        one = replace(step, start_s=now_s, wait_s=0.003 + number * 1.3e-7, compute_s=0.001 + number * 2.7e-7)
        now_s += one.wait_s + one.compute_s - 3e-10  # a clock's rounding
        steps.append(one)
    return replace(example_session(), steps=tuple(steps))


def overlapping_pauses() -> Session:
    inside = Event(1000, "gc", 3.1, 0.5, None)  # begins within the checkpoint of the example and ends after it
    return replace(example_session(), events=(*example_session().events, inside))


@pytest.mark.parametrize("make", [example_session, overlapping_pauses, two_loaders_that_take_turns, unrounded])
def test_slices_of_a_track_nest_exactly_and_never_overlap(make: Callable[[], Session]) -> None:
    session = make()
    open_slices: dict[tuple[int, int], list[tuple[int, int]]] = {}
    slices = [event for event in perfetto.trace(session)["traceEvents"] if event["ph"] == "X"]
    for event in slices:  # in the order of the file, as a reader meets them
        start, end = event["ts"], event["ts"] + event["dur"]
        stack = open_slices.setdefault((event["pid"], event["tid"]), [])
        while stack and stack[-1][1] <= start:
            stack.pop()
        assert not stack or (stack[-1][0] <= start and end <= stack[-1][1]), event
        stack.append((start, end))
    assert sum(event["name"].startswith("step ") for event in slices) == len(session.steps)


def test_each_loader_has_a_track_of_its_own() -> None:
    names = [event for event in perfetto.trace(two_loaders_that_take_turns())["traceEvents"] if event["name"] == "thread_name"]
    named = {event["args"]["name"] for event in names if event["pid"] == 1000}
    assert {"steps of loader 0", "steps of loader 1"} <= named
    assert len({(event["pid"], event["tid"]) for event in names}) == len(names)


def test_events_fit_the_trace_event_format_and_stand_in_the_order_of_time() -> None:
    session = example_session()
    early = replace(session.samples[0], time_s=-0.01)  # taken while the command started
    made = as_json(perfetto.trace(replace(session, samples=(early, *session.samples))))
    assert made["displayTimeUnit"] in ("ms", "ns")
    fields = {"X": {"pid", "tid", "name", "ts", "dur", "args"}, "M": {"pid", "tid", "name", "args"},
              "C": {"pid", "name", "ts", "args"}, "s": {"pid", "tid", "name", "ts", "cat", "id"},
              "f": {"pid", "tid", "name", "ts", "cat", "id", "bp"}}  # fmt: skip
    times = [event["ts"] for event in made["traceEvents"] if event["ph"] != "M"]
    assert times == sorted(times)
    for event in made["traceEvents"]:
        assert event.keys() - {"ph"} == fields[event["ph"]], event
        assert all(isinstance(event[key], int) and event[key] >= 0 for key in ("pid", "tid", "ts", "dur") if key in event)
        if event["ph"] == "C":
            assert all(isinstance(value, int | float) for value in event["args"].values())


def test_an_arrow_leads_from_each_batch_to_its_step() -> None:
    events = perfetto.trace(example_session())["traceEvents"]
    begins = {event["id"]: event for event in events if event["ph"] == "s"}
    ends = {event["id"]: event for event in events if event["ph"] == "f"}
    assert begins.keys() == ends.keys()
    assert len(begins) == len(example_session().steps)
    assert all(begins[one]["ts"] <= ends[one]["ts"] for one in begins)
    batches = [event for event in events if event["name"] == "batch"]
    for arrow in begins.values():  # it begins inside one batch, not where the next begins too
        around = [one for one in batches if (one["pid"], one["tid"]) == (arrow["pid"], arrow["tid"])
                  and one["ts"] <= arrow["ts"] < one["ts"] + one["dur"]]  # fmt: skip
        assert len(around) == 1


def test_no_arrows_where_batches_and_steps_cannot_be_paired() -> None:
    session = example_session()
    events = perfetto.trace(replace(session, batches=session.batches[:-3]))["traceEvents"]
    assert sum(event["ph"] == "s" for event in events) < len(session.steps) - 3


def test_counters_have_no_point_for_what_was_not_measured() -> None:
    events = [event for event in perfetto.trace(example_session())["traceEvents"] if event["ph"] == "C"]
    names = {event["name"] for event in events}
    assert "GPU 0 busy %" in names and "memory GiB" in names
    assert "disk MB/s" not in names
    assert perfetto.trace(Session())["traceEvents"] == [
        {"ph": "M", "pid": 0, "tid": 0, "name": "process_name", "args": {"name": "machine"}}
    ]


def test_trace_file_is_reproducible_and_compressed(tmp_path: Path) -> None:
    first, second = (perfetto.write(example_session(), tmp_path / name / "trace.json.gz") for name in ("a", "b"))
    assert first.read_bytes() == second.read_bytes()
    assert json.loads(gzip.decompress(first.read_bytes())) == as_json(perfetto.trace(example_session()))
    with pytest.raises(SessionError, match="cannot write"):
        perfetto.write(example_session(), first / "below-a-file.json")


LINE = re.compile(r'(# (TYPE|HELP|UNIT) [a-z_]+ .+|[a-z_]+(\{[a-z]+="([^"\\\n]|\\.)*"\})? \S+|# EOF)')


def test_openmetrics_text_is_well_formed() -> None:
    diagnosis = example_diagnosis()
    odd = replace(diagnosis.findings[0].fixes[0], id='a"b\\c\nd')
    diagnosis = replace(diagnosis, findings=(replace(diagnosis.findings[0], fixes=(odd,)),))
    lines = openmetrics.render(diagnosis, example_session()).splitlines()
    assert all(LINE.fullmatch(line) for line in lines), [line for line in lines if not LINE.fullmatch(line)]
    assert lines[-1] == "# EOF"
    assert 'headrace_verdict_info{verdict="CPU_PREP"} 1' in lines
    assert "headrace_input_wait_ratio 0.6" in lines
    assert f"headrace_step_seconds_count {len(example_session().steps)}" in lines
    buckets = [float(line.split()[-1]) for line in lines if line.startswith("headrace_step_seconds_bucket")]
    assert buckets == sorted(buckets) and buckets[-1] == len(example_session().steps)


def test_openmetrics_has_the_rate_with_the_best_fix() -> None:
    made = openmetrics.render(example_diagnosis(), example_session())
    assert 'headrace_reachable_images_per_second{fix="headrace_run"} 1540' in made


def test_openmetrics_has_no_sample_of_what_was_not_measured() -> None:
    made = openmetrics.render(EMPTY, Session())
    assert "images_per_second" not in made and "step_seconds" not in made
    assert made.endswith("# EOF\n")


def crc32c(data: bytes) -> int:
    """CRC-32C bit by bit (polynomial 0x1EDC6F41, reflected), independent of ours."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data: bytes) -> int:
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def test_tensorboard_events_read_back(tmp_path: Path) -> None:
    session = replace(example_session(), steps=example_session().steps[:3], samples=example_session().samples[:1])
    data = tensorboard.write(session, tmp_path).read_bytes()
    expected = list(tensorboard.scalars(session))
    events, at = [], 0
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        body = data[at + 12 : at + 12 + length]
        assert struct.unpack_from("<I", data, at + 8)[0] == masked(data[at : at + 8])
        assert struct.unpack_from("<I", data, at + 12 + length)[0] == masked(body)
        events.append(body)
        at += 16 + length
    assert b"brain.Event:2" in events[0]
    assert len(events) == 1 + len(expected)
    for body, (time_s, _, tag, value) in zip(events[1:], expected, strict=True):
        assert struct.unpack_from("<d", body, 1)[0] == pytest.approx((session.started_at or 0) + time_s)
        assert tag.encode() in body
        assert struct.unpack("<f", body[-4:])[0] == pytest.approx(value, rel=1e-6)


def test_tensorboard_has_no_point_for_what_was_not_measured() -> None:
    tags = {tag for _, _, tag, _ in tensorboard.scalars(example_session())}
    assert {"rank 0/step_seconds", "machine/gpu_0_busy"} <= tags
    assert "machine/disk_read_bytes_per_second" not in tags
