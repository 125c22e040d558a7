"""The launcher installs hooks in each Python process of the command, and changes nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from headrace.attach.launch import SITE_FOLDER, attached_environment, spawn
from headrace.errors import CommandError

HOOK = """
import os, sys
def install():
    open(os.environ["HOOK_LOG"], "a").write(f"{os.getpid()}\\n")
"""


@pytest.fixture
def hook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hook module on the child's path and a stand-in for torch that imports in no time; returns the hook's log."""
    package = tmp_path / "path"
    (package / "torch/utils/data").mkdir(parents=True)
    for folder in ("torch", "torch/utils", "torch/utils/data"):
        (package / folder / "__init__.py").write_text("")
    (package / "torch/__init__.py").write_text("import torch.utils.data.dataloader\nREADY = True\n")
    (package / "torch/utils/data/dataloader.py").write_text("")
    (package / "my_hook.py").write_text(HOOK)
    (package / "broken_hook.py").write_text("def install():\n    raise ValueError('broken on purpose')\n")
    monkeypatch.setenv("PYTHONPATH", str(package))
    monkeypatch.setenv("HOOK_LOG", str(tmp_path / "log"))
    return tmp_path / "log"


def run(code: str, *hooks: str, **options: object) -> int:
    return spawn([sys.executable, "-c", code], hooks=hooks, **options).returncode  # type: ignore[arg-type]


def test_hook_is_installed_once_when_torch_is_complete(hook: Path) -> None:
    assert run("import torch; import torch.utils.data.dataloader; assert torch.READY", "my_hook") == 0
    assert len(hook.read_text().splitlines()) == 1


def test_hook_reaches_children_of_children(hook: Path) -> None:
    child = "import subprocess, sys, torch; subprocess.run([sys.executable, '-c', 'import torch'], check=True)"
    assert run(child, "my_hook") == 0
    assert len(set(hook.read_text().splitlines())) == 2


def test_without_torch_no_hook_is_loaded(hook: Path) -> None:
    assert run("import json", "my_hook") == 0
    assert not hook.exists()


def test_a_broken_hook_is_reported_and_the_script_runs(hook: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run("import torch; print('script ran')", "broken_hook", "my_hook") == 0
    output = capfd.readouterr()
    assert "script ran" in output.out
    assert "broken on purpose" in output.err
    assert len(output.err.strip().splitlines()) == 1
    assert hook.exists()  # the other hook is not affected


def test_missing_hook_module_does_not_stop_the_script(hook: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run("import torch", "no_such_hook") == 0
    assert "no_such_hook" in capfd.readouterr().err


def test_existing_sitecustomize_still_runs(hook: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "path/sitecustomize.py").write_text("print('theirs')\nMARK = 1\n")
    assert run("import sitecustomize, torch; assert sitecustomize.MARK == 1", "my_hook") == 0
    assert capfd.readouterr().out == "theirs\n"
    assert hook.exists()


def test_an_awaited_module_keeps_its_own_loader(hook: Path) -> None:
    code = "import torch; assert type(torch.__spec__.loader).__name__ == 'SourceFileLoader', torch.__spec__"
    assert run(code, "my_hook") == 0


def test_exit_code_and_output_are_the_commands_own(capfd: pytest.CaptureFixture[str]) -> None:
    assert run("import sys; print('out'); print('err', file=sys.stderr); sys.exit(7)") == 7
    assert capfd.readouterr() == ("out\n", "err\n")


def test_stdout_can_be_sent_to_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    assert run("print('out')", stdout=sys.stderr) == 0
    assert capfd.readouterr() == ("", "out\n")


def test_an_unknown_command_raises_a_command_error() -> None:
    with pytest.raises(CommandError, match="no-such-program"):
        spawn(["no-such-program"])


def test_sigterm_reaches_the_child(tmp_path: Path) -> None:
    """The signal comes as soon as the child can receive one."""
    ready = tmp_path / "ready"
    code = "import pathlib, signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\n"
    code += f"pathlib.Path({str(ready)!r}).touch(); time.sleep(100)"

    def signal_this_process(child: subprocess.Popen[bytes]) -> None:
        while child.poll() is None and not ready.exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    assert run(code, on_start=signal_this_process) == 5


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_what_asked_to_stop_is_known(number: int) -> None:
    """Ctrl-C is for headrace too: what would run the command again must know."""
    code = "import os, signal, sys, time; signal.signal(int(sys.argv[1]), lambda *_: sys.exit(0))\n"
    code += "os.kill(os.getppid(), int(sys.argv[1]))\ntime.sleep(60)"
    finished = spawn([sys.executable, "-c", code, str(int(number))])
    assert finished.returncode == 0
    assert finished.stopped_by == (None if number == signal.SIGUSR1 else number)


def test_time_limit_ends_the_child() -> None:
    assert run("import time; time.sleep(60)", time_limit_s=0.3) == -signal.SIGTERM


def test_environment_keeps_the_users_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/a:/b")
    environment = attached_environment(Path("/s"), ("one", "two"))
    assert environment["PYTHONPATH"].split(":") == [str(SITE_FOLDER), "/a", "/b"]
    assert environment["HEADRACE_HOOKS"] == "one,two"


def test_hooks_of_an_outer_command_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_HOOKS", "outer,two")
    assert attached_environment(None, ("one", "two"))["HEADRACE_HOOKS"] == "one,two,outer"


def test_python_without_headrace_loads_this_copy(tmp_path: Path) -> None:
    environment = attached_environment(None, ("headrace.errors",)) | {"PYTHONNOUSERSITE": "1"}
    code = "import sys; print(sys.modules['headrace'].__path__)"
    done = subprocess.run(
        [sys._base_executable, "-c", code], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert str(SITE_FOLDER.parents[1]) in done.stdout


def test_a_time_limit_ends_the_children_of_a_shell(tmp_path: Path) -> None:
    mark = tmp_path / "alive"
    child = f"import time, pathlib\nwhile True: pathlib.Path({str(mark)!r}).touch(); time.sleep(0.05)"
    spawn(["sh", "-c", f'{sys.executable} -c "$0"; true', child], time_limit_s=1.0)
    mark.unlink(missing_ok=True)
    time.sleep(0.4)
    assert not mark.exists(), "the shell's child goes on"
