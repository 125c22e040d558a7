"""The `headrace` command: finds the verb, parses its arguments, turns errors into words and exit codes.

A verb is a module `headrace.cli.VERB` with `SUMMARY` (one line), `EXAMPLE` (one or more command lines),
`add_arguments(parser)` and `run(args) -> int`. A verb that starts somebody's command sets `TAKES_COMMAND = True`;
everything after the first `--` then arrives untouched as `args.command`. Every verb has `args.json`, and the whole
command line as `args.words`.

Exit codes: 0 ok · 1 failed · 2 wrong usage · 130 interrupted · 141 the reader of our output went away.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import importlib
import io
import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from typing import NoReturn, Protocol, cast

from headrace._native import __version__
from headrace.cli import output
from headrace.errors import HeadraceError, UsageError

__all__ = ["VERBS", "main"]

# In the order in which `headrace -h` shows them; a verb is added when it works.
VERBS: tuple[str, ...] = (
    "doctor",
    "diagnose",
    "report",
    "watch",
    "compare",
    "run",
    "pack",
    "inspect",
    "verify",
    "train",
    "tune",
    "evaluate",
    "predict",
    "export",
    "demo",
)

_BLAS_THREADS = "OPENBLAS_NUM_THREADS"
FAILED, WRONG_USAGE, INTERRUPTED, BROKEN_PIPE = 1, 2, 130, 141


class Verb(Protocol):
    """What a module of `headrace.cli` offers to be a verb."""

    SUMMARY: str
    EXAMPLE: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...
    def run(self, args: argparse.Namespace) -> int: ...


class _Parser(argparse.ArgumentParser):
    """An ArgumentParser whose complaints are UsageErrors, so that all errors look alike."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, hint=f"{self.prog} -h shows the options and an example")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv` (default: the process's own) and returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    as_json = "--json" in _before_command(words)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without × or – shows ?, and nothing fails
    try:
        return _run(words, as_json)
    except HeadraceError as error:
        _complain(str(error), error.hint, as_json, kind=type(error).__name__)
        return WRONG_USAGE if isinstance(error, UsageError) else FAILED
    except KeyboardInterrupt:
        output.log("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        # Python flushes stdout once more at exit; that flush must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return BROKEN_PIPE
    except OSError as error:
        if os.environ.get("HEADRACE_TRACEBACK"):
            raise
        where = f"{error.filename}: " if error.filename else ""
        _complain(f"{where}{error.strerror or error}", None, as_json, kind=type(error).__name__)
        return FAILED


def _run(words: list[str], as_json: bool) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(_overview())
        return 0 if words else WRONG_USAGE
    if words[0] in ("-V", "--version", "version"):
        print(f"headrace {__version__}")
        return 0
    verb = _load(words[0])
    try:
        args = _parse(verb, words)
    except SystemExit as stop:  # -h
        return int(stop.code or 0)
    args.json = as_json
    args.words = words  # for a verb that starts itself again
    with output.only_documents_on_stdout(as_json):
        code = verb.run(args)
    sys.stdout.flush()
    return code


def _before_command(words: list[str]) -> list[str]:
    return words[: words.index("--")] if "--" in words else words


def _load(name: str) -> Verb:
    if name not in VERBS:
        near = difflib.get_close_matches(name, VERBS, n=1)
        what = "option" if name.startswith("-") else "verb"
        hint = f"did you mean `headrace {near[0]}`?" if near else "headrace -h lists the verbs"
        raise UsageError(f"there is no {what} {name!r}", hint=hint)
    with _no_blas_threads():
        return cast(Verb, importlib.import_module(f"headrace.cli.{name}"))


@contextlib.contextmanager
def _no_blas_threads() -> Iterator[None]:
    """While NumPy is loaded: its OpenBLAS starts a thread for each core then, which spin for a while (30 to 80 ms of two
    cores), and no verb has work for them. Afterwards the variable is as it was: a command that a verb starts inherits it.
    """
    if _BLAS_THREADS in os.environ:
        yield
        return
    os.environ[_BLAS_THREADS] = "1"
    try:
        yield
    finally:
        del os.environ[_BLAS_THREADS]


def _parse(verb: Verb, words: list[str]) -> argparse.Namespace:
    """The verb's arguments. `--json` is accepted anywhere before `--`, also after a sub-verb."""
    name = words[0]
    takes_command = getattr(verb, "TAKES_COMMAND", False)
    parser = _Parser(
        prog=f"headrace {name}",
        usage=f"headrace {name} [options] -- COMMAND [ARGUMENT ...]" if takes_command else None,
        description=verb.SUMMARY,
        epilog="example:\n" + "\n".join("  " + line for line in verb.EXAMPLE.strip().splitlines()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    verb.add_arguments(parser)
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout, everything else on stderr")
    if not takes_command:
        return parser.parse_args([word for word in words[1:] if word != "--json"])
    own = _before_command(words)
    if own == words:
        _look_for_a_command(words)
    args = parser.parse_args([word for word in own[1:] if word != "--json"])
    args.command = words[len(own) + 1 :]
    if not args.command:
        raise UsageError("which command?", hint=f"put it after two dashes:  {verb.EXAMPLE.strip().splitlines()[0]}")
    return args


def _look_for_a_command(words: list[str]) -> None:
    """Raises UsageError where the two dashes were forgotten: a word starts a program, or is a Python script."""
    begins = next((at for at, word in enumerate(words) if at and (word.endswith(".py") or shutil.which(word))), None)
    if begins is not None and not {"-h", "--help"}.intersection(words[:begins]):
        meant = shlex.join(["headrace", *words[:begins], "--", *words[begins:]])
        raise UsageError("the command comes after two dashes", hint=meant)


def _overview() -> str:
    width = max((len(name) for name in VERBS), default=0)
    verbs = [f"  {name:<{width}}  {_load(name).SUMMARY}" for name in VERBS]
    return "\n".join(
        [
            f"headrace {__version__} keeps GPUs fed: it finds why image training waits, and removes the wait.",
            "",
            "usage: headrace VERB [options]",
            "",
            *verbs,
            "",
            "`headrace VERB -h` shows a verb's options and an example. Every verb takes --json.",
        ]
    )


def _complain(message: str, hint: str | None, as_json: bool, *, kind: str) -> None:
    output.log(f"error: {message}")
    if hint:
        output.log(f"hint: {hint}")
    if as_json:
        output.write_document({"error": message, "hint": hint, "kind": kind})
