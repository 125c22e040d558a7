"""Lines on stderr from inside the user's process."""

from __future__ import annotations

import builtins
from typing import Any

import pytest
from headrace.attach.record.log import log_line


def test_lines_do_not_go_through_a_print_of_the_scripts_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Scripts replace `print`: by one that adds the time, or one that is silent on other ranks."""

    def own(*words: Any, **options: Any) -> None:
        raise AssertionError("the script's own print was called")

    monkeypatch.setattr(builtins, "print", own)
    log_line("headrace run: a line")
    assert capsys.readouterr() == ("", "headrace run: a line\n")
