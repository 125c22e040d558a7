"""Completion scripts, driven as a person would: in each shell, on a pseudo-terminal, by the tab key."""

from __future__ import annotations

import argparse
import fcntl
import importlib
import os
import pty
import select
import shutil
import subprocess
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from headrace.cli.main import VERBS, main

LIMIT_S = 60.0
SHELLS = {
    "bash": ["bash", "--norc", "--noprofile", "-i"],
    "zsh": ["zsh", "-f", "-i"],
    "fish": ["fish", "--no-config", "-i"],
}
# `headrace` is a function that prints each of its arguments, so that what was completed can be read exactly.
PRINTER = "headrace() {{ printf 'got<%s>' \"$@\"; echo '|'; }}"
SETTINGS = {
    "bash": f"PS1='ready''> '; {PRINTER}; bind 'set bell-style none'; source {{script}}\n",
    "zsh": f"PS1='ready''> '; {PRINTER}; unsetopt beep; autoload -U compinit; compinit -u -D; source {{script}}\n",
    "fish": "function fish_prompt; printf 'ready%s' '> '; end; function headrace; printf 'got<%s>' $argv; echo '|'; end; "
    "source {script}\n",
}
pytestmark = pytest.mark.timeout(300)


class Shell:
    """An interactive shell on a pseudo-terminal."""

    def __init__(self, name: str, script: Path, folder: Path) -> None:
        environment = {"PATH": os.environ["PATH"], "HOME": str(folder / "home"), "TERM": "dumb", "LANG": "C.UTF-8"}
        (folder / "home").mkdir()
        self._leader, follower = pty.openpty()
        self._process = subprocess.Popen(
            SHELLS[name],
            stdin=follower,
            stdout=follower,
            stderr=follower,
            cwd=folder / "work",
            env=environment,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # fish asks for a controlling terminal
        )
        os.close(follower)
        self.send(SETTINGS[name].format(script=script))
        self.read_until("ready> ")

    def send(self, keys: str) -> None:
        os.write(self._leader, keys.encode())

    def read_until(self, end: str) -> str:
        """Return what the shell wrote, up to `end`."""
        seen, deadline_s = "", time.monotonic() + LIMIT_S
        while end not in seen:
            ready, _, _ = select.select([self._leader], [], [], max(0.0, deadline_s - time.monotonic()))
            assert ready, f"{end!r} did not appear in {seen!r}"
            seen += os.read(self._leader, 65536).decode(errors="replace")
        return seen

    def arguments(self, typed: str) -> list[str]:
        """Type a line with tabs, end it, and return the arguments that the command got."""
        for piece in typed.split("\t"):
            self.send(piece)
            if piece is not typed.rpartition("\t")[2]:
                self.send("\t")
                time.sleep(0.3)  # a shell may take keys that come at once for pasted text
        self.send("\n")
        printed = self.read_until(">|").partition(">|")[0]
        return printed[printed.index("got<") + 4 :].split(">got<")

    def close(self) -> None:
        self._process.kill()
        self._process.wait(20)
        os.close(self._leader)


@pytest.fixture(params=SHELLS)
def shell(request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Shell]:
    if shutil.which(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    assert main(["completion", request.param]) == 0
    script = tmp_path / f"headrace.{request.param}"
    script.write_text(capsys.readouterr().out)
    (tmp_path / "work" / "photos of cats").mkdir(parents=True)
    (tmp_path / "work" / "photos of cats" / "one.jpg").touch()
    (tmp_path / "work" / "job.py").touch()
    opened = Shell(request.param, script, tmp_path)
    yield opened
    opened.close()


def test_verbs_options_values_and_files_complete(shell: Shell) -> None:
    assert shell.arguments("headrace tra\t") == ["train"]
    assert shell.arguments("headrace diagn\t --verif\t") == ["diagnose", "--verify"]
    assert shell.arguments("headrace train --precision bf\t") == ["train", "--precision", "bf16"]
    assert shell.arguments("headrace pack a b --engine=ra\t")[-1] == "--engine=ray"
    assert shell.arguments("headrace train --no-nest\t")[-1] == "--no-nesterov"
    assert shell.arguments("headrace completion fi\t") == ["completion", "fish"]
    assert shell.arguments("headrace inspect photos\t")[1].rstrip("/") == "photos of cats"
    assert shell.arguments("headrace train --data photos\t")[2].rstrip("/") == "photos of cats"


def test_the_command_of_the_user_completes_as_a_command(shell: Shell) -> None:
    assert shell.arguments("headrace diagnose -- python jo\t") == ["diagnose", "--", "python", "job.py"]
    assert shell.arguments("headrace run --check -- python job.py --prec\t")[-1] == "--prec"  # an option of job.py, not ours


def actions(verb: str) -> list[argparse.Action]:
    parser = argparse.ArgumentParser(add_help=False)
    importlib.import_module(VERBS[verb]).add_arguments(parser)
    return [action for action in parser._actions if action.option_strings and action.help != argparse.SUPPRESS]


@pytest.mark.parametrize("name", SHELLS)
def test_every_verb_and_option_is_in_the_script(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", name]) == 0
    script = capsys.readouterr().out
    for verb in VERBS:
        assert verb in script
        for action in actions(verb):
            for option in action.option_strings:
                assert (f"-l {option[2:]} " if name == "fish" else option) in script, f"{verb} {option}"
    if shutil.which(name):
        subprocess.run([name, "-n"], input=script, text=True, check=True)


def test_an_unknown_shell_is_a_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "tcsh"]) == 2
    assert "bash" in capsys.readouterr().err
