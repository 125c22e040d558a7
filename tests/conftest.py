"""Shared fixtures: generated JPEGs always; the larger sample of real photographs where it is present."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from diagnosis_checks import check_agreement
from headrace.datasets.sources.remote import retry
from headrace.errors import SessionError
from headrace.session.model import Session
from lanes import mark_matrices, share_of
from sample_images import data_folder, jpeg


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """With HEADRACE_TEST_SKIPS=fail a skipped test has failed: the environment was made for it."""
    report = yield
    if report.skipped and os.environ.get("HEADRACE_TEST_SKIPS") == "fail":
        report.outcome, report.longrepr = "failed", f"skipped: {report.longrepr}"
    return report


#: Holds a `sitecustomize` that leaves out a slow import which no test needs.
QUICK_IMPORTS = str(Path(__file__).parent / "quick_torchvision")


def pytest_configure() -> None:
    """Shorten imports of the processes that tests start, and stop ignoring SIGINT and SIGQUIT.

    Tests send both signals, and a shell makes its background commands ignore them.
    """
    if os.environ.get("HEADRACE_TEST_IMPORTS") != "all":
        paths = [QUICK_IMPORTS, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGQUIT) is signal.SIG_IGN:
        signal.signal(signal.SIGQUIT, signal.SIG_DFL)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--share", metavar="K/N", default="1/1", help="run each Nth of the selected tests, from the Kth")


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None, None, None]:
    """Mark the slow cells of matrices before `-m` selects tests, and take the share of those that are selected.

    Of several processes none is left with a slow test at the end: those come first (see `make test`).
    """
    mark_matrices(items)
    yield
    kept = share_of(items, config.getoption("share", "1/1"))
    if len(kept) < len(items):
        config.hook.pytest_deselected(items=[*{*items} - {*kept}])
        items[:] = kept
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.fixture(scope="session", autouse=True)
def own_settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test reads or writes the user's cache folder, or waits long before it tries a request again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retry, "DEFAULT", retry.RetryPolicy(backoff_s=0.001))
        patch.setenv("HEADRACE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def no_terminal_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test prints in the width that the caller's shell, or a library in an earlier test, wrote into the environment."""
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.delenv("LINES", raising=False)


@pytest.fixture(autouse=True)
def recorded_sessions_agree(request: pytest.FixtureRequest) -> Iterator[None]:
    """In every session that a test recorded, the bar, the wait share and the percentiles agree."""
    folder: Path | None = request.getfixturevalue("tmp_path") if "tmp_path" in request.fixturenames else None
    yield
    for recorded in sorted(folder.rglob("launch.jsonl")) if folder is not None else ():
        with suppress(SessionError):  # a test may have damaged it
            check_agreement(Session.load(recorded.parent))


@pytest.fixture(scope="session")
def sample_images() -> list[Path]:
    """Real photographs (sorted paths); the test is skipped where they are absent."""
    folder = data_folder()
    images = sorted((folder / "imagenet-sample").glob("*.JPEG")) if folder else []
    if not images:
        pytest.skip("no sample images; set HEADRACE_TEST_DATA to a folder that holds imagenet-sample/")
    return images


@pytest.fixture
def image_folder(tmp_path: Path) -> Callable[..., Path]:
    """Makes an image folder of generated JPEGs: image_folder(classes=3, per_class=4) -> path."""

    def make(classes: int = 3, per_class: int = 4, name: str = "images") -> Path:
        root = tmp_path / name
        modes = ("4:4:4", "4:2:2", "4:2:0")
        for label in range(classes):
            folder = root / f"class_{label}"
            folder.mkdir(parents=True)
            for number in range(per_class):
                seed = label * per_class + number
                data = jpeg(200 + 13 * (seed % 7), 160 + 11 * (seed % 5), seed, subsampling=modes[seed % 3])
                (folder / f"image_{number:03d}.jpg").write_bytes(data)
        return root

    return make
