"""The hint of an error stands in its traceback, wherever that is printed."""

from __future__ import annotations

import logging
import multiprocessing
import pickle
import traceback
from pathlib import Path

import headrace as hr
import pytest
from headrace.errors import HeadraceError, MissingDependencyError, UsageError
from headrace.system.text.printable import ACTIVE


def test_a_traceback_ends_with_the_hint() -> None:
    with pytest.raises(HeadraceError) as raised:
        hr.open("/data/nowhere")
    assert traceback.format_exception(raised.value)[-1] == f"hint: {raised.value.hint}\n"


def test_a_log_has_the_hint(caplog: pytest.LogCaptureFixture) -> None:
    try:
        raise UsageError("batch_size is 0", hint="pass 1 or more")
    except UsageError:
        logging.getLogger("job").exception("stopped")
    assert caplog.text.endswith("UsageError: batch_size is 0\nhint: pass 1 or more\n")


def test_an_error_without_a_hint_has_no_further_line() -> None:
    assert traceback.format_exception(UsageError("wrong")) == ["headrace.errors.UsageError: wrong\n"]


def test_an_error_from_another_process_has_its_hint_once() -> None:
    error = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(MissingDependencyError("no torch", hint="install it")))))
    assert traceback.format_exception(error)[-1] == "hint: install it\n" and error.__notes__ == ["hint: install it"]
    with multiprocessing.get_context("fork").Pool(1) as pool, pytest.raises(UsageError) as raised:
        pool.apply(_refuse)
    assert raised.value.__notes__ == ["hint: pass 1 or more"]


def test_secrets_of_a_hint_are_masked_in_its_line() -> None:
    error = UsageError("wrong", hint="try https://user:secret-word@host/x")
    assert "secret-word" not in "".join(traceback.format_exception(error))


def _refuse() -> None:
    raise UsageError("batch_size is 0", hint="pass 1 or more")


def test_names_in_a_message_do_not_act_on_the_terminal_that_shows_the_traceback(tmp_path: Path) -> None:
    """Python prints the message of an error as it is."""
    (tmp_path / "cat\x1b]0;title\x07\u202e\udce9").mkdir()
    (tmp_path / "dog").mkdir()
    (tmp_path / "dog" / "a.jpg").touch()
    with pytest.raises(HeadraceError) as raised:
        hr.open(tmp_path)
    printed = "".join(traceback.format_exception(raised.value))
    assert not ACTIVE.search(printed) and r"cat\x1b]0;title\x07\u202e\xe9" in printed
    assert not ACTIVE.search("".join(traceback.format_exception(UsageError("wrong", hint="\x1b[2J"))))
