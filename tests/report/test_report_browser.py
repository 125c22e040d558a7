"""The report in a real browser: no console message and no network request."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from headrace.diagnosis.diagnose import diagnose
from headrace.report import html
from headrace.session.model import Session
from session_factory import example_session

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
HOSTILE = "<script>console.error('out')</script><img src=http://example.org/x onerror=console.error('out')>"

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")


def hostile_session() -> Session:
    """The example session, with markup in every name that comes from a run."""
    session = example_session()
    return replace(
        session,
        command=("python", HOSTILE),
        cwd=HOSTILE,
        loaders=tuple(replace(loader, dataset=HOSTILE, transform=HOSTILE) for loader in session.loaders),
        events=tuple(replace(event, detail=HOSTILE) for event in session.events),
        host=replace(session.host, hostname=HOSTILE, cpu_model=HOSTILE),
        facts={"configuration": {"device": "cuda", "capability": [9, 0], "parameter_format": HOSTILE, "cudnn": 8000}},
    )


def browse(page: Path, folder: Path, *, width: int) -> tuple[str, list[dict[str, Any]], str]:
    """Open the page. Return Chromium's stderr, its network events, and the DOM after the scripts have run."""
    log = folder / f"net-{width}.json"
    done = subprocess.run(
        [
            str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
            "--disable-component-update", "--disable-sync", f"--user-data-dir={folder / 'profile'}", "--enable-logging=stderr",
            f"--log-net-log={log}", "--net-log-capture-mode=IncludeSensitive", f"--window-size={width},900",
            "--virtual-time-budget=2000", "--dump-dom", f"file://{page}",
        ],
        capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    if done.returncode:
        pytest.skip(f"Chromium does not start here: {done.stderr[-200:]}")
    return done.stderr, json.loads(log.read_text())["events"], done.stdout


def test_no_console_message_and_no_request(tmp_path: Path) -> None:
    session = hostile_session()
    page = tmp_path / "report.html"
    html.write(diagnose(session), page, session=session)
    assert page.stat().st_size < 2_000_000
    stderr, events, dom = browse(page, tmp_path, width=390)
    assert "CONSOLE" not in stderr, stderr
    urls = [str(event.get("params", {}).get("url", "")) for event in events]
    assert not [url for url in urls if url.startswith(("http", "ws")) and "example.org" in url]
    assert "example.org" not in "".join(url for url in urls), "markup in a name causes no request"
    assert "&lt;script&gt;" in dom
    assert "<script>console.error" not in dom
