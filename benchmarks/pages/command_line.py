"""docs/reference/cli.md and a page for each verb below it: the help, as the command prints it."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator
from unittest import mock

# Help texts name folders of the user and are as wide as the terminal.
ENVIRONMENT = {"COLUMNS": "100", "NO_COLOR": "1", "HOME": "/root", "XDG_CACHE_HOME": "/root/.cache"}
OVERRIDING = ("HEADRACE_CACHE", "HEADRACE_INDEX_CACHE", "FORCE_COLOR")


@contextlib.contextmanager
def plain_environment() -> Iterator[None]:
    """Set the environment in which help texts are the same on every machine."""
    with mock.patch.dict(os.environ, ENVIRONMENT):
        for name in OVERRIDING:
            os.environ.pop(name, None)
        yield


def help_of(*words: str) -> str:
    """Return what `headrace WORDS -h` prints."""
    from headrace.cli.main import main

    printed = io.StringIO()
    with plain_environment(), contextlib.redirect_stdout(printed):
        code = main([*words, "-h"])
    if code:
        raise RuntimeError(f"headrace {' '.join(words)} -h ended with {code}")
    return printed.getvalue().rstrip()


def render() -> dict[str, str]:
    """Return the page of the command and a page for each verb, by the names of their files."""
    from headrace.cli.main import VERBS

    made = "Made from the command itself by `make results`."
    links = " · ".join(f"[{verb}](cli/{verb}.md)" for verb in VERBS)
    first = ["# The `headrace` command", "", f"{made} A page for each verb: {links}.", "", "```", help_of(), "```", ""]
    pages = {"docs/reference/cli.md": "\n".join(first)}
    for verb in VERBS:
        lines = [f"# headrace {verb}", "", "```", help_of(verb), "```", ""]
        pages[f"docs/reference/cli/{verb}.md"] = "\n".join(lines)
    return pages
