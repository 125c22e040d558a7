"""The command reference, made by `make docs`, knows every verb and option."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

import pytest
from headrace.cli.main import VERBS

PAGE = Path(__file__).resolve().parent.parent / "docs" / "cli.md"


@pytest.mark.parametrize("verb", VERBS)
def test_the_command_reference_is_up_to_date(verb: str) -> None:
    text = PAGE.read_text(encoding="utf-8").partition(f"## headrace {verb}\n")[2].partition("\n## ")[0]
    parser = argparse.ArgumentParser()
    importlib.import_module(f"headrace.cli.{verb}").add_arguments(parser)
    for action in parser._actions:
        for option in action.option_strings or [action.metavar or action.dest]:
            assert str(option) in text, f"{option} of `headrace {verb}` is not in docs/cli.md: run make docs"
