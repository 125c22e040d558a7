"""Every command and Python block of the start page, quickstart, cookbook, guides and concepts runs, in small."""

from __future__ import annotations

import importlib.util
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from guide_world import World, make_world
from object_store import Bucket, serving

REPOSITORY = Path(__file__).resolve().parent.parent
DOCS = REPOSITORY / "docs"
PAGES = [
    "index",
    "quickstart",
    "cookbook",
    *(f"{kind}/{path.stem}" for kind in ("guides", "concepts") for path in sorted((DOCS / kind).glob("*.md"))),
]
ELSEWHERE = {
    "aws cloudwatch": "needs AWS; tests/launch/test_finished_job.py reads such files",
    "aws s3 cp": "needs AWS; tests/launch/test_finished_job.py reads such files",
    "aws s3 sync": "needs AWS; tests/datasets reads from stores",
    "aws sagemaker": "needs AWS; tests/launch/test_finished_job.py reads such files",
    "docker": "no container engine: tests/setup/test_install.py checks the Dockerfile",
    "pip install": "scripts/setup.sh installs the same requirements for these tests",
    "headrace compare a b": "tests/launch/test_finished_job.py",
    "headrace cost refresh": "asks AWS: tests/cost/market/test_live_prices.py runs it against recorded answers",
    "headrace diagnose -- python train_keras.py": "needs TensorFlow: tests/diagnosis/fixes/test_tensorflow.py",
    "headrace diagnose --from-files": "tests/launch/test_finished_job.py",
    "headrace diagnose --sagemaker-job": "tests/launch/test_finished_job.py, with a stubbed AWS",
    "headrace launch follow": "tests/launch/test_spot_job_page.py, against moto",
    "headrace launch local --request job.json --fetch --send": "the store here deletes nothing: tests/launch/test_local.py",
    "headrace launch sagemaker --request": "sends it: tests/launch/test_spot_job_page.py, against moto",
    "headrace launch stop": "tests/launch/test_spot_job_page.py, against moto",
    "make release": "scripts/check_wheel.py and scripts/check_wheel_aarch64.sh, which it ends with",
    "python3 -m venv env": "scripts/try_install.py pip",
    "source env/bin/activate": "scripts/try_install.py pip",
    "uv venv env": "scripts/try_install.py uv",
}
"""Beginnings of command lines that do not run here, and where they do."""
WHOLE_PAGES = {"guides/spot-job": "tests/launch/test_spot_job_page.py"}
"""Pages whose commands all run in a test of their own."""
RUN_HERE = ("headrace", "mkdir", "tar")
"""Programs that a guide's command lines may start here."""
PACK = "headrace pack /data/imagenet/train /data/packed/train"
FIRST = {"guides/gpu": PACK, "guides/launch": "headrace pack photos/ s3://bucket/train", "guides/loader": PACK}
"""What was done before a page begins, by page."""
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: str) -> list[tuple[str, str]]:
    """(language, text) of the fenced blocks of a page."""
    return BLOCK.findall((DOCS / f"{page}.md").read_text(encoding="utf-8"))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with serving(Bucket()) as endpoint:
        yield make_world(tmp_path / "world", AWS_ENDPOINT_URL=endpoint, AWS_SKIP_SIGNATURE="true", AWS_REGION="us-east-1")


IMPORTED_BY = {"to_tf_dataset(": "tensorflow", "to_keras_dataset(": "keras", "to_jax(": "jax"}
"""Methods of a Loader that import a package, and the package."""


def packages(text: str) -> set[str]:
    """The packages that a Python block needs."""
    return {
        *re.findall(r"^\s*(?:import|from) (\w+)", text, re.MULTILINE),
        *(package for call, package in IMPORTED_BY.items() if call in text),
    }


def missing(text: str) -> list[str]:
    return [name for name in packages(text) if importlib.util.find_spec(name) is None]


def needs_shell(command: str) -> bool:
    """Whether a command line has operators of the shell outside of quotes."""
    return bool({"&&", ">", "|"} & set(shlex.shlex(command, posix=True, punctuation_chars=True)))


def failures(world: World, page: str, language: str, text: str) -> Iterator[str]:
    """Run a block; yield what failed, with its output."""
    if language == "toml":
        name = re.match(r"# (\S+\.toml)", text)
        assert name, f"{page}: a TOML block begins with the name of its file"
        (world.root / name[1].rstrip(":")).write_text(world.small_python(text), encoding="utf-8")
    elif language == "python":
        if missing(text):
            return  # test_blocks_for_other_frameworks runs it
        script = world.root / ("train.py" if "argparse" in text else "block.py")
        script.write_text(world.small_python(text), encoding="utf-8")
        if script.name == "block.py":
            done = world.run(["python", script.name])
            if done.returncode:
                yield f"{text}\n{done.stderr[-2000:]}"
    elif language == "sh":
        for line in text.replace("\\\n", " ").splitlines():
            command = re.split(r"\s+#", line.strip())[0]
            if command and not command.startswith(tuple(ELSEWHERE)):
                assert command.split()[0] in RUN_HERE, f"{page}: nothing runs {command!r}: name in ELSEWHERE what does"
                words = ["bash", "-ec", command] if needs_shell(command) else world.small_command(command)
                done = world.run(words)
                if done.returncode:
                    yield f"{command}\n{words}\n{done.stdout[-500:]}\n{done.stderr[-2000:]}"


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page) and page not in WHOLE_PAGES])
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_block_of_a_guide_runs(page: str, world: World) -> None:
    failed: list[str] = []
    if page in FIRST:
        assert world.run(world.small_command(FIRST[page])).returncode == 0
    for language, text in blocks(page):
        failed += failures(world, page, language, text)
    assert not failed, "\n\n".join([page, *failed])


OTHER_FRAMEWORKS = ["jax", "keras", "tensorflow"]
PACKAGES_ELSEWHERE = {"sagemaker": "tests/launch/own_code/test_under.py, in an environment of each SDK"}
"""Packages of blocks that run neither here nor in `make test-frameworks` as they stand, and where they do."""


@pytest.mark.parametrize("package", OTHER_FRAMEWORKS)
@pytest.mark.timeout(600)
def test_blocks_for_other_frameworks(package: str, world: World) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"no {package}: make test-frameworks has it")
    texts = [text for page in PAGES for language, text in blocks(page) if language == "python" and package in packages(text)]
    assert texts and not [name for text in texts for name in missing(text)]
    for text in texts:
        assert not list(failures(world, package, "python", text))


def test_every_package_that_a_block_needs_is_tested_somewhere() -> None:
    needed = {name for page in PAGES for language, text in blocks(page) if language == "python" for name in missing(text)}
    assert needed - set(OTHER_FRAMEWORKS) == set(PACKAGES_ELSEWHERE)


@pytest.mark.parametrize("page", PAGES)
def test_a_block_that_is_not_run_shows_output_only(page: str) -> None:
    """Commands and programs stand in blocks of a language that is run: sh, python, toml."""
    found = blocks(page)
    assert {language for language, _ in found} <= {"python", "sh", "toml", "text"}
    shown = [line for language, text in found if language == "text" for line in text.splitlines()]
    assert [line for line in shown if line.startswith(("headrace ", "import ", "pip ", "python ", *ELSEWHERE))] == []


@pytest.mark.parametrize("page", [page for page in PAGES if page.startswith("guides/")])
def test_a_guide_is_short(page: str) -> None:
    """What to type and what comes of it. Rules are lists in docs/reference."""
    assert len((DOCS / f"{page}.md").read_bytes()) <= 8_000


def test_the_cookbook_has_25_recipes_of_15_lines_at_most() -> None:
    """A recipe is a heading, a line that says what for, and one program."""
    text = (DOCS / "cookbook.md").read_text(encoding="utf-8")
    recipes = re.split(r"^### ", text, flags=re.MULTILINE)[1:]
    assert len(recipes) == 25
    for recipe in recipes:
        [(language, program)] = BLOCK.findall(recipe)
        assert language == "python" and len(program.splitlines()) <= 15, recipe


@pytest.mark.parametrize("page", PAGES)
def test_no_block_is_indented_only(page: str) -> None:
    """Only fenced blocks are run."""
    prose = BLOCK.sub("", (DOCS / f"{page}.md").read_text(encoding="utf-8"))
    assert not re.findall(r"(?:^|\n)\n    .*", prose)


def test_most_commands_of_the_guides_run_here_and_the_others_are_still_there() -> None:
    lines = [line for page in PAGES for _, text in blocks(page) for line in text.splitlines()]
    commands = {re.split(r"\s+#", line.strip())[0] for line in lines}
    assert all(any(command.startswith(beginning) for command in commands) for beginning in ELSEWHERE)
    named = {
        word
        for reason in [*ELSEWHERE.values(), *WHOLE_PAGES.values(), *PACKAGES_ELSEWHERE.values()]
        for word in re.findall(r"(?:tests|scripts)/[\w./]+", reason)
    }
    assert len(named) > 5 and [word for word in named if not (REPOSITORY / word).exists()] == []
    here = [line for line in commands if line.startswith("headrace ") and not line.startswith(tuple(ELSEWHERE))]
    assert len(here) > 50
