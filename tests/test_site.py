"""The documentation site builds without a warning, its links lead somewhere, and no page asks another server for anything."""

from __future__ import annotations

import html
import importlib.util
import json
import os
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import unquote, urlparse

import headrace as hr
import pytest
from headrace import transforms

REPOSITORY = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.skipif(importlib.util.find_spec("zensical") is None, reason="needs the extra `site`")


def module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"{name}_script", REPOSITORY / "scripts" / f"{name}.py")
    assert spec and spec.loader
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


class Page(HTMLParser):
    """What a page links to, what it loads, and its anchors."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.words = 0
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value for name, value in attrs if value}
        self.anchors |= {found[name] for name in ("id", "name") if name in found}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        elif tag == "link" and found.get("rel") not in ("canonical", "next", "prev"):
            self.loaded.append(found.get("href", ""))
        elif "src" in found:
            self.loaded.append(found["src"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    os.environ.setdefault("NO_COLOR", "1")
    assert module("build_site").build(folder / "work", folder / "html") == 0
    return folder / "html"


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path) for path in site.rglob("*.html")}


@pytest.mark.slow
def test_every_link_and_anchor_of_the_site_leads_somewhere(site: Path, pages: dict[Path, Page]) -> None:
    broken = []
    followed = 0
    for path, page in pages.items():
        if path.name == "404.html":  # its links are absolute: a server shows it at any place
            continue
        for link in [*page.links, *page.loaded]:
            url = urlparse(link)
            if url.scheme or url.netloc:
                continue
            followed += 1
            target = (path.parent / unquote(url.path)).resolve() if url.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file() or (
                url.fragment and target.suffix == ".html" and url.fragment not in pages[target].anchors
            ):
                broken.append(f"{path.relative_to(site)}: {link}")
    assert not broken, broken
    assert followed > 1000


def test_no_page_loads_anything_from_another_server(site: Path, pages: dict[Path, Page]) -> None:
    foreign = {
        f"{path.relative_to(site)}: {link}" for path, page in pages.items() for link in page.loaded if urlparse(link).netloc
    }
    assert not foreign
    for style in site.rglob("*.css"):
        assert not re.findall(r"(?:@import|url\()\s*['\"]?https?:", style.read_text(encoding="utf-8")), style


def test_every_page_is_in_the_navigation(site: Path, pages: dict[Path, Page]) -> None:
    shown = {(site / unquote(urlparse(link).path)).resolve() for link in pages[site / "index.html"].links}
    left_out = {str(path.relative_to(site)) for path in pages if path not in shown and path.name != "404.html"}
    assert not left_out


def test_the_search_finds_no_changelog_and_is_also_a_script(site: Path) -> None:
    index = (site / "search.json").read_text(encoding="utf-8")
    found = {item["location"].partition("#")[0] for item in json.loads(index)["items"]}
    assert "quickstart.html" in found and "changelog.html" not in found
    assert (site / "search.js").read_text(encoding="utf-8") == f"var __index = {index};\n"


def test_the_reference_has_no_methods_of_our_own_use_and_one_argument_a_line(site: Path, pages: dict[Path, Page]) -> None:
    anchors = pages[site / "reference" / "api" / "loader.html"].anchors
    assert "headrace.Loader.state_dict" in anchors
    assert not {f"headrace.Loader.{name}" for name in ("begin_next", "top_up", "plan")} & anchors
    crowded = []
    for path in (site / "reference" / "api").glob("*.html"):
        for block in re.findall(r'<div class="doc-signature.*?</pre>', path.read_text(encoding="utf-8"), re.DOTALL):
            text = html.unescape(re.sub(r"<[^>]+>", "", block))
            first = text.partition("\n")[0]
            if len(first) > 50 and re.search(r"\w: .*, \w+: ", first):  # what fits on a phone may stay on one line
                crowded.append(text)
    assert not crowded


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FRAMES = """<body><script>
addEventListener("load", async () => {
  const found = [];
  for (const page of PAGES) {
    for (const width of [390, 1280]) {  // in a frame, because a window has a least width
      const frame = document.createElement("iframe");
      frame.style = `width:${width}px;height:900px;border:0`;
      frame.src = page;
      document.body.append(frame);
      await new Promise(done => { frame.onload = done; });
      const loaded = frame.contentWindow.performance.getEntriesByType("resource").map(entry => entry.name);
      const foreign = loaded.filter(name => !name.startsWith("file:") && !name.startsWith("data:"));
      found.push([page, width, frame.contentDocument.documentElement.scrollWidth, foreign]);
      frame.remove();
    }
  }
  const all = document.createElement("output");
  all.textContent = JSON.stringify(found);
  document.body.append(all);
});
</script></body>"""


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_page_scrolls_sideways_on_a_phone_or_a_desktop_and_none_asks_another_server(
    site: Path, pages: dict[Path, Page], tmp_path: Path
) -> None:
    frames = tmp_path / "frames.html"
    urls = sorted(path.as_uri() for path in pages if path.name != "404.html")  # whose files have absolute paths
    frames.write_text(FRAMES.replace("PAGES", json.dumps(urls)), encoding="utf-8")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", f"--user-data-dir={tmp_path / 'profile'}"]
    options += ["--host-resolver-rules=MAP * ~NOTFOUND", "--allow-file-access-from-files", "--window-size=1300,1000"]
    command = [str(CHROMIUM), *options, "--virtual-time-budget=10000000", "--dump-dom", frames.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    if done.returncode:
        pytest.skip(f"Chromium does not start here: {done.stderr[-200:]}")
    output = re.search(r"<output>(.*?)</output>", done.stdout)
    assert output is not None, done.stdout[-300:] + done.stderr[-300:]
    found: list[tuple[str, int, int, list[str]]] = json.loads(html.unescape(output[1]))
    assert len(found) == 2 * len(urls) > 100
    assert [(page, width, reach) for page, width, reach, _ in found if reach > width] == []
    assert [(page, foreign) for page, _, _, foreign in found if foreign] == []


SEARCH = """<script>
const rooted = page => [...page.querySelectorAll("*")].filter(one => one.shadowRoot).map(one => one.shadowRoot);
const until = async found => { while (!found()) await new Promise(done => setTimeout(done, 50)); return found(); };
addEventListener("load", async () => {
  await until(() => window.__index);
  document.querySelector(".md-search__button").click();
  const box = await until(() => rooted(document).map(root => root.querySelector("input")).find(Boolean));
  box.value = "mixup";
  box.dispatchEvent(new Event("input", {bubbles: true, composed: true}));
  const links = () => rooted(document).flatMap(root => [...root.querySelectorAll("a")]).map(link => link.href);
  const all = document.createElement("output");
  all.textContent = (await until(() => links().some(link => link.includes(".html")) && links())).join(" ");
  document.body.append(all);
});
</script></body>"""


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_search_works_in_a_page_that_is_opened_as_a_file(site: Path, tmp_path: Path) -> None:
    copy = tmp_path / "site"
    shutil.copytree(site, copy)
    page = copy / "index.html"
    page.write_text(page.read_text(encoding="utf-8").replace("</body>", SEARCH), encoding="utf-8")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", f"--user-data-dir={tmp_path / 'profile'}"]
    command = [str(CHROMIUM), *options, "--virtual-time-budget=60000", "--dump-dom", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250)
    if done.returncode:
        pytest.skip(f"Chromium does not start here: {done.stderr[-200:]}")
    output = re.search(r"<output>(.*?)</output>", done.stdout)
    assert output is not None and "transforms-batches.html" in output[1], done.stdout[-300:] + done.stderr[-300:]


def test_every_public_name_is_in_the_reference(site: Path, pages: dict[Path, Page]) -> None:
    anchors = {
        anchor for path, page in pages.items() if "api" in path.parts or path.name == "errors.html" for anchor in page.anchors
    }
    names = {f"headrace.{name}" for name in hr.__all__ if name not in ("__version__", "errors", "transforms")}
    names |= {f"headrace.transforms.{name}" for name in transforms.__all__}
    names |= {f"headrace.errors.{name}" for name in hr.errors.__all__}
    missing = names - anchors
    assert not missing
    listed = (REPOSITORY / "docs" / "reference" / "api" / "index.md").read_text(encoding="utf-8")
    assert [name for name in hr.__all__ if f"`hr.{name}`" not in listed] == []


@pytest.mark.parametrize(
    "text",
    ["[a](gone.md)", "[a](../python/gone.py)", "# x\n\n[a](#nowhere)", "[a](STYLE.md#nowhere)"],
    ids=["page", "source file", "anchor", "anchor of another page"],
)
def test_a_broken_link_fails_the_build(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = module("build_site")
    (tmp_path / "docs" / "decisions").mkdir(parents=True)
    (tmp_path / "benchmarks" / "results").mkdir(parents=True)
    (tmp_path / "mkdocs.yml").write_text((REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8"), encoding="utf-8")
    for name in ("STYLE", "glossary", "fuzzing", "quickstart", "index"):
        (tmp_path / "docs" / f"{name}.md").write_text(f"# {name}\n\nWords.\n", encoding="utf-8")
    for name in ("site.css", "site.js"):
        (tmp_path / "docs" / name).write_text("", encoding="utf-8")
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n", encoding="utf-8")
    (tmp_path / "CONTRIBUTING.md").write_text("# Contributing\n", encoding="utf-8")
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "docstring_lists.py").write_bytes((REPOSITORY / "scripts" / "docstring_lists.py").read_bytes())
    monkeypatch.setattr(script, "REPOSITORY", tmp_path)
    assert script.build(tmp_path / "work", tmp_path / "html") == 0
    (tmp_path / "docs" / "index.md").write_text(f"# Index\n\n{text}\n", encoding="utf-8")
    assert script.build(tmp_path / "work", tmp_path / "html") != 0


def test_the_drawings_are_what_their_program_draws() -> None:
    script = module("drawings")
    for name, draw in script.PICTURES.items():
        assert (script.IMAGES / f"{name}.svg").read_text(encoding="utf-8") == draw(), f"{name}: run scripts/drawings.py"
    assert {path.stem for path in script.IMAGES.glob("*.svg")} == set(script.PICTURES) | {
        "logo",
        "launch-follow",
        "launch-sagemaker",
    }


@pytest.mark.parametrize(
    ("docstring", "expected"),
    [
        (
            "Do it.\n\na (1): one\n    more\nb, c: two\n\nReturns x.",
            "Do it.\n\n- `a` (1): one\n    more\n- `b`, `c`: two\n\nReturns x.",
        ),
        ("Kinds:\n- one\n- two", "Kinds:\n\n- one\n- two"),
        ("Text: with a colon.\nMore text.", "Text: with a colon.\nMore text."),
    ],
)
def test_docstrings_become_markdown(docstring: str, expected: str) -> None:
    found: Any = module("docstring_lists").markdown(docstring)
    assert found == expected


def test_every_path_of_a_document_in_the_code_exists() -> None:
    files = [path for folder in ("python", "benchmarks", "scripts", "tests") for path in (REPOSITORY / folder).rglob("*.py")]
    named = {word for path in files for word in re.findall(r"docs/[\w/.-]+\.(?:md|json|png)", path.read_text(encoding="utf-8"))}
    assert {word for word in named if not (REPOSITORY / word).exists()} == set()
    assert len(named) >= 10
