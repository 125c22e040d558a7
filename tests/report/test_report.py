"""The report: terminal and page agree, the page is one safe file, and a value that was not measured is never a number."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from headrace.diagnosis.diagnose import diagnose
from headrace.diagnosis.result.kinds import KINDS
from headrace.diagnosis.result.model import NOTES, SHARES, Diagnosis, Finding, Fix, Note
from headrace.errors import SessionError
from headrace.report.pages import html
from headrace.report.sessions.share import without_places
from headrace.report.text import numbers, terminal
from headrace.report.text.screen import capitalised, first_screen
from headrace.report.text.shown_diagnosis import shown
from headrace.report.text.step_parts import STEP_PARTS
from headrace.report.text.thresholds import thresholds
from headrace.session.model import Session
from headrace.session.stacks import Stack, StackFrame
from rich.console import Console
from session_factory import example_diagnosis, example_session, make_session

HOSTILE = "</script><script>alert(1)</script>\"'><img src=x onerror=alert(1)>"
VOID = {"meta", "br", "hr", "img", "input", "link"}
EMPTY = Diagnosis("INSUFFICIENT_DATA", 0.0, {}, (), None, None, ())


class Page(HTMLParser):
    """Parses a page, checks its nesting, and collects tags, texts and scripts."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.scripts: list[str] = []
        self.feed(source)
        self.close()
        assert self.open == [], f"not closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-1:]}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts.append(data)
        elif not self.open or self.open[-1] != "style":
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    def attributes(self, tag: str, **wanted: str) -> list[dict[str, str | None]]:
        return [found for name, found in self.tags if name == tag and wanted.items() <= found.items()]


def page(diagnosis: Diagnosis | None = None, session: Session | None = None) -> Page:
    return Page(html.render(diagnosis or example_diagnosis(), session=session or example_session()))


def test_page_is_well_formed_and_holds_every_panel() -> None:
    found = page()
    sections = {attributes.get("id") for name, attributes in found.tags if name == "section"}
    assert sections >= {
        "verdict",
        "fixes",
        "unknown",
        "over-time",
        "slow",
        "percentiles",
        "stages",
        "others",
        "model",
        "environment",
    }
    assert len(found.attributes("h1")) == 1
    assert found.attributes("html", lang="en")
    assert found.attributes("meta", name="viewport")


def test_page_fetches_nothing() -> None:
    source = html.render(example_diagnosis(), session=example_session())
    for name, attributes in Page(source).tags:
        assert name not in {"link", "iframe", "img", "object", "embed", "base"}
        for key in ("src", "href", "srcset", "action", "xlink:href"):
            assert (attributes.get(key) or "data:").startswith("data:"), (name, attributes)
    assert not re.search(r"https?://|url\(|@import|fetch\(|XMLHttpRequest", source)


def test_segments_and_percents_of_the_bar_sum_to_the_whole() -> None:
    found = page()
    segments = [attributes for attributes in found.attributes("rect") if "data-part" in attributes]
    assert sum(float(str(attributes["width"])) for attributes in segments) == pytest.approx(100, abs=0.01)
    starts = [float(str(attributes["x"])) for attributes in segments]
    assert starts == sorted(starts)
    assert sum(part.percent for part in first_screen(example_diagnosis()).parts) == 100


@pytest.mark.parametrize(
    "shares",
    [{"compute": 0.4, "input_cpu": 0.2}, {"compute": 1 / 3, "input_cpu": 1 / 3, "sync": 1 / 3}, {"compute": 1.3, "h2d": 0.2}],
)
def test_the_bar_sums_to_one_hundred_per_cent_whatever_the_shares(shares: dict[str, float]) -> None:
    parts = first_screen(replace(example_diagnosis(), share_of_step=shares)).parts
    assert sum(part.share for part in parts) == pytest.approx(1)
    assert sum(part.percent for part in parts) == 100
    if sum(shares.values()) < 0.99:
        assert {part.key: part.percent for part in parts}["other"] == 40


def test_every_part_of_a_step_has_a_name_and_a_colour() -> None:
    sheet = (Path(html.__file__).parent / "page.css").read_text()
    assert STEP_PARTS.keys() == SHARES.keys()
    assert len({part.fill for part in STEP_PARTS.values()}) == len(STEP_PARTS)
    coloured = set(re.findall(r"\.part\.([a-z0-9_]+)", sheet))
    assert coloured | {"other"} == STEP_PARTS.keys()  # `other` has the colour of every further part


def test_hostile_strings_stay_text() -> None:
    example = example_diagnosis()
    fix = Fix(
        "x", HOSTILE, 700.0, (600.0, 800.0), command=HOSTILE, gain=1.2, next_bottleneck=HOSTILE, basis=HOSTILE, effort=HOSTILE
    )
    diagnosis = replace(
        example,
        findings=(Finding("CPU_PREP", 0.5, (HOSTILE,), (fix,)), Finding("GC_PAUSE", 0.1, (HOSTILE,), summary=HOSTILE)),
        summary=HOSTILE,
        command=("python", HOSTILE),
        not_measured=(HOSTILE,),
        environment={HOSTILE: [HOSTILE], "gpu": HOSTILE},
        noise=HOSTILE,
        startup_s={HOSTILE: 1.0},
        terms_s={HOSTILE: 1.0},
        rank_rows=(),
    )
    session = replace(
        example_session(),
        cwd=HOSTILE,
        loaders=tuple(replace(loader, dataset=HOSTILE, transform=HOSTILE) for loader in example_session().loaders),
    )
    found = page(diagnosis, session)
    assert not found.attributes("img")
    assert len(found.attributes("script")) == 2
    assert not any(key.startswith("on") for _, attributes in found.tags for key in attributes)
    assert found.text.count("alert(1)") >= 10
    json.loads(found.scripts[0])


def test_missing_data_is_called_not_measured_and_is_never_zero() -> None:
    found = page(EMPTY, Session())
    assert found.text.count(numbers.NOT_MEASURED) >= 5
    assert not re.search(r"(?<![\d.,])0 (%|ms|img/s|images)", found.text)
    screen = terminal.render(EMPTY, width=80).plain
    assert numbers.NOT_MEASURED in screen
    assert not re.search(r"(?<![\d.,])0 (%|ms|img/s)", screen)


def test_cells_that_were_not_measured_are_hatched() -> None:
    example = example_diagnosis()
    assert example.heat_map is not None
    cores = (tuple(None for _ in example.heat_map.cores[0]), *example.heat_map.cores[1:])
    diagnosis = replace(example, heat_map=replace(example.heat_map, cores=cores))
    assert len([attributes for attributes in page(diagnosis).attributes("rect") if attributes.get("class") == "absent"]) == 1


def test_every_verdict_has_a_headline_and_renders() -> None:
    assert all(kind.headline and kind.summary and kind.label for kind in KINDS.values())
    for kind in KINDS:
        diagnosis = replace(example_diagnosis(), verdict=kind)
        headline = first_screen(diagnosis).headline
        assert "{" not in headline and headline.endswith(".")
        assert headline in page(diagnosis).text
        assert headline in " ".join(terminal.render(diagnosis).plain.split())


def test_every_figure_of_a_simulated_device_carries_its_label() -> None:
    diagnosis = replace(example_diagnosis(), environment={"simulated": "simulated A100"})
    found, screen = page(diagnosis), terminal.render(diagnosis).plain
    assert "The simulated A100 waits" in found.text and "The simulated A100 waits" in screen
    labels = re.findall(
        r"images per second now, simulated A100|predicted\), simulated A100|kept up, simulated A100|fix, simulated A100",
        found.text,
    )
    assert len(labels) == 4
    assert "GPU-hours" not in found.text + screen


@pytest.mark.parametrize("device_arguments", [("--device", "sim:a100"), ("--device=sim:a100",)])
def test_a_simulated_device_is_recognised_in_the_command(device_arguments: tuple[str, ...]) -> None:
    diagnosis = replace(example_diagnosis(), command=("python", "train.py", *device_arguments))
    assert first_screen(diagnosis).simulated == "simulated A100"
    assert first_screen(example_diagnosis()).simulated is None


def test_a_long_run_on_many_cores_stays_below_two_megabytes() -> None:
    session = make_session(steps=4000, cores=192, workers=8, gpu_busy=0.4, compute_s=0.3)
    from headrace.diagnosis.measure.series import heat_map, stages, timeline

    diagnosis = replace(
        example_diagnosis(),
        heat_map=heat_map(session),
        timeline=timeline(session, session.steps),
        stages=stages(session.batches),
    )
    assert diagnosis.heat_map is not None and len(diagnosis.heat_map.cores) == 192
    assert len(html.render(diagnosis, session=session).encode()) < html.MAX_BYTES


def test_write_makes_the_folder_and_leaves_no_temporary_file(tmp_path: Path) -> None:
    path = html.write(example_diagnosis(), tmp_path / "new" / "report.html")
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert [file.name for file in path.parent.iterdir()] == ["report.html"]
    with pytest.raises(SessionError, match="cannot write the report"):
        html.write(example_diagnosis(), path / "below-a-file.html")


def many_fixes() -> Diagnosis:
    fixes = tuple(
        Fix(
            f"num_workers={n}",
            f"{n} workers, " + "and a long explanation " * 4,
            1000.0 + n,
            (900.0, 1100.0),
            None,
            "python train.py " + "--x " * 60,
            1.5,
        )
        for n in range(2, 10)
    )
    finding = Finding("CPU_PREP", 0.5, ("evidence " * 30,) * 5, fixes)
    return replace(
        example_diagnosis(), findings=(finding,), not_measured=tuple(f"source {n}: why it was not there" for n in range(12))
    )


@pytest.mark.parametrize("width", [80, 100, 120])
@pytest.mark.parametrize("diagnosis", [example_diagnosis(), many_fixes(), EMPTY], ids=["example", "crowded", "empty"])
def test_terminal_screen_fits(diagnosis: Diagnosis, width: int) -> None:
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(terminal.render(diagnosis, width=width))
    lines = capture.get().splitlines()
    assert len(lines) <= terminal.MAX_LINES
    assert max(map(len, lines)) <= width
    fixes = [line for line in lines if re.match(r"[1-9] ", line)]
    assert len(fixes) == min(len(diagnosis.fixes), 5)


def test_a_change_that_is_wider_than_its_column_is_wrapped() -> None:
    change = "headrace makes the batches: 20.4 times less CPU per image, no worker processes"
    found = example_diagnosis()
    fixes = (replace(found.fixes[0], change=change),)
    lines = terminal.render(replace(found, findings=(replace(found.findings[0], fixes=fixes),)), width=80).plain.splitlines()
    begin = next(number for number, line in enumerate(lines) if line.startswith("1 headrace makes"))
    assert "…" not in lines[begin]
    rows = [lines[begin][: text_column(lines)].strip(), lines[begin + 1].strip()]
    assert " ".join(rows) == f"1 {change}"
    assert lines[begin + 2].startswith("    ")  # the command


@pytest.mark.parametrize("width", [80, 120])
def test_a_command_is_shown_whole_or_not_at_all(width: int) -> None:
    diagnosis = many_fixes()
    screen = terminal.render(diagnosis, width=width).plain
    command = diagnosis.fixes[0].command
    assert command is not None
    shown = [line.strip() for line in screen.splitlines() if line.startswith("    ")]
    assert " ".join(shown).startswith(" ".join(command.split()))
    assert shown[-1] == "The report has the other commands."


@pytest.mark.parametrize("width", [80, 100])
def test_the_command_of_a_fix_without_a_gain_leaves_room_for_the_evidence_and_a_note(width: int) -> None:
    found = example_diagnosis()
    fix = Fix("pre_resize", "smaller images " * 12, command="headrace pack SRC DST --resize " + "--option value " * 25)
    more = tuple(replace(fix, id=f"fix={number}", command=None) for number in range(4))
    finding = replace(found.findings[0], evidence=("next() waits 30 ms " * 7,), fixes=(fix, *more))
    found = replace(
        found, findings=(finding,), notes=(Note("loss_still", "the loss does not move"),), fix_order_established=None
    )
    screen = terminal.render(found, width=width).plain
    assert "\n- Decoding and augmenting take" in screen and "Note: the loss does not move" in screen
    assert len(screen.splitlines()) <= 24 and "--option" not in screen


def test_the_headline_gives_the_share_that_the_verdict_explains() -> None:
    """A sampler took 18 % of a step that waits 55 % of the time, and all of that was once said of preparing images."""
    found = example_diagnosis()
    assert (found.wait_share, found.findings[0].share) == (0.6, 0.54)
    assert "waits 54 % of the time for images" in first_screen(found).headline


def text_column(lines: list[str]) -> int:
    """The position of the second column."""
    return next(line.index("predicted (80 %") for line in lines if line.startswith("Best fixes"))


def test_escape_sequences_do_not_reach_the_terminal() -> None:
    diagnosis = replace(example_diagnosis(), command=("python", "\x1b[2J\x1b]0;owned\x07.py"), not_measured=("a\x9b31m",))
    screen = terminal.render(diagnosis, width=100)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", screen.plain)
    assert screen.spans


def luminance(colour: str) -> float:
    """Relative luminance of #rgb or #rrggbb (WCAG 2.2)."""
    digits = colour.removeprefix("#")
    digits = "".join(2 * digit for digit in digits) if len(digits) == 3 else digits
    channels = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_colours_are_readable_in_light_dark_and_print() -> None:
    sheet = (Path(html.__file__).parent / "page.css").read_text()
    roots = [dict(re.findall(r"--([a-z-]+): (#[0-9a-f]+)", body)) for body in re.findall(r":root \{(.*?)\}", sheet, re.S)]
    assert len(roots) == 3
    for theme in (roots[0], roots[0] | roots[1], roots[0] | roots[2]):
        for name in ("ink", "quiet", "accent", "warn"):
            assert contrast(theme[name], theme["paper"]) >= 4.5, name
        assert contrast(theme["ink"], theme["panel"]) >= 4.5
        for name in theme:
            if name.startswith("on-"):
                assert contrast(theme[name], theme[name.removeprefix("on-")]) >= 4.5, name


def test_the_terminal_bar_fills_the_width() -> None:
    fills = "".join(part.fill for part in STEP_PARTS.values())
    for width in (80, 93, 120):
        bars = [
            line
            for line in terminal.render(example_diagnosis(), width=width).plain.splitlines()
            if line and set(line) <= set(fills)
        ]
        assert [len(line) for line in bars] == [width]


def test_every_threshold_on_the_page_says_what_it_decides() -> None:
    rows = thresholds()
    assert len({row.name for row in rows}) == len(rows) > 50
    assert [row.name for row in rows if not row.note.endswith((".", ")"))] == []
    text = page().text
    assert all(row.note in text for row in rows)


def test_terminal_screen_in_ascii() -> None:
    assert terminal.to_ascii(terminal.render(example_diagnosis(), width=80).plain).isascii()


def test_a_diagnosis_prints_its_first_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "90")
    found = shown(example_diagnosis())
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))
    assert str(found) == terminal.render(example_diagnosis(), width=90).plain
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    assert str(found).isascii() and "CPU_PREP" in str(found)
    assert isinstance(found, Diagnosis) and replace(found, steps=7).verdict == found.verdict


def test_a_notebook_shows_the_first_screen() -> None:
    hostile = replace(example_diagnosis(), command=("python", "<script>alert(1)</script>\x1b\u202e.py"))
    source = shown(hostile)._repr_html_()
    assert source.startswith('<pre class="headrace"') and "CPU_PREP" in source and "<script>" not in source
    for text in (source, str(shown(hostile))):
        assert "\\u202e" in text and not {"\x1b", "\u202e"} & {*text}


GOLDEN = Path(__file__).parents[1] / "golden" / "report"


@pytest.mark.parametrize("width", [80, 100, 120])
def test_terminal_screen_is_as_recorded(width: int) -> None:
    """The whole screen. HEADRACE_WRITE_GOLDEN=1 records it again; git then shows the difference."""
    file = GOLDEN / f"screen_{width}.txt"
    screen = terminal.render(example_diagnosis(), session=example_session(), width=width).plain + "\n"
    if os.environ.get("HEADRACE_WRITE_GOLDEN"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(screen, encoding="utf-8")
    assert screen == file.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("value_s", "text"),
    [
        (None, numbers.NOT_MEASURED),
        (0.0000944, "0.0944 ms"),
        (0.0213, "21.3 ms"),
        (0.1984, "198 ms"),
        (0.9996, "1 s"),
        (1.978, "1.98 s"),
    ],
)
def test_durations_as_text(value_s: float | None, text: str) -> None:
    assert numbers.milliseconds(value_s) == text


@pytest.mark.parametrize(
    ("code", "text"), [(3, "failed with exit code 3"), (-9, "stopped by SIGKILL"), (-99, "stopped by signal 99")]
)
def test_the_screen_tells_how_the_command_ended(code: int, text: str) -> None:
    assert text in first_screen(replace(example_diagnosis(), exit_code=code)).scope


@pytest.mark.parametrize("shares", [[1.0], [1, 1, 1], [0.005, 0.005, 0.99], [0.1] * 10, [3, 0, 1]])
def test_whole_numbers_sum_to_the_total(shares: list[float]) -> None:
    for total in (100, 80, 7):
        found = numbers.rounded_to_whole(shares, total=total)
        assert sum(found) == total
        assert all(abs(value - total * share / sum(shares)) < 1 for value, share in zip(found, shares, strict=True))


def test_byte_sizes_just_below_the_next_unit() -> None:
    assert numbers.byte_size(1000 * (1 << 20)) == "1000 MiB"
    assert numbers.byte_size(972 * (1 << 20)) == "972 MiB"


def test_flame_charts_name_functions_and_hide_places_when_shared() -> None:
    frames = (StackFrame("Data.__getitem__", "/home/me/secret-job/train.py", 41), StackFrame("<b>.forward", "timm/x.py", 9))
    stacks = (Stack(7, "batch", 80, False, frames), Stack(7, "step", 40, True, frames[:1]))
    session = replace(example_session(), stacks=stacks)
    diagnosis = diagnose(session)
    page = html.render(diagnosis, session=session)
    assert page.count('class="flame"') == 2
    assert "&lt;b&gt; 100 %" in page
    assert "<b>.forward" not in page
    assert "/home/me/secret-job/train.py:41" in page
    shared_session, shared = without_places(session, diagnosis)
    page = html.render(shared, session=shared_session)
    assert "secret-job" not in page
    assert "…/train.py:41" in page


@pytest.mark.parametrize(
    ("clause", "shown"),
    [
        ("a step waits", "A step waits"),
        ("settings: torch has 1 thread", "Settings: torch has 1 thread"),
        ("headrace run would not help: it refuses", "headrace run would not help: it refuses"),
        ("next() takes 30 ms", "next() takes 30 ms"),
        ("log (my job/train.py:31) takes 15 % of each step", "log (my job/train.py:31) takes 15 % of each step"),
        ("workers wait (see train.py:31) for storage", "Workers wait (see train.py:31) for storage"),
        ("", ""),
    ],
)
def test_a_sentence_begins_with_a_capital_but_code_keeps_its_letters(clause: str, shown: str) -> None:
    assert capitalised(clause) == shown


def test_a_number_of_another_finding_stays_on_one_line_with_its_unit() -> None:
    diagnosis = example_diagnosis()
    other = Finding("EXTERNAL_CPU", 0.3, ("other programs delay each step by about 154 ms",))
    page = html.render(replace(diagnosis, findings=(*diagnosis.findings, other)), session=example_session())
    assert "154\u00a0ms" in page


def test_notes_on_batches_stand_below_the_verdict_and_others_at_the_end() -> None:
    odd = Note("one_label", "every label is 0", ("the dataset has one class",))
    found = replace(example_diagnosis(), notes=(odd, Note("loss_still", "the loss does not move")))
    lines = terminal.render(replace(found, findings=found.findings[1:]), width=120).plain.splitlines()
    verdict = next(number for number, line in enumerate(lines) if line.startswith("CPU_PREP"))
    assert lines[verdict + 1] == "Note: every label is 0 (the dataset has one class)"
    assert lines.index("Note: the loss does not move") > verdict + 5
    page = html.render(found)
    assert "<li>Every label is 0.<ul><li>the dataset has one class</li></ul></li>" in page.replace("\u00a0", " ")


@pytest.mark.parametrize("width", [80, 120])
def test_many_notes_on_batches_leave_the_screen_its_other_parts(width: int) -> None:
    notes = tuple(Note(kind, f"note {number}: {'a fact ' * 30}", ("evidence",)) for number, kind in enumerate(NOTES))
    lines = terminal.render(replace(example_diagnosis(), notes=notes), width=width).plain.splitlines()
    assert len(lines) <= 24 and [line for line in lines if len(line) > width] == []
    assert any(line.endswith("more notes in the report") for line in lines) and "Note: note " in "".join(lines)
    assert any(line.startswith("Where a step goes") for line in lines) and any(line.startswith("Best fixes") for line in lines)


def test_a_command_of_a_hundred_thousand_words_leaves_room_for_the_report() -> None:
    """A shell that puts every file's name into the command line; the session keeps them all."""
    words = ("python", "train.py", *(f"/data/imagenet/train/n01440764/{number:08d}.JPEG" for number in range(100_000)))
    session = replace(make_session(workers=1, cpu_s=0.06), command=words)
    diagnosis = diagnose(session)
    assert diagnosis.command == words
    source = html.render(diagnosis, session=session)
    assert len(source) < html.MAX_BYTES / 4
    assert "characters)" in source
    fix = Fix("headrace_run", "headrace makes the batches", 700.0, command=f"headrace run -- {shlex.join(words)}", gain=1.2)
    long = replace(diagnosis, findings=(Finding("CPU_PREP", 0.5, (), (fix,)),))
    assert len(html.render(long, session=session)) < html.MAX_BYTES / 4
    screen = terminal.render(diagnosis, session=session, width=80).plain
    assert len(screen.splitlines()) <= terminal.MAX_LINES and max(map(len, screen.splitlines())) <= 80
