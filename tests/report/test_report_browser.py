"""The pages in a real browser: no console message, no network request, and labels where they belong."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from headrace.cli.main import main
from headrace.diagnosis.diagnose import diagnose
from headrace.report import html, learning_rate_page, training_page
from headrace.session.model import Session
from headrace.training.options import Options
from headrace.training.tune.learning_rate import RangePoint, choose_rate, rate_at
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
            "--virtual-time-budget=2000", "--allow-file-access-from-files", "--dump-dom", f"file://{page}",
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


MEASURE = """<script>
addEventListener("load", () => {
  const right = document.documentElement.clientWidth, bad = [];
  if (document.documentElement.scrollWidth > right) bad.push("the page scrolls sideways");
  let rows = 0;
  for (const row of document.querySelectorAll("svg + p.ends")) {
    rows += 1;
    const plot = row.previousElementSibling.getBoundingClientRect(), last = row.lastElementChild.getBoundingClientRect();
    if (Math.abs(plot.right - last.right) > 2) bad.push(`${row.textContent}: ends at ${last.right}, its plot at ${plot.right}`);
  }
  const found = document.createElement("output");
  found.textContent = `rows=${rows};${bad.join(";")}`;
  document.body.append(found);
});
</script></body>"""


def plotted_pages(tmp_path: Path, photos: Path) -> dict[str, Path]:
    """Every page with a plot that has labels at the ends of its axis; each plot is as wide as the page."""
    files = {name: tmp_path / f"{name}.html" for name in ("range", "training", "cost", "sheet")}
    loss = [RangePoint(rate_at(update, 50), 2.0 - update / 50, 2.0 - update / 50) for update in range(50)]
    options = Options(model="m", data="/d", out="/o", batch_size=64)
    learning_rate_page.write(choose_rate(loss, options, global_batch=64, diverged=False), files["range"], title="t")
    steps = [{"step": step, "loss": 2.0 / step} for step in (1, 2, 3)]
    files["training"].write_text(training_page.render(steps, title="t"), encoding="utf-8")
    job = ["--model", "resnet50", "--images", "1281167", "--epochs", "16"]
    assert main(["cost", *job, "--html", str(files["cost"])]) == 0
    assert main(["inspect", str(photos), "--contact-sheet", str(files["sheet"])]) == 0
    return files


def test_labels_of_an_axis_end_where_the_plot_ends(tmp_path: Path, image_folder: Callable[..., Path]) -> None:
    for name, page in plotted_pages(tmp_path, image_folder(per_class=3)).items():
        text = re.sub(r"<meta[^>]*Content-Security-Policy[^>]*>", "", page.read_text(encoding="utf-8"), flags=re.IGNORECASE)
        page.write_text(text.replace("</body>", MEASURE), encoding="utf-8")  # the page itself allows no script
        for width in (390, 1280):  # in a frame, because a window has a least width
            frame = tmp_path / f"{name}-{width}.html"
            show = "document.body.append(f.contentDocument.querySelector('output').cloneNode(true))"
            frame.write_text(
                f"<body><iframe id=f src={page.name} style='width:{width}px;height:900px;border:0'></iframe>"
                f"<script>addEventListener('load', () => setTimeout(() => {show}, 100))</script></body>"
            )
            _, _, dom = browse(frame, tmp_path, width=1300)
            found = re.search(r"<output>rows=([1-9]\d*);(.*?)</output>", dom)
            assert found is not None, (name, width, dom[-300:])
            assert found[2] == "", (name, width)
