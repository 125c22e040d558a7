"""The `headrace` command: find the verb, parse its arguments, turn errors into messages and exit codes.

A verb is a module named in `VERBS`, with `SUMMARY` (one imperative line), `EXAMPLE` (one or more command lines),
`add_arguments(parser)` and `run(args) -> int`. A verb that runs the user's command sets `TAKES_COMMAND = True`; everything
after the first `--` is then in `args.command`, unchanged. An option of its `INSTEAD_OF_COMMAND` takes the place of the command.
With `TAKES_ARGUMENTS = True` what follows `--` is in `args.arguments`, and may be absent.
Every verb has `args.json`, and all words in `args.words`. `INTERRUPTED` is its answer to the first Ctrl-C.

Exit codes: 0 ok · 1 failed · 2 wrong usage · 130 interrupted · 141 the reader of stdout has closed it.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import importlib
import io
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from typing import NoReturn, Protocol, cast

from headrace._native import __version__
from headrace.cli.interruption import ANSWER, answer_at_once, ignore_from_now_on, set_answer
from headrace.cli.missing_packages import missing_package
from headrace.cli.shared import output
from headrace.errors import HeadraceError, UsageError
from headrace.images.raster import keep_pillow_silent
from headrace.system.text.redaction import redact_text

__all__ = ["VERBS", "main"]

VERBS = {
    "doctor": "headrace.cli.profile.doctor",
    "diagnose": "headrace.cli.profile.diagnose",
    "report": "headrace.cli.profile.report",
    "watch": "headrace.cli.profile.watch",
    "compare": "headrace.cli.profile.compare",
    "run": "headrace.cli.profile.run",
    "pack": "headrace.cli.data.pack",
    "inspect": "headrace.cli.data.inspect",
    "verify": "headrace.cli.data.verify",
    "train": "headrace.cli.train.train",
    "tune": "headrace.cli.train.tune",
    "cost": "headrace.cli.cloud.cost",
    "trials": "headrace.cli.cloud.trials",
    "launch": "headrace.cli.cloud.launch",
    "evaluate": "headrace.cli.train.evaluate",
    "predict": "headrace.cli.train.predict",
    "export": "headrace.cli.train.export",
    "demo": "headrace.cli.profile.demo",
    "completion": "headrace.cli.completion",
}
"""The verbs in the order of `headrace -h`, and their modules."""

_BLAS_THREADS = "OPENBLAS_NUM_THREADS"
# Verbs and options as other tools and PyTorch's scripts call them, and ours.
OTHERS_VERBS = {
    "profile": "diagnose",
    "fit": "train",
    "test": "evaluate",
    "inference": "predict",
    "convert": "pack",
    "info": "inspect",
}
OTHERS_OPTIONS = {
    "--num-workers": ("--workers", "--threads"),
    "--workers": ("--threads",),
    "--lr": ("--learning-rate",),
    "--arch": ("--model",),
    "--output": ("--out",),
    "--amp": ("--precision",),
    "-a": ("--model",),
    "-b": ("--batch-size",),
    "-j": ("--workers", "--threads"),
}
FAILED, WRONG_USAGE, INTERRUPTED, BROKEN_PIPE = 1, 2, 130, 141


class Verb(Protocol):
    """The interface of a verb: what its module in `headrace.cli` has to define."""

    SUMMARY: str
    EXAMPLE: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...
    def run(self, args: argparse.Namespace) -> int: ...


class _Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises UsageError, so that all errors look alike."""

    def error(self, message: str) -> NoReturn:
        for type_name, expected in (("int", "a whole number"), ("float", "a number")):
            message = re.sub(rf"invalid {type_name} value: (.+)", rf"\1 is not {expected}", message)
        word = message.removeprefix("unrecognized arguments: ").split()[0] if message.startswith("unrecognized") else ""
        near = self.near_option(word.partition("=")[0]) if "=" in word else None
        hint = f"did you mean {near} {word.partition('=')[2]}?" if near else f"{self.prog} -h shows the options and an example"
        raise UsageError(message, hint=hint)

    def near_option(self, name: str) -> str | None:
        """Return the option that `name` (`--modle`, `num_workers`) most probably means; None if no option is near."""
        options = [option for option in self._option_string_actions if option.startswith("--")]
        wanted = name if name in OTHERS_OPTIONS else "--" + name.lstrip("-").replace("_", "-").lower()
        meant = [option for option in OTHERS_OPTIONS.get(wanted, ()) if option in options]
        return next(iter([*meant, *difflib.get_close_matches(wanted, options, n=1)]), None)

    def check_options(self, words: Sequence[str]) -> None:
        """Raise UsageError with the option that is meant for a word that looks like an option and is none.

        Without this, argparse reports other consequences of the same mistake first.
        """
        for word in words:
            name = word.partition("=")[0]
            if word == "--":
                return
            if (name.startswith("--") or name in OTHERS_OPTIONS) and name not in self._option_string_actions:
                near = self.near_option(name)
                hint = f"did you mean {near}?" if near else f"{self.prog} -h shows the options and an example"
                raise UsageError(f"unrecognized arguments: {word}", hint=hint)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` and return the exit code. None: run that of this process, then ignore Ctrl-C for good."""
    if argv is not None:
        return _main(list(argv))
    keep_pillow_silent()
    answer_at_once()
    code = _main(sys.argv[1:])
    ignore_from_now_on()
    return code


def _main(words: list[str]) -> int:
    as_json = "--json" in _before_command(words)
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot show × or – shows ?
    try:
        return _run(words, as_json)
    except HeadraceError as error:
        _report_error(str(error), error.hint, as_json, kind=type(error).__name__)
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
        _report_error(f"{where}{error.strerror or error}", None, as_json, kind=type(error).__name__)
        return FAILED


def _open_closed_streams() -> None:
    """Open /dev/null in place of a standard stream that was closed (`2>&-`).

    Python has None there, for which `print` takes stdout, and the next file that is opened gets the stream's number.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is not None:
            continue
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)
            os.set_inheritable(number, True)  # a child without the stream would meet the same trouble
        setattr(sys, name, open(os.devnull, "r" if number == 0 else "w", encoding="utf-8"))  # noqa: SIM115 -- as long as Python


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
    args.words = words  # for verbs that start further processes of themselves
    set_answer("" if getattr(verb, "TAKES_COMMAND", False) else getattr(verb, "INTERRUPTED", ANSWER))
    with output.only_documents_on_stdout(as_json):
        try:
            code = verb.run(args)
        except ModuleNotFoundError as error:
            missing = missing_package(words[0], error)
            if missing is None:
                raise
            raise missing from error
    sys.stdout.flush()
    return code


def _before_command(words: list[str]) -> list[str]:
    return words[: words.index("--")] if "--" in words else words


def _load(name: str) -> Verb:
    if name not in VERBS:
        meant = OTHERS_VERBS.get(name)
        near = [meant] if meant in VERBS else difflib.get_close_matches(name, VERBS, n=1)
        what = "option" if name.startswith("-") else "verb"
        hint = f"did you mean `headrace {near[0]}`?" if near else "headrace -h lists the verbs"
        raise UsageError(f"there is no {what} {name!r}", hint=hint)
    with _no_blas_threads():
        return cast(Verb, importlib.import_module(VERBS[name]))


@contextlib.contextmanager
def _no_blas_threads() -> Iterator[None]:
    """Keep NumPy's OpenBLAS to one thread while it is imported.

    It would start a thread for each core; they spin for 30 to 80 ms, and no verb has work for them. The variable is removed
    afterwards, because commands started by a verb inherit it.
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
    """Parse the arguments of a verb. `--json` is accepted anywhere before `--`."""
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
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout, everything else on stderr")
    if getattr(verb, "TAKES_ARGUMENTS", False):
        own = _before_command(words)
        given = [word for word in own[1:] if word != "--json"]
        parser.check_options(given)
        args = parser.parse_args(given)
        args.arguments = words[len(own) + 1 :]
        return args
    if not takes_command:
        given = [word for word in words[1:] if word != "--json"]
        parser.check_options(given)
        return parser.parse_args(given)
    own = _before_command(words)
    instead = {word.partition("=")[0] for word in own} & set(getattr(verb, "INSTEAD_OF_COMMAND", ()))
    if own == words and not instead:
        _check_for_missing_dashes(words)
    given = [word for word in own[1:] if word != "--json"]
    parser.check_options(given)
    args = parser.parse_args(given)
    args.command = words[len(own) + 1 :]
    if instead and args.command:
        raise UsageError(f"{min(instead)} takes no command: the job already ran", hint="leave out -- and what follows it")
    if not args.command and not instead:
        raise UsageError("no command to run is given", hint=f"put it after two dashes:  {verb.EXAMPLE.strip().splitlines()[0]}")
    return args


def _check_for_missing_dashes(words: list[str]) -> None:
    """Raise UsageError with the corrected command line if a word is a program or a Python script: `--` is missing before it."""
    begins = next((at for at, word in enumerate(words) if at and (word.endswith(".py") or shutil.which(word))), None)
    if begins is not None and not {"-h", "--help"}.intersection(words[:begins]):
        meant = shlex.join(["headrace", *words[:begins], "--", *words[begins:]])
        raise UsageError("two dashes are missing before the command", hint=meant)


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


def _report_error(message: str, hint: str | None, as_json: bool, *, kind: str) -> None:
    output.log(f"error: {message}")
    if hint:
        output.log(f"hint: {hint}")
    if as_json:
        output.write_document({"error": redact_text(message), "hint": redact_text(hint) if hint else None, "kind": kind})
