"""Build the documentation site:   make site      (site/index.html; needs no network)

Pages come from several places: docs/, benchmarks/results, CHANGELOG.md, CONTRIBUTING.md and examples/. They link to each other
as files of the repository. This program copies them to target/site/pages, makes their links links of the site, completes `nav`
of mkdocs.yml and runs Zensical in strict mode. A link to a file that is no page gets a copy of the file; one that leads
nowhere is an error.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

REPOSITORY = Path(__file__).resolve().parent.parent
_DECISIONS = "What was decided, why, and what it costs. The numbers 7 to 9 were never used."
_LINK = re.compile(r"(?<=\]\()(?!https?:|mailto:|#)([^)\s#]+)(#[^)\s]*)?(?=\))")
_PICTURE = re.compile(r"^!\[([^\]]*)\]\(([^)]+\.svg)\)$")


def sources() -> dict[str, str]:
    """Return the files of the repository that are pages or parts of pages, and their place in the site."""
    docs = [path for path in (REPOSITORY / "docs").rglob("*") if path.is_file()]
    found = {str(path.relative_to(REPOSITORY)): str(path.relative_to(REPOSITORY / "docs")) for path in docs}
    found |= {f"benchmarks/results/{path.name}": f"results/{path.name}" for path in results()}
    found |= {f"examples/{path.name}": f"guides/examples/{path.stem}.md" for path in examples()}
    for path in sorted((REPOSITORY / "examples").glob("*")):
        if path.suffix in (".ipynb", ".md"):
            found[f"examples/{path.name}"] = f"guides/examples/{path.name.replace('README.md', 'index.md')}"
    return found | {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}


def results() -> list[Path]:
    """Return the pages of results."""
    return sorted((REPOSITORY / "benchmarks" / "results").glob("*.md"))


def examples() -> list[Path]:
    """Return the example programs."""
    return sorted((REPOSITORY / "examples").glob("*.py"))


def folders() -> dict[str, str]:
    """Return the folders that pages link to, and the page of the site that lists their content."""
    return {
        "docs/decisions": "decisions/index.md",
        "benchmarks/results": "results/index.md",
        "examples": "guides/examples/index.md",
    }


def relinked(text: str, source: str, places: dict[str, str]) -> str:
    """Return a page's text with links between files of the repository as links of the site.

    places: the place of each file in the site. A linked file that has none gets one.

    Raises ValueError for a link to a file that does not exist.
    """

    def replaced(match: re.Match[str]) -> str:
        target = os.path.normpath(Path(source).parent / match[1])
        if target not in places:
            if not (REPOSITORY / target).is_file():
                raise ValueError(f"{source}: {match[1]} does not exist")
            seen = target.lstrip(".").replace("/.", "/")  # the site leaves hidden folders out
            places[target] = f"files/{seen}.txt"  # browsers show a text, and load other files down
        return os.path.relpath(places[target], Path(places[source]).parent) + (match[2] or "")

    lines = []
    in_code = False
    for line in text.splitlines():
        in_code ^= line.startswith("```")
        lines.append(line if in_code or line.startswith("    ") else _LINK.sub(replaced, line))
    return "\n".join(lines) + "\n"


def with_drawings(text: str, source: str) -> str:
    """Return a page's text with its SVG pictures as elements of the page, so that they take the page's colours."""
    lines = []
    for line in text.splitlines():
        if match := _PICTURE.match(line):
            drawing = (REPOSITORY / source).parent.joinpath(match[2]).read_text(encoding="utf-8")
            line = f'<figure class="drawing">{" ".join(drawing.split())}</figure>'
        lines.append(line)
    return "\n".join(lines) + "\n"


def example_page(path: Path) -> str:
    """Return the page of an example: its first line as the title, and the program."""
    text = path.read_text(encoding="utf-8")
    title = (ast.get_docstring(ast.parse(text)) or path.stem).partition("\n")[0].rstrip(".")
    return f"# {title}\n\n`examples/{path.name}`:\n\n```python\n{text.strip()}\n```\n"


def title_of(path: Path) -> str:
    """Return the first heading of a page."""
    return next(line[2:] for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("# "))


def decisions() -> str:
    """Return the page that lists the decisions."""
    pages = sorted((REPOSITORY / "docs" / "decisions").glob("*.md"))
    return "\n".join(["# Decisions", "", _DECISIONS, "", *map(_item, pages), ""])


def _item(path: Path) -> str:
    return f"- [{title_of(path)}]({path.name})"


def write_pages(folder: Path) -> None:
    """Write all pages of the site to `folder`."""
    places = sources() | folders()
    for source, place in sources().items():
        target = folder / place
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.startswith("examples/") and source.endswith(".py"):
            target.write_text(example_page(REPOSITORY / source), encoding="utf-8")
        elif source.endswith(".md"):
            text = (REPOSITORY / source).read_text(encoding="utf-8")
            target.write_text(relinked(with_drawings(text, source), source, places), encoding="utf-8")
        else:
            shutil.copyfile(REPOSITORY / source, target)
    for source, place in places.items():
        if place.startswith("files/"):
            (folder / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(REPOSITORY / source, folder / place)
    (folder / "decisions").mkdir(exist_ok=True)
    (folder / "decisions" / "index.md").write_text(decisions(), encoding="utf-8")


def completed(nav: list[Any], folder: Path) -> list[Any]:
    """Return `nav` with each `FOLDER/*` replaced by the pages of that folder that `nav` does not list."""
    named: set[str] = set()

    def names(entry: Any) -> None:
        if isinstance(entry, str):
            named.add(entry)
        for inner in entry.values() if isinstance(entry, dict) else entry if isinstance(entry, list) else ():
            names(inner)

    def expanded(entries: list[Any]) -> list[Any]:
        found: list[Any] = []
        for entry in entries:
            if isinstance(entry, str) and entry.endswith("/*"):
                pages = sorted(str(path.relative_to(folder)) for path in (folder / entry[:-2]).glob("*.md"))
                found += [page for page in pages if page not in named]
            elif isinstance(entry, dict):
                shown = {key: expanded(inner) if isinstance(inner, list) else inner for key, inner in entry.items()}
                found += [shown] if all(shown.values()) else []
            else:
                found.append(entry)
        return found

    names(nav)
    return expanded(nav)


def configuration(pages: Path) -> dict[str, Any]:
    """Return mkdocs.yml, completed for the pages in `pages`; it lies beside that folder."""
    config: dict[str, Any] = yaml.safe_load((REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8"))
    config["nav"] = completed(config["nav"], pages)
    config["docs_dir"], config["site_dir"] = pages.name, "html"
    options = next(plugin["mkdocstrings"] for plugin in config["plugins"] if isinstance(plugin, dict))
    python = options["handlers"]["python"]
    python["paths"] = [str(REPOSITORY / path) for path in python["paths"]]
    python["options"]["extensions"] = [str(REPOSITORY / path) for path in python["options"]["extensions"]]
    return config


def write_index(folder: Path) -> None:
    """Take the changelog out of the index of the search; write the index as a script, too, for pages opened as files."""
    path = folder / "search.json"
    index = json.loads(path.read_text(encoding="utf-8"))
    index["items"] = [item for item in index["items"] if not item["location"].startswith("changelog.html")]
    text = json.dumps(index, ensure_ascii=False, separators=(",", ":"))
    path.write_text(text, encoding="utf-8")
    (folder / "search.js").write_text(f"var __index = {text};\n", encoding="utf-8")


def build(work: Path, site: Path) -> int:
    """Write the pages to `work` and the site to `site`; return the exit code."""
    shutil.rmtree(work, ignore_errors=True)
    try:
        write_pages(work / "pages")
    except ValueError as error:
        print(f"site: {error}", file=sys.stderr)
        return 1
    file = work / "mkdocs.yml"
    file.write_text(yaml.safe_dump(configuration(work / "pages"), sort_keys=False, allow_unicode=True), encoding="utf-8")
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean", "--config-file", str(file)]
    code = subprocess.run(command, cwd=REPOSITORY).returncode
    if code == 0:
        write_index(work / "html")
        shutil.rmtree(site, ignore_errors=True)
        shutil.move(work / "html", site)
    return code


def main() -> int:
    """Build the site of this repository."""
    code = build(REPOSITORY / "target" / "site", REPOSITORY / "site")
    if code == 0:
        print("site: open site/index.html, or serve it:  python3 -m http.server --directory site")
    return code


if __name__ == "__main__":
    sys.exit(main())
