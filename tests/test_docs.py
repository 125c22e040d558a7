"""The documents are true: their commands parse, their Python names exist, their paths and links lead somewhere."""

from __future__ import annotations

import argparse
import ast
import importlib
import importlib.util
import inspect
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from headrace import errors
from headrace.cli import main as command_line
from headrace.cli.main import VERBS
from headrace.diagnosis.result.kinds import KINDS

REPOSITORY = Path(__file__).resolve().parent.parent
VERB_PAGES = REPOSITORY / "docs" / "reference" / "cli"
DOCUMENTS = [
    REPOSITORY / "README.md",
    REPOSITORY / "CHANGELOG.md",
    REPOSITORY / "CONTRIBUTING.md",
    *sorted((REPOSITORY / "docs").rglob("*.md")),
    *sorted((REPOSITORY / "benchmarks" / "results").rglob("*.md")),
]
PATH = re.compile(
    r"(?<![\w/.:-])(?:python|benchmarks|scripts|tests|docs|crates|fuzz|headrace|training|jpeg)/[\w./-]*\w\.(?:py|sh|rs|md|toml|json|txt)\b"
)
FOLDERS = sorted((REPOSITORY / "python" / "headrace").rglob("__init__.py"))
ROOTS = ("", "python", "python/headrace", "crates/headrace-core/src", "docs")
"""Folders that paths in prose are relative to."""


def name_of(path: Path) -> str:
    return str(path.relative_to(REPOSITORY))


@cache
def code_blocks(path: Path) -> list[tuple[str, str]]:
    """(language, text) of the fenced and the indented code blocks of a document."""
    blocks: list[tuple[str, str]] = []
    language: str | None = None
    lines: list[str] = []
    for line in [*path.read_text(encoding="utf-8").splitlines(), ""]:
        if line.startswith("```"):
            if language is not None:
                blocks.append((language, "\n".join(lines)))
            language, lines = (line.strip("`").strip(), []) if language is None else (None, [])
        elif language is not None:
            lines.append(line)
        elif line.startswith("    "):
            lines.append(line[4:])
        elif lines:
            blocks.append(("", "\n".join(lines)))
            lines = []
    return blocks


def commands(path: Path) -> Iterator[str]:
    """Command lines in the code blocks of a document, without the words that explain them."""
    for language, text in code_blocks(path):
        if language in ("", "sh", "bash"):
            for line in text.replace("\\\n", " ").splitlines():
                yield re.split(r"\s+#|\s{2,}", line.strip().removeprefix("$ "))[0]


def documents_with(word: str) -> list[Path]:
    written = [path for path in DOCUMENTS if path.parent != VERB_PAGES and path.name != "cli.md"]
    return [path for path in written if any(line.startswith(word) for line in commands(path))]


def section_of(verb: str) -> str:
    return (VERB_PAGES / f"{verb}.md").read_text(encoding="utf-8").removeprefix(f"# headrace {verb}\n")


@pytest.mark.parametrize("verb", VERBS)
def test_the_command_reference_is_up_to_date(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parser = argparse.ArgumentParser()
    importlib.import_module(VERBS[verb]).add_arguments(parser)
    for action in parser._actions:
        for option in action.option_strings or [action.metavar or action.dest]:
            assert str(option) in section_of(verb), (
                f"{option} of `headrace {verb}` is not in docs/reference/cli: run make results"
            )
    monkeypatch.syspath_prepend(str(REPOSITORY / "benchmarks"))
    printed = importlib.import_module("pages.command_line").help_of(verb)
    assert section_of(verb).strip() == f"```\n{printed}\n```", (
        "docs/reference/cli is not what the command prints: run make results"
    )


@pytest.mark.parametrize("path", documents_with("headrace "), ids=name_of)
def test_every_command_in_the_documents_parses(path: Path) -> None:
    lines = [line for line in commands(path) if line.startswith("headrace ")]
    assert lines
    for line in lines:
        words = [word for word in shlex.split(line)[1:] if word not in ("…", "...")]
        verb = command_line._load(words[0])
        assert command_line._parse(verb, words), line


@cache
def options_of(verb: str) -> frozenset[str]:
    """The option strings of a verb, and the names of its presets and sub-verbs."""
    parser = argparse.ArgumentParser()
    importlib.import_module(VERBS[verb]).add_arguments(parser)
    return frozenset(option for action in parser._actions for option in action.option_strings) | {
        "--json",
        "--",
        "--help",
        "-h",
    }


def test_every_invocation_in_prose_names_verbs_and_options_that_exist() -> None:
    found = 0
    for path in DOCUMENTS:
        prose = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        for span in re.findall(r"`headrace\s+([^`]+)`", prose):
            words = re.sub(r"\s+", " ", span).split(" -- ")[0].split()
            if words[0].isupper() or words[0] in ("-h", "WORDS"):
                continue
            found += 1
            assert words[0] in VERBS, f"{name_of(path)}: headrace {span}"
            for word in words[1:]:
                if word.startswith("--"):
                    assert word.split("=")[0] in options_of(words[0]), f"{name_of(path)}: headrace {span}"
    assert found > 50


@pytest.mark.parametrize("path", documents_with("make "), ids=name_of)
def test_every_make_target_in_the_documents_exists(path: Path) -> None:
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    targets = {word for line in makefile.splitlines() if re.match(r"[a-z]", line) for word in line.split(":")[0].split()}
    for line in commands(path):
        if line.startswith("make "):
            assert line.split()[1] in targets, line
    for target in re.findall(r"`make ([\w-]+)", path.read_text(encoding="utf-8")):
        assert target in targets, f"make {target}"


def python_blocks() -> list[tuple[Path, str]]:
    return [(path, text) for path in DOCUMENTS for language, text in code_blocks(path) if language == "python"]


def resolved(dotted: str) -> Any:
    """The object of a dotted name below `headrace`; None where a package that is not installed is needed."""
    parts = dotted.split(".")
    for end in range(len(parts), 0, -1):
        try:
            if importlib.util.find_spec(".".join(parts[:end])) is None:
                continue
        except ModuleNotFoundError:
            continue
        try:
            found: Any = importlib.import_module(".".join(parts[:end]))
        except ImportError as error:
            if (error.name or "headrace").startswith("headrace"):
                raise
            return None
        for part in parts[end:]:
            found = getattr(found, part)
        return found
    raise ModuleNotFoundError(dotted)


@pytest.mark.parametrize(("path", "text"), python_blocks(), ids=lambda value: name_of(value) if isinstance(value, Path) else "")
def test_every_python_example_compiles_and_its_names_exist(path: Path, text: str) -> None:
    tree = ast.parse(text)
    names = {"headrace": "headrace", "hr": "headrace"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("headrace"):
            for alias in node.names:
                resolved(f"{node.module}.{alias.name}")
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("headrace"):
                    names[alias.asname or alias.name] = alias.name
    for node in ast.walk(tree):
        dotted = ast.unparse(node) if isinstance(node, ast.Attribute) else ""
        first, _, rest = dotted.partition(".")
        if first in names and re.fullmatch(r"[\w.]+", rest):
            resolved(f"{names[first]}.{rest}")
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        first, _, rest = ast.unparse(call.func).partition(".")
        function = resolved(f"{names[first]}.{rest}".rstrip(".")) if first in names else None
        if function is not None:
            values = {word.arg: None for word in call.keywords if word.arg}
            try:
                inspect.signature(function).bind(*call.args, **values)
            except TypeError as error:
                pytest.fail(f"{ast.unparse(call)}: {error}")


def test_the_fast_lane_lists_files_without_slow_tests() -> None:
    lines = (REPOSITORY / "tests/fast_lane.txt").read_text(encoding="utf-8").splitlines()
    listed = [line for line in lines if not line.startswith("#")]
    assert listed == sorted(set(listed))
    marked = re.compile(r"\bmark\.(slow|matrix)\b")
    assert not [name for name in listed if marked.search((REPOSITORY / name).read_text(encoding="utf-8"))]


def test_every_dotted_name_in_the_documents_exists() -> None:
    found = set()
    for path in DOCUMENTS:
        for dotted in re.findall(r"`(headrace(?:\.\w+)+)", path.read_text(encoding="utf-8")):
            if not dotted.endswith((".json", ".prom", ".egg")):
                found.add(dotted)
                try:
                    resolved(dotted)
                except (AttributeError, ModuleNotFoundError):
                    pytest.fail(f"{name_of(path)}: {dotted} does not exist")
    assert len(found) > 5


def test_every_path_in_the_documents_exists() -> None:
    found = [(path, word) for path in DOCUMENTS for word in PATH.findall(path.read_text(encoding="utf-8"))]
    absent = [
        f"{name_of(path)}: {word}" for path, word in found if not any((REPOSITORY / root / word).exists() for root in ROOTS)
    ]
    assert not absent
    assert len(found) > 30


@cache
def anchors(path: Path) -> frozenset[str]:
    """The anchors of a document's headings, as Markdown's extension `toc` makes them."""
    prose = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    words = [re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in re.findall(r"^#+ (.+)$", prose, re.MULTILINE)]
    return frozenset(re.sub(r"[-\s]+", "-", heading) for heading in words)


def test_every_link_in_the_documents_leads_somewhere() -> None:
    found = 0
    for path in DOCUMENTS:
        for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8")):
            if not target.startswith(("http:", "https:")):
                found += 1
                name, _, anchor = target.partition("#")
                page = path.parent / name if name else path
                assert page.exists(), f"{name_of(path)}: {target}"
                assert not anchor or page.suffix != ".md" or anchor in anchors(page), f"{name_of(path)}: {target}"
    assert found > 30


def test_the_tree_of_errors_in_the_module_is_the_tree_of_the_classes() -> None:
    drawn: dict[str, str] = {}
    above = ["HeadraceError"]
    for line in (errors.__doc__ or "").splitlines():
        if match := re.match(r"([│ ]*)[├└]── (\w+)", line):
            depth = len(match[1]) // 4 + 1
            del above[depth:]
            drawn[match[2]] = above[-1]
            above.append(match[2])
    classes = {name: one for name in errors.__all__ if isinstance(one := getattr(errors, name), type)}
    del classes["HeadraceError"]
    assert drawn == {name: one.__bases__[0].__name__ for name, one in classes.items()}


@pytest.mark.parametrize("verb", VERBS)
def test_every_example_of_a_verb_parses(verb: str) -> None:
    example = importlib.import_module(VERBS[verb]).EXAMPLE.strip().replace("\\\n", " ")
    for line in example.splitlines():
        words = [word for word in shlex.split(line.split("  #")[0]) if word != "HEADRACE=off"]
        assert words[0] == "headrace" and words[1] in VERBS
        assert command_line._parse(command_line._load(words[1]), words[1:])
    assert f"headrace {verb}" in example


def test_the_page_of_architecture_names_every_folder() -> None:
    page = (REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8")
    folders = sorted(path.parent.name for path in (REPOSITORY / "python" / "headrace").glob("*/__init__.py"))
    assert [name for name in folders if f"`{name}`" not in page] == []


def test_the_changelog_is_short() -> None:
    assert len((REPOSITORY / "CHANGELOG.md").read_bytes()) <= 12_000


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.parent.name)
def test_each_folder_lists_its_rooms(folder: Path) -> None:
    text = ast.get_docstring(ast.parse(folder.read_text(encoding="utf-8"))) or ""
    rooms = sorted(path.parent.name for path in folder.parent.glob("*/__init__.py") if path.parent.name != "site")
    assert [name for name in rooms if f"`{name}`" not in text] == []


def test_the_table_of_kinds_is_the_list_of_kinds() -> None:
    page = (REPOSITORY / "docs" / "reference" / "diagnosis.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([A-Z0-9_]+) \| (.+) \| ([\w/., ]+\.py) \|$", page, re.MULTILINE)
    assert [(name, summary) for name, summary, _ in rows] == [(kind.name, kind.summary) for kind in KINDS.values()]
    for name, _, modules in rows:
        for module in modules.split(", "):
            assert f'"{name}"' in (REPOSITORY / "python" / "headrace" / "diagnosis" / module).read_text(encoding="utf-8")


def variables_in(*folders: str) -> set[str]:
    files = [path for folder in folders for path in (REPOSITORY / folder).rglob("*") if path.suffix in (".py", ".rs", ".sh")]
    text = "\n".join(path.read_text(encoding="utf-8") for path in files)
    found = set(re.findall(r"""["'{$](HEADRACE(?:_[A-Z0-9]+)*)\b""", text))
    return found - {"HEADRACE_RUN"}  # a name of Python, in `__all__`


def test_the_page_of_environment_variables_lists_those_in_the_code() -> None:
    page = (REPOSITORY / "docs" / "reference" / "environment.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"`(HEADRACE\w*)`", page))
    used = variables_in("python", "crates", "scripts", "benchmarks")
    missing, unknown = used - listed, listed - used - variables_in("tests")
    assert not missing, f"docs/reference/environment.md lacks {missing}"
    assert not unknown, f"docs/reference/environment.md lists {unknown}, which no code reads"
    assert len(listed) > 20


PAGES = [path for path in DOCUMENTS if path.name != "README.md" and "notes" not in path.parts]


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_a_page_has_at_most_3000_words(path: Path) -> None:
    """A longer one has more than one subject: docs/reference/diagnosis.md and its neighbours show how to divide it."""
    prose = re.sub(r"\]\([^)]*\)|<!--.*?-->", " ", path.read_text(encoding="utf-8"))
    assert sum(bool(re.search(r"\w", word)) for word in prose.split()) <= 3_000
