"""Write every page that is made from results or code:   make results

From the JSON documents in benchmarks/results/data: the pages in benchmarks/results, and the measured parts of README.md,
docs/index.md, docs/results/index.md, docs/reference/exactness.md and docs/fuzzing-runs.md, which lie between
`<!-- results:begin NAME -->` and `<!-- results:end NAME -->`. From the code: docs/reference/cli.md and the pages below it,
docs/reference/diagnosis.schema.json, the lists of transforms in three pages, and with botocore the pictures
docs/images/launch-*.svg.
tests/test_pages.py fails when a file is not what this program would write.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from pages import command_line, exactness, fuzzing, readme, screens, transforms, trials
from pages.document import DATA, RESULTS, read

REPOSITORY = Path(__file__).resolve().parent.parent
PAGES = (
    *("augmentation", "awaits_gpu", "cost", "decode", "demo", "diagnosis", "gpu", "gpu_decoder_model", "loaders"),
    *("gpu-trials", "measured_once", "object_store", "pack", "parity", "run", "tf_input"),
    *("train_parity", "trainer_wait", "trials"),
    *(name for name in ("intervals",) if (DATA / f"{name}.json").exists()),  # not measured on a quiet machine yet
)
"""The pages in benchmarks/results, by the names of their documents and of their modules in benchmarks/pages."""


def module_of(name: str) -> str:
    """Return the name of the Python module that renders a page: pages.gpu_trials for gpu-trials."""
    return f"pages.{name.replace('-', '_')}"


def filled(text: str, name: str, part: str) -> str:
    """Return `text` with `part` between the markers of `name`. Raise ValueError where the markers are not there."""
    begin, end = f"<!-- results:begin {name} -->", f"<!-- results:end {name} -->"
    head, found, rest = text.partition(begin)
    _, closed, tail = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"no {begin} … {end}")
    return f"{head}{begin}\n{part.strip()}\n{end}{tail}"


def measured() -> dict[Path, str]:
    """Return the files that are made from JSON documents, with the text that they should have."""
    texts = {name: importlib.import_module(module_of(name)).render(read(name)) for name in PAGES} | trials.pages(read("trials"))
    files = {RESULTS / f"{name}.md": text for name, text in texts.items()}
    parts = {
        REPOSITORY / "README.md": readme.render(),
        REPOSITORY / "docs/index.md": {"number": readme.headline()},
        REPOSITORY / "docs/results/index.md": {"summary": from_docs(readme.summary())},
        REPOSITORY / "docs/reference/exactness.md": {"exactness": exactness.render(read("exactness"))},
        REPOSITORY / "docs/fuzzing-runs.md": {"fuzzing": fuzzing.render(read("fuzzing"))},
    }
    return files | {path: with_parts(path, named) for path, named in parts.items()}


def with_parts(path: Path, parts: dict[str, str]) -> str:
    """Return the text of a file with `parts` between their markers."""
    text = path.read_text(encoding="utf-8")
    for name, part in parts.items():
        text = filled(text, name, part)
    return text


def from_docs(part: str) -> str:
    """Return a part of the README with links as a page in a folder of docs/ has them."""
    return part.replace("](benchmarks/", "](../../benchmarks/")


def described() -> dict[Path, str]:
    """Return the files that are made from the code, with the text that they should have."""
    from headrace.report.exports.json import schema

    return {
        **{REPOSITORY / name: text for name, text in command_line.render().items()},
        REPOSITORY / "docs/reference/diagnosis.schema.json": json.dumps(schema(), indent=1) + "\n",
        **{REPOSITORY / name: with_parts(REPOSITORY / name, parts) for name, parts in transforms.render().items()},
    }


def pictures() -> dict[Path, str]:
    """Return the pictures of what commands print, with the text that they should have. Needs botocore."""
    return {REPOSITORY / "docs/images" / name: text for name, text in screens.render().items()}


def write(files: dict[Path, str]) -> None:
    """Write the files that differ, and name them."""
    for path, text in files.items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path.relative_to(REPOSITORY)}", file=sys.stderr)


def main() -> int:
    """Write all files."""
    write(measured())
    write(described())
    if importlib.util.find_spec("botocore") is not None:
        write(pictures())
    return 0


if __name__ == "__main__":
    sys.exit(main())
