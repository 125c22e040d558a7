"""`headrace completion`: a script with which a shell completes verbs, options and their values.

The script is made from the verbs' own parsers, so it holds what `headrace VERB -h` shows. Completing runs no Python.
"""

from __future__ import annotations

import argparse
import importlib
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.cli.shared import output

__all__ = ["EXAMPLE", "SUMMARY", "add_arguments", "run"]

SUMMARY = "print a script that completes verbs, options and values in bash, zsh or fish"
EXAMPLE = """\
headrace completion bash    # into ~/.local/share/bash-completion/completions/headrace
headrace completion zsh     # into _headrace in a folder of fpath, before compinit
headrace completion fish    # into ~/.config/fish/completions/headrace.fish"""


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a verb. choices: all its values if they are a closed list, else empty."""

    names: tuple[str, ...]
    takes_value: bool
    choices: tuple[str, ...]
    help: str


@dataclass(frozen=True, slots=True)
class VerbWords:
    """The words with which a shell can complete a verb's command line."""

    name: str
    summary: str
    options: tuple[Option, ...]
    words: tuple[str, ...]  # all values of its positional argument if they are a closed list, else empty
    takes_command: bool


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the argument of `headrace completion`: the name of a shell."""
    parser.add_argument("shell", choices=sorted(_SCRIPTS), help="the shell that reads the script")


def run(args: argparse.Namespace) -> int:
    """Print the completion script of the chosen shell."""
    script = _SCRIPTS[args.shell](_verbs())
    output.emit(args, {"shell": args.shell, "script": script}, lambda: print(script, end=""))
    return 0


def _verbs() -> list[VerbWords]:
    verbs: dict[str, str] = importlib.import_module("headrace.cli.main").VERBS
    return [_verb(name, importlib.import_module(module)) for name, module in verbs.items()]


def _verb(name: str, module: Any) -> VerbWords:
    parser = argparse.ArgumentParser(prog=f"headrace {name}", allow_abbrev=False)
    module.add_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout")
    shown = [action for action in parser._actions if action.help != argparse.SUPPRESS]
    options = tuple(_option(parser, action) for action in shown if action.option_strings)
    words = tuple(str(one) for action in shown if not action.option_strings for one in action.choices or ())
    return VerbWords(name, module.SUMMARY, options, words, getattr(module, "TAKES_COMMAND", False))


def _option(parser: argparse.ArgumentParser, action: argparse.Action) -> Option:
    text = parser._get_formatter()._expand_help(action) if action.help else ""
    first = re.split(r"(?<=\w)[.;:(]\s|\s\(", " ".join(text.split()))[0]  # the first sentence is enough beside a name
    choices = tuple(map(str, action.choices or ()))
    return Option(tuple(action.option_strings), action.nargs != 0, choices, first)


def _bash(verbs: Sequence[VerbWords]) -> str:
    names = shlex.quote(" ".join(verb.name for verb in verbs))
    commands = "|".join(verb.name for verb in verbs if verb.takes_command)
    return f"""\
# Completion of headrace for bash: headrace completion bash
_headrace() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD - 1]}} verb=${{COMP_WORDS[1]}} words= values= at
    COMPREPLY=()
    if ((COMP_CWORD == 1)); then
        COMPREPLY=($(compgen -W {names} -- "$word"))
        return
    fi
    # bash cuts words at "=": --precision=bf are the words --precision, =, bf.
    if [[ $word == = ]]; then
        word=
    elif [[ $previous == = ]]; then
        previous=${{COMP_WORDS[COMP_CWORD - 2]}}
    fi
    case $verb in {commands})
        for ((at = 2; at < COMP_CWORD; at++)); do
            if [[ ${{COMP_WORDS[at]}} == -- ]]; then
                if ((at == COMP_CWORD - 1)); then mapfile -t COMPREPLY < <(compgen -c -- "$word"); fi
                mapfile -t -O ${{#COMPREPLY[@]}} COMPREPLY < <(compgen -f -- "$word")
                compopt -o filenames
                return
            fi
        done ;;
    esac
    case $verb in
{"".join(_bash_case(verb) for verb in verbs)}    esac
    if [[ $values == - ]]; then
        return
    elif [[ -n $values ]]; then
        COMPREPLY=($(compgen -W "$values" -- "$word"))
    elif [[ $word == -* ]]; then
        COMPREPLY=($(compgen -W "$words" -- "$word"))
    else
        mapfile -t COMPREPLY < <(compgen -f -- "$word")
        compopt -o filenames
    fi
}}
complete -F _headrace headrace
"""


def _bash_case(verb: VerbWords) -> str:
    words = " ".join(name for option in verb.options for name in option.names) + (" --" if verb.takes_command else "")
    values = [
        f"            {'|'.join(option.names)}) values={shlex.quote(' '.join(option.choices))} ;;\n"
        for option in verb.options
        if option.choices
    ]
    if verb.words:
        values.append(f"            {verb.name}) [[ $word == -* ]] || values={shlex.quote(' '.join(verb.words))} ;;\n")
    chosen = f"        case $previous in\n{''.join(values)}        esac\n" if values else ""
    return f"    {verb.name})\n        words={shlex.quote(words)}\n{chosen}        ;;\n"


def _zsh(verbs: Sequence[VerbWords]) -> str:
    described = "\n".join(f"        {shlex.quote(f'{verb.name}:{verb.summary}')}" for verb in verbs)
    cases = "".join(f"    {verb.name})\n        _arguments -S \\\n{_zsh_arguments(verb)}        ;;\n" for verb in verbs)
    return f"""\
#compdef headrace
# Completion of headrace for zsh: headrace completion zsh
_headrace() {{
    local -a verbs
    verbs=(
{described}
    )
    if ((CURRENT == 2)); then
        _describe verb verbs
        return
    fi
    local verb=$words[2]
    shift words
    ((CURRENT--))
    local dashes=${{words[(i)--]}}
    if ((dashes < CURRENT)) && [[ " {" ".join(verb.name for verb in verbs if verb.takes_command)} " == *" $verb "* ]]; then
        shift $dashes words
        ((CURRENT -= dashes))
        _normal
        return
    fi
    case $verb in
{cases}    esac
}}
if [[ $funcstack[1] == _headrace ]]; then
    _headrace "$@"
else
    compdef _headrace headrace
fi
"""


def _zsh_arguments(verb: VerbWords) -> str:
    lines = []
    for option in verb.options:
        text = re.sub(r"([\[\]:\\])", r"\\\1", option.help)
        for name in option.names:
            values = f"({' '.join(option.choices)})" if option.choices else "_files"
            value = f":value:{values}" if option.takes_value else ""
            lines.append(f"{name}{'=' if option.takes_value and name.startswith('--') else ''}[{text}]{value}")
    lines.append(f"*:argument:({' '.join(verb.words)})" if verb.words else "*:file:_files")
    return " \\\n".join(f"            {shlex.quote(line)}" for line in lines) + "\n"


def _fish(verbs: Sequence[VerbWords]) -> str:
    lines = [
        "# Completion of headrace for fish: headrace completion fish",
        "function __headrace_verb --description 'Whether the verb is one of the arguments, and no command has begun'",
        "    set -l words (commandline -opc)",
        "    test (count $words) -ge 2; and contains -- $words[2] $argv; and not contains -- -- $words",
        "end",
        "complete -c headrace -n 'test (count (commandline -opc)) -eq 1' -f",
    ]
    for verb in verbs:
        head = f"complete -c headrace -n '__headrace_verb {verb.name}'"
        first = "test (count (commandline -opc)) -eq 1"
        lines.append(f"complete -c headrace -n '{first}' -a {verb.name} -d {_fish_quoted(verb.summary)}")
        if verb.words:
            lines.append(f"{head} -f -a {_fish_quoted(' '.join(verb.words))}")
        lines += [line for option in verb.options for line in _fish_option(head, option)]
    return "\n".join(lines) + "\n"


def _fish_option(head: str, option: Option) -> Iterator[str]:
    for name in option.names:
        kind = f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}"
        value = f" -x -a {_fish_quoted(' '.join(option.choices))}" if option.choices else " -r" if option.takes_value else ""
        yield f"{head} {kind}{value} -d {_fish_quoted(option.help)}"


def _fish_quoted(text: str) -> str:
    """Quote for fish, where only \\ and ' have a meaning in single quotes."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


_SCRIPTS: dict[str, Callable[[Sequence[VerbWords]], str]] = {"bash": _bash, "fish": _fish, "zsh": _zsh}
