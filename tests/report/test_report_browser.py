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
from headrace.attach.experiments.range_curve import RangePoint, rate_at
from headrace.cli.main import main
from headrace.diagnosis.diagnose import diagnose
from headrace.report.pages import compare_page, html, learning_rate_page, training_page
from headrace.report.sessions.compare_sessions import compare_sessions
from headrace.session.model import Session
from headrace.training.settings.options import Options
from headrace.training.tune.learning_rate import choose_rate
from headrace.trials.experiment.cells import load
from headrace.trials.pages import page as trials_page
from headrace.trials.pages.charts import charts_of
from headrace.trials.results.row import Row
from session_factory import example_diagnosis, example_session, make_session

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


def in_a_frame(page: Path, folder: Path, *, width: int) -> str:
    """Return what the script of a page has measured. The page is shown in a frame, because a window has a least width."""
    frame = folder / f"{page.stem}-{width}.html"
    show = "document.body.append(f.contentDocument.querySelector('output').cloneNode(true))"
    frame.write_text(
        f"<body><iframe id=f src={page.name} style='width:{width}px;height:900px;border:0'></iframe>"
        f"<script>addEventListener('load', () => setTimeout(() => {show}, 100))</script></body>"
    )
    _, _, dom = browse(frame, folder, width=1300)
    found = re.search(r"<output>(.*?)</output>", dom, re.DOTALL)
    assert found is not None, (page.name, width, dom[-300:])
    return found[1]


@pytest.mark.slow
def test_labels_of_an_axis_end_where_the_plot_ends(tmp_path: Path, image_folder: Callable[..., Path]) -> None:
    for name, page in plotted_pages(tmp_path, image_folder(per_class=3)).items():
        text = re.sub(r"<meta[^>]*Content-Security-Policy[^>]*>", "", page.read_text(encoding="utf-8"), flags=re.IGNORECASE)
        page.write_text(text.replace("</body>", MEASURE), encoding="utf-8")  # the page itself allows no script
        for width in (390, 1280):
            found = in_a_frame(page, tmp_path, width=width)
            rows = "0" if name == "cost" else r"[1-9]\d*"  # the chart of costs has its values in the drawing
            assert re.fullmatch(f"rows={rows};", found), (name, width, found)


PHONE = """<script>
addEventListener("load", () => {
  const height = document.documentElement.scrollHeight;
  for (const folded of document.querySelectorAll("details")) folded.open = true;
  const right = document.documentElement.clientWidth, bad = [];
  if (document.documentElement.scrollWidth > right) bad.push("the page scrolls sideways");
  let numbers = 0, wide = 0;
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), range = document.createRange();
  while (walk.nextNode()) {
    if (!walk.currentNode.parentElement.checkVisibility()) continue;
    for (const match of walk.currentNode.data.matchAll(/\\d[\\d.,:]*/g)) {
      range.setStart(walk.currentNode, match.index);
      range.setEnd(walk.currentNode, match.index + match[0].length);
      numbers += 1;
      if (new Set([...range.getClientRects()].map(box => Math.round(box.top))).size > 1)
        bad.push(`${match[0]} breaks in ${walk.currentNode.data.slice(0, 60)}`);
    }
  }
  for (const box of document.querySelectorAll(".scroll")) {
    if (box.scrollWidth <= box.clientWidth) continue;
    wide += 1;
    const style = getComputedStyle(box);
    if (style.overflowX !== "auto" || !style.backgroundImage.includes("gradient"))
      bad.push(`${box.ariaLabel}: no sign that it scrolls`);
  }
  const found = document.createElement("output");
  found.textContent = `height=${height};numbers=${numbers};wide=${wide};${bad.join(";")}`;
  document.body.append(found);
});
</script></body>"""


def phone_pages(folder: Path) -> dict[str, Path]:
    """The pages with tables, as recorded and made-up sessions and a table of trials give them."""
    session = example_session()
    long_name = "/srv/data/imagenet-2012/run-20261123/" + "abcdefghij" * 6
    slow = make_session(workers=1, cpu_s=0.06)
    slow = replace(slow, command=("python", long_name, "--learning-rate", "0.000125"), cwd=long_name)
    sides = (compare_page.Side(word, word, one, diagnose(one)) for word, one in (("Before", slow), ("After", make_session())))
    before, after = sides
    rows = [
        Row(loader, "resnet50", load, 32, "corrected", simulated=True, seconds_per_epoch=1234.5 / load, images_per_epoch=13394,
            img_s=12345.6, ingest_img_s=1234.5, compute_img_s=367.2, wait_share=0.123, cpu_ms=12.34, cpu_p50=50.1, cpu_p99=99.9)
        for loader in ("pytorch", "headrace-packed") for load in (1, 12)
    ]  # fmt: skip
    files = {name: folder / f"{name}.html" for name in ("report", "compare", "trials")}
    html.write(example_diagnosis(), files["report"], session=session)
    words = compare_sessions(before.session, after.session, before.diagnosis, after.diagnosis)
    files["compare"].write_text(compare_page.render(words, before, after), encoding="utf-8")
    trials_page.write(files["trials"], load("dali"), rows, charts_of(rows, "loader"), [], ["It is 1.5 times."], [])
    return files


MOST_HEIGHT = 4000
"""CSS pixels of a diagnosis whose tables are folded, on a phone too."""


def test_on_a_phone_no_number_breaks_and_wide_tables_say_that_they_scroll(tmp_path: Path) -> None:
    for name, page in phone_pages(tmp_path).items():
        text = re.sub(r"<meta[^>]*Content-Security-Policy[^>]*>", "", page.read_text(encoding="utf-8"), flags=re.IGNORECASE)
        page.write_text(text.replace("</body>", PHONE), encoding="utf-8")
        found = in_a_frame(page, tmp_path, width=390)
        height, numbers, wide, bad = found.split(";", 3)
        assert name != "report" or 900 < int(height.partition("=")[2]) <= MOST_HEIGHT, (name, height)
        assert int(numbers.partition("=")[2]) > 20 and int(wide.partition("=")[2]) >= 1, (name, found)
        assert bad == "", name
        assert not re.search(r"\de\+\d|\b1 cores\b", re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)), name
