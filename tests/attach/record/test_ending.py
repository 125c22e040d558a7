"""How a Python process ends is recorded, and neither its output nor its exit code changes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from headrace.attach.launch import attached_environment
from headrace.attach.record.ending import described
from headrace.session.endings import ProcessEnd
from headrace.session.model import Session

SCRIPTS = {
    "exception": "def f(): raise ValueError('boom --api-key k-123')\nf()\n",
    "hook": "import sys\nsys.excepthook = lambda *a: print('mine', a[0].__name__)\n{}['a']\n",
    "exit": "import sys\nsys.exit(3)\n",
    "text": "import sys\nsys.exit('no data')\n",
    "handled": "import sys\ntry: {}['a']\nexcept KeyError as e: print('caught'); sys.exit(1)\n",
    "arguments": "import argparse\np = argparse.ArgumentParser('t')\np.add_argument('--a')\np.parse_args(['--b'])\n",
    "caught": "import sys\ntry: sys.exit(4)\nexcept SystemExit as e: print(e.code, e.__traceback__.tb_next is None)\n",
    "interrupted": "raise KeyboardInterrupt\n",
    "interrupted under hooks": "import os\ntry:\n    from headrace.attach.record import ending, recorder\n"
    "    ending.install(recorder.recorder())\nexcept KeyError: pass\ntry: {}['a']\nexcept KeyError: raise KeyboardInterrupt\n",
    "wrong call": "import sys\ntry: sys.exit(1, 2)\nexcept TypeError as e: print(e)\n",
    "well": "print('done')\n",
    "thread": "import sys, threading\nt = threading.Thread(target=sys.exit, args=(5,)); t.start(); t.join()\n",
}


def run(folder: Path, text: str, *, session: bool) -> subprocess.CompletedProcess[str]:
    (folder / "script.py").write_text(text)
    plain = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    made = attached_environment(folder / "s", ["headrace.attach.torch_hooks"]) if session else plain
    return subprocess.run([sys.executable, "script.py"], cwd=folder, env=made, capture_output=True, text=True, timeout=100)


def ends_of(folder: Path) -> tuple[ProcessEnd, ...]:
    return Session.load(folder / "s").ends if any((folder / "s").glob("*.jsonl")) else ()


@pytest.mark.parametrize("name", SCRIPTS)
def test_output_and_exit_code_are_those_of_the_script(tmp_path: Path, name: str) -> None:
    (tmp_path / "s").mkdir()
    plain, watched = (run(tmp_path, SCRIPTS[name], session=session) for session in (False, True))
    assert (watched.stdout, watched.stderr, watched.returncode) == (plain.stdout, plain.stderr, plain.returncode)
    ends = ends_of(tmp_path)
    if name in ("well", "thread", "wrong call", "interrupted"):
        assert ends == ()
        return
    (end,) = ends
    errors = [(error.type, error.message, error.line, error.function) for error in end.errors]
    assert (end.how, end.code, errors, end.line) == {
        "exception": ("exception", None, [("ValueError", "boom --api-key ***", 1, "f")], None),
        "hook": ("exception", None, [("KeyError", "'a'", 3, "<module>")], None),
        "exit": ("exit", 3, [], 2),
        "text": ("exit", 1, [], 2),
        "handled": ("exit", 1, [("KeyError", "'a'", 2, "<module>")], 3),
        "arguments": ("exit", 2, [], 4),
        "caught": ("exit", 4, [], 2),
        "interrupted under hooks": ("exception", None, [("KeyboardInterrupt", "", 7, "<module>")], None),
    }[name]


def test_the_traceback_inside_a_message_is_read() -> None:
    text = """Caught ValueError in DataLoader worker process 1.
Original Traceback (most recent call last):
  File "/venv/lib/python3.11/site-packages/torch/utils/data/_utils/worker.py", line 349, in _worker_loop
    data = fetcher.fetch(index)
           ^^^^^^^^^^^^^^^^^^^^
  File "/home/me/data.py", line 7, in __getitem__
    return self.read(i)
  File "/venv/lib/python3.11/site-packages/PIL/Image.py", line 3498, in open
    raise UnidentifiedImageError(msg)
PIL.UnidentifiedImageError: cannot identify image file '/data/a.jpg'
and a second line
"""
    outer, inner = described(ValueError(text))
    assert outer["message"] == "Caught ValueError in DataLoader worker process 1. Original"
    assert inner == {
        "type": "PIL.UnidentifiedImageError",
        "message": "cannot identify image file '/data/a.jpg' and a second line",
        "file": "/home/me/data.py",
        "line": 7,
        "function": "__getitem__",
    }


def test_causes_follow_their_exception_and_a_broken_message_is_left_out() -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    error = ValueError("outer")
    error.__cause__ = Broken()
    first, second = described(error)
    assert (first["message"], second["message"]) == ("outer", "")
    assert second["type"].endswith("Broken")
    error.__cause__ = error
    assert len(described(error)) == 1


def test_launchers_of_ranks_name_the_lost_one() -> None:
    class ProcessExitedException(Exception):
        error_index, error_pid, exit_code = 1, 42, -9

    (found,) = described(ProcessExitedException("process 1 terminated with signal SIGKILL"))
    assert (found["lost_rank"], found["lost_pid"], found["lost_code"]) == (1, 42, -9)
