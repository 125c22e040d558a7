"""How a Python process ends is recorded, and neither its output nor its exit code changes."""

from __future__ import annotations

import gc
import multiprocessing
import multiprocessing.process
import os
import subprocess
import sys
import weakref
from pathlib import Path

import pytest
from headrace.attach.launch import attached_environment
from headrace.attach.record import ending
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
    "class attribute": "import sys\nclass A: quit = sys.exit\nA().quit()\n",
    "alike": "import copy, inspect, pickle, sys\ne = sys.exit\ntry: e(status=1)\nexcept TypeError as error: print(error)\n"
    "print(e, pickle.loads(pickle.dumps(e)) is e, copy.deepcopy(e) is e, inspect.signature(e), inspect.isbuiltin(e))\n"
    "print(e.__name__, e.__qualname__, e.__module__, e.__doc__, e.__self__, callable(e), hasattr(e, '__dict__'))\n",
    "raw thread": "import sys, threading, time, _thread\n_thread.start_new_thread(sys.exit, ())\ntime.sleep(0.1)\n"
    "print(threading.active_count())\n",
    "at exit": "import atexit, sys\natexit.register(sys.exit, 3)\n",
    "code of many bits": "import sys\nsys.exit(2**70)\n",
    "negative": "import sys\nsys.exit(-1)\n",
    "tuple": "import sys\nsys.exit((1, 2))\n",
    "bool": "import sys\nsys.exit(True)\n",
}
NO_END = ("well", "thread", "wrong call", "interrupted", "class attribute", "alike", "raw thread", "at exit")


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
    if name in NO_END:
        assert ends == ()
        return
    (end,) = ends
    errors = [(error.type, error.message, error.line, error.function) for error in end.errors]
    assert (end.how, end.code, errors, end.line) == {
        "exception": ("exception", None, [("ValueError", "boom --api-key ***", 1, "f")], None),
        "hook": ("exception", None, [("KeyError", "'a'", 3, "<module>")], None),
        "exit": ("exit", 3, [], 2),
        "text": ("exit", 1, [], 2),
        "code of many bits": ("exit", 255, [], 2),
        "negative": ("exit", 255, [], 2),
        "tuple": ("exit", 1, [], 2),
        "bool": ("exit", 1, [], 2),
        "handled": ("exit", 1, [("KeyError", "'a'", 2, "<module>")], 3),
        "arguments": ("exit", 2, [], 4),
        "caught": ("exit", 4, [], 2),
        "interrupted under hooks": ("exception", None, [("KeyboardInterrupt", "", 7, "<module>")], None),
    }[name]


def test_a_helper_that_cannot_record_its_end_says_nothing(tmp_path: Path) -> None:
    plain, watched = (run(tmp_path, SCRIPTS["exception"], session=session) for session in (False, True))
    assert (watched.stderr, watched.returncode) == (plain.stderr, plain.returncode)
    assert ends_of(tmp_path) == ()


def test_children_of_an_error_that_was_caught_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    child = multiprocessing.Process(target=int)
    children = {child}
    monkeypatch.setattr(multiprocessing.process, "_children", children)
    ending.note_children()
    children.clear()
    seen = weakref.ref(child)
    del child
    gc.collect()
    assert seen() is None


def test_a_fork_does_not_inherit_an_exit_that_its_parent_caught(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    run(tmp_path, "import os, sys\ntry: sys.exit(4)\nexcept SystemExit: pass\nif os.fork(): os.wait()\n", session=True)
    assert [end.how for end in ends_of(tmp_path)] == ["exit"]


def test_a_worker_that_died_is_known_after_its_error_was_handled_by_an_exit(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    text = """import multiprocessing, os, sys
def fail():
    child = multiprocessing.get_context("fork").Process(target=os._exit, args=(7,))
    child.start()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    raise ValueError
try: fail()
except ValueError: sys.exit(1)
"""
    run(tmp_path, text, session=True)
    (end,) = ends_of(tmp_path)
    assert [code for _, code in end.children] == [7]


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

    class ProcessRaisedException(Exception):
        pass

    assert described(ProcessRaisedException("the script's own"))[0]["message"] == "the script's own"


def test_a_traceback_in_a_message_of_others_is_bounded_and_without_secrets() -> None:
    secret = "ghp_" + "a1B2c3D4e5" * 4
    text = f'Traceback (most recent call last)\n  File "a.py", line {10**20}, in f\n  File "a.py", line 3, in {"f" * 999}\n'
    _, inner = described(ValueError(text + secret))
    assert inner["line"] == 3 and len(inner["function"]) == ending.MOST_WRITTEN and secret not in inner["type"]
    assert secret not in described(type(secret, (Exception,), {})())[0]["type"]
