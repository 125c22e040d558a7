"""The quickstart as a newcomer types it: every line as it stands, on two busy cores, within ten minutes."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from guide_world import make_commands

PAGE = Path(__file__).resolve().parent.parent / "docs" / "quickstart.md"
LIMIT_S = 600.0
ELSEWHERE = ("python3 -m venv", "source env/")  # the installation: scripts/try_install.py
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@contextlib.contextmanager
def busy_cores(count: int) -> Iterator[None]:
    """Other programs that want every core."""
    others = [subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
        for other in others:
            other.wait()


def steps(folder: Path) -> Iterator[list[str]]:
    """Yield the page's commands in order. Write each Python block to a file just before it is needed."""
    for language, text in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        if language == "python":
            script = folder / ("train.py" if "argparse" in text else "loop.py")
            script.write_text(text, encoding="utf-8")
            if script.name == "loop.py":
                yield ["python", script.name]
            continue
        for line in text.splitlines():
            if line and not line.startswith(ELSEWHERE) and "# needs a GPU" not in line:
                yield ["bash", "-c", line]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_quickstart_takes_ten_minutes_on_busy_cores(tmp_path: Path) -> None:
    make_commands(tmp_path / "bin")
    path = os.pathsep.join([str(tmp_path / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]])
    home = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache"), "CUDA_VISIBLE_DEVICES": "", "PATH": path}
    took: list[str] = []
    began_s = time.monotonic()
    beside = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) - 1  # busy with other tests
    with busy_cores(max(0, 2 - beside)):
        for words in steps(tmp_path):
            since_s = time.monotonic()
            done = subprocess.run(words, cwd=tmp_path, env={**os.environ, **home}, capture_output=True, text=True, check=False)
            took.append(f"{time.monotonic() - since_s:4.0f} s  {words[-1]}")
            print(took[-1], flush=True)
            assert done.returncode == 0, f"{words[-1]}\n{done.stdout[-1000:]}\n{done.stderr[-2000:]}"
    assert len(took) >= 10
    assert time.monotonic() - began_s < LIMIT_S, "\n".join(took)
