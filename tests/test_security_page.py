"""The page of promises: each line names a test, and the test is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
PAGE = REPOSITORY / "docs" / "concepts" / "security.md"
ROW = re.compile(r"^\| (?P<promise>.+?) \| (?P<test>.+?) \|$", re.MULTILINE)
HEADS = {"test", "---"}


def promises() -> list[tuple[str, str]]:
    text = PAGE.read_text(encoding="utf-8").partition("## Promises")[2].partition("## Limits")[0]
    return [(row["promise"], row["test"]) for row in ROW.finditer(text) if row["test"] not in HEADS]


@pytest.mark.parametrize(("promise", "test"), promises(), ids=[promise[:50] for promise, _ in promises()])
def test_a_promise_names_a_test_that_is_there(promise: str, test: str) -> None:
    found = re.fullmatch(r"`(tests/[\w/]+\.py)::(test_\w+)`", test)
    assert found is not None, f"{promise}: no test is named"
    assert f"def {found[2]}(" in (REPOSITORY / found[1]).read_text(encoding="utf-8")


def test_the_page_has_promises_and_the_way_to_report() -> None:
    assert len(promises()) > 25
    assert "Report a vulnerability" in (REPOSITORY / "SECURITY.md").read_text(encoding="utf-8")
    assert "SECURITY.md" in PAGE.read_text(encoding="utf-8")
