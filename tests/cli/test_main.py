"""The command line itself, with a verb made for the tests."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest
from headrace.cli import main as cli
from headrace.cli.shared import output
from headrace.errors import HeadraceError, SourceError, UsageError


def make_verb(run: Callable[[argparse.Namespace], int], *, takes_command: bool = False) -> types.ModuleType:
    verb = types.ModuleType("headrace.cli.probe")

    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--count", type=int, default=1, help="how many")

    verb.SUMMARY = "tries the command line"  # type: ignore[attr-defined]
    verb.EXAMPLE = "headrace probe --count 3"  # type: ignore[attr-defined]
    verb.add_arguments = add_arguments  # type: ignore[attr-defined]
    verb.run = run  # type: ignore[attr-defined]
    verb.TAKES_COMMAND = takes_command  # type: ignore[attr-defined]
    return verb


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def do(run: Callable[[argparse.Namespace], int], *, takes_command: bool = False) -> None:
        monkeypatch.setitem(sys.modules, "headrace.cli.probe", make_verb(run, takes_command=takes_command))
        monkeypatch.setattr(cli, "VERBS", {"probe": "headrace.cli.probe"})

    return do


def raiser(error: BaseException) -> Callable[[argparse.Namespace], int]:
    def run(args: argparse.Namespace) -> int:
        raise error

    return run


def test_overview_lists_each_verb_with_its_summary(install, capsys) -> None:
    install(lambda args: 0)
    assert cli.main(["-h"]) == 0
    assert "probe  tries the command line" in capsys.readouterr().out


def test_every_verb_has_help_with_an_example(capsys) -> None:
    for verb in cli.VERBS:
        assert cli.main([verb, "-h"]) == 0, verb
        printed = capsys.readouterr().out
        assert "example:\n  headrace" in printed, verb
        assert "--json" in printed, verb


def test_version_is_the_native_version(capsys) -> None:
    from headrace import _native

    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"headrace {_native.__version__}\n"


def test_unknown_verb_suggests_the_nearest(install, capsys) -> None:
    install(lambda args: 0)
    assert cli.main(["prob"]) == 2
    printed = capsys.readouterr().err
    assert "error: there is no verb 'prob'" in printed
    assert "did you mean `headrace probe`?" in printed


@pytest.mark.parametrize("words", [["--count", "x"], ["--no-such"], ["surplus"], ["--cou", "1"]])
def test_wrong_arguments_exit_2_with_a_hint(install, capsys, words) -> None:
    install(lambda args: 0)
    assert cli.main(["probe", *words]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ")
    assert ("hint: did you mean --count?" if words[0] == "--cou" else "hint: headrace probe -h") in captured.err
    assert captured.out == ""


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SourceError("/data: no images", hint="give a folder of images"), 1),
        (HeadraceError("broken", hint="mend it"), 1),
        (UsageError("not so", hint="but so"), 2),
        (KeyboardInterrupt(), 130),
        (PermissionError(13, "Permission denied", "/secret"), 1),
    ],
)
def test_errors_become_messages_and_exit_codes(install, capsys, error, code) -> None:
    install(raiser(error))
    assert cli.main(["probe"]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err
    if isinstance(error, HeadraceError):
        assert f"error: {error}\nhint: {error.hint}\n" == captured.err


def test_an_error_under_json_is_one_document(install, capsys) -> None:
    install(raiser(SourceError("/data: no images", hint="give a folder")))
    assert cli.main(["probe", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document == {"error": "/data: no images", "hint": "give a folder", "kind": "SourceError"}


def test_the_command_after_dashes_is_passed_on_unchanged(install, capsys) -> None:
    seen: list[argparse.Namespace] = []

    def run(args: argparse.Namespace) -> int:
        seen.append(args)
        return 0

    install(run, takes_command=True)
    command = ["python", "train.py", "--json", "--count", "9", "--", "-h"]
    assert cli.main(["probe", "--count", "2", "--", *command]) == 0
    assert seen[0].command == command
    assert (seen[0].count, seen[0].json) == (2, False)
    assert cli.main(["probe", "--json", "--", *command]) == 0
    assert seen[1].json is True
    assert cli.main(["probe", "--"]) == 2
    assert cli.main(["probe"]) == 2
    assert "no command to run is given" in capsys.readouterr().err


def test_json_sends_other_output_to_stderr(install, capsys) -> None:
    def run(args: argparse.Namespace) -> int:
        print("chatter of a library")
        output.emit(args, {"path": Path("/a"), "rate": float("nan"), "n": 3}, lambda: None)
        return 0

    install(run)
    assert cli.main(["probe", "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out) == {"path": "/a", "rate": None, "n": 3}
    assert "chatter" in captured.err


PROBE = """
import argparse, subprocess, sys, types
from headrace.cli import main as cli
from headrace.cli.shared import output
probe = types.ModuleType("headrace.cli.probe")
probe.SUMMARY, probe.EXAMPLE, probe.add_arguments = "", "headrace probe", lambda parser: None
def run(args):
    subprocess.run(["echo", "a child's words"], check=True)
    output.emit(args, {"ok": True}, lambda: print("x" * 1_000_000))
    return 0
probe.run = run
sys.modules["headrace.cli.probe"], cli.VERBS = probe, {"probe": "headrace.cli.probe"}
sys.exit(cli.main(sys.argv[1:]))
"""


def test_json_sends_output_of_children_to_stderr() -> None:
    done = subprocess.run([sys.executable, "-c", PROBE, "probe", "--json"], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {"ok": True}
    assert "a child's words" in done.stderr


def test_a_closed_stdout_gives_exit_code_141_without_traceback() -> None:
    reader, writer = os.pipe()
    with subprocess.Popen([sys.executable, "-c", PROBE, "probe"], stdout=writer, stderr=subprocess.PIPE) as process:
        os.close(writer)
        os.read(reader, 1)
        os.close(reader)
        _, stderr = process.communicate(timeout=30)
    assert process.returncode == 141
    assert b"Traceback" not in stderr and b"Exception ignored" not in stderr


@pytest.mark.parametrize(("redirection", "code"), [("2>&-", 0), ("2>/dev/full", 0), ("<&-", 0)])
def test_a_stream_that_is_closed_or_full_costs_its_own_lines_only(redirection: str, code: int) -> None:
    """`print(file=None)` writes to stdout, where it would spoil the document; a full disk below the log must stop no job."""
    probe = PROBE.replace("def run(args):", "def run(args):\n    output.log('a line for the log')")
    if "full" in redirection:  # the child's words go there too, and it says so
        probe = probe.replace("check=True", "check=False")
    command = f'exec "$0" -c "$1" probe --json {redirection}'
    done = subprocess.run(["bash", "-c", command, sys.executable, probe], stdout=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == code
    assert json.loads(done.stdout) == {"ok": True}


def test_without_stdout_a_verb_still_runs_to_its_end() -> None:
    command = 'exec "$0" -c "$1" probe >&-'
    done = subprocess.run(["bash", "-c", command, sys.executable, PROBE], stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 0 and "Traceback" not in done.stderr


def test_ctrl_c_while_modules_are_imported_or_python_ends_prints_no_traceback() -> None:
    """A module that takes long to import stands for a busy machine."""
    slow = "import os, signal, sys, types\nimport headrace.cli\n{}\nfrom headrace.cli.main import main\n"
    slow += "sys.argv[1:] = ['--version']\ncode = main()\n{}\nsys.exit(code)"
    interrupt = "os.kill(os.getpid(), signal.SIGINT)"
    for lines, code in ((slow.format(interrupt, ""), -signal.SIGINT), (slow.format("", interrupt), 0)):
        done = subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True)
        assert done.returncode == code and "Traceback" not in done.stderr
        assert done.stderr == ("interrupted\n" if code else "")


def test_python_m_headrace_is_the_same_command() -> None:
    done = subprocess.run([sys.executable, "-m", "headrace", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("headrace ")


def test_progress_in_a_log_is_plain_lines(capsys, monkeypatch) -> None:
    monkeypatch.setattr(output, "LOG_INTERVAL_S", 0.0)
    with output.progress("packing", 4, unit="img") as meter:
        meter.advance(2)
        meter.describe("checking")
        meter.advance(2)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("packing: 2/4 img, ")
    assert [line.startswith("checking: 4/4 img, ") for line in lines] == [False, False, True]  # each line once
    assert all("\x1b" not in line for line in lines)


def test_a_listing_is_shown_if_it_takes_a_while(capsys, monkeypatch) -> None:
    with output.listing_progress() as listed:
        listed(3)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(output, "LISTING_SHOWN_S", 0.0)
    monkeypatch.setattr(output, "LOG_INTERVAL_S", 0.0)
    with output.listing_progress() as listed:
        listed(1300)
        listed(700)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(" img")[0] for line in lines] == ["listing: 1,300", "listing: 2,000"]


def test_a_rate_of_less_than_one_a_second_leaves_the_time_that_is_left(capsys, monkeypatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(output, "LOG_INTERVAL_S", 0.0)
    monkeypatch.setattr(output.time, "monotonic", lambda: clock[0])
    with output.progress("trials", 12, unit="cells") as meter:
        clock[0] = 40.0
        meter.advance(2)
        meter.advance(78)
    slow, fast = capsys.readouterr().err.splitlines()
    assert slow == "trials: 2/12 cells, 40 s, 200 s left"
    assert "80/12 cells, 2.0 cells/s, 40 s" in fast


def test_a_given_rate_is_printed_with_its_label(capsys, monkeypatch) -> None:
    monkeypatch.setattr(output, "LOG_INTERVAL_S", 0.0)
    with output.progress("training", 40, rate_of="steps alone") as meter:
        meter.advance(20)
        meter.advance(10, rate=5.0)
    first, last = capsys.readouterr().err.splitlines()
    assert "/s" not in first  # not known yet
    assert "30/40 img, 5.0 img/s (steps alone), " in last and last.endswith(" 2 s left")
