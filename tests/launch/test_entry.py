"""The entry point of a container: variables as the toolkit's, signals, orphans, failures, as process 1."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from headrace.errors import HeadraceError
from headrace.launch import entry
from headrace.launch.entry import container_command
from headrace.launch.in_container.container import read_container, sagemaker_variables, script_arguments
from headrace.launch.job_request.request import training_image
from headrace.system.processes.own_python import own_module

TOOLKIT: dict[str, Any] = json.loads((Path(__file__).parents[1] / "golden" / "sagemaker_toolkit.json").read_text())
WAIT_S = 60.0
TRAIN = own_module("headrace", "train")
TORCHRUN = own_module("torch.distributed.run")


def container(base: Path, files: dict[str, Any], scripts: dict[str, str] | None = None) -> Path:
    for folder in ("input/config", "input/data", "code", "output"):
        (base / folder).mkdir(parents=True, exist_ok=True)
    for name, value in files.items():
        (base / "input" / "config" / name).write_text(json.dumps(value))
    for name, text in (scripts or {}).items():
        (base / "code" / name).write_text(text)
    return base


def hosts(*names: str, current: str = "algo-1") -> dict[str, Any]:
    return {"resourceconfig.json": {"current_host": current, "hosts": list(names or ["algo-1"])}}


@pytest.mark.parametrize("case", TOOLKIT["cases"])
def test_every_variable_and_argument_is_that_of_the_toolkit(case: str, tmp_path: Path) -> None:
    recorded = TOOLKIT["cases"][case]
    base = container(tmp_path, recorded["files"])
    found = read_container({"SAGEMAKER_BASE_DIR": str(base)})
    ours = sagemaker_variables(found, gpus=0, program="train.py")
    ours = {name: value.replace(str(base), "BASE") for name, value in ours.items()}
    theirs = dict(recorded["env"])
    cpus = ours["SM_NUM_CPUS"]
    theirs["SM_TRAINING_ENV"] = theirs["SM_TRAINING_ENV"].replace('"num_cpus":2', f'"num_cpus":{cpus}')
    theirs["SM_NUM_CPUS"] = cpus
    assert ours == theirs
    assert script_arguments(found) == recorded["argv"]


@pytest.mark.skipif("HEADRACE_SAGEMAKER_TOOLKIT" not in os.environ, reason="untested: no environment with sagemaker-training")
@pytest.mark.parametrize("case", TOOLKIT["cases"])
def test_the_recorded_variables_are_those_of_the_toolkit_here(case: str, tmp_path: Path) -> None:
    """HEADRACE_SAGEMAKER_TOOLKIT: path of `train` in an environment with sagemaker-training."""
    recorded = TOOLKIT["cases"][case]
    dump = "import json, os, sys; json.dump([dict(os.environ), sys.argv[1:]], open(os.environ['DUMP'], 'w'))"
    base = container(tmp_path / "ml", recorded["files"], {"train.py": dump})
    train = Path(os.environ["HEADRACE_SAGEMAKER_TOOLKIT"])
    environment = {"PATH": f"{train.parent}:{os.environ['PATH']}", "HOME": str(tmp_path), "SAGEMAKER_BASE_DIR": str(base)}
    environment |= {"SAGEMAKER_PROGRAM": "train.py", "DUMP": str(tmp_path / "dump.json")}
    names = tmp_path / "hosts"  # the toolkit waits until all hosts have an address
    names.write_text(Path("/etc/hosts").read_text() + "\n127.0.0.1 algo-1 algo-2\n")
    words = f"mount --bind {shlex.quote(str(names))} /etc/hosts && exec {shlex.quote(str(train))}"
    subprocess.run(["unshare", "-m", "-r", "bash", "-c", words], env=environment, check=True, timeout=100)
    found, arguments = json.loads((tmp_path / "dump.json").read_text())
    found = {name: value.replace(str(base), "BASE") for name, value in found.items() if name.startswith("SM_")}
    cpus = found["SM_NUM_CPUS"]
    expected = {name: value.replace('"num_cpus":2', f'"num_cpus":{cpus}') for name, value in recorded["env"].items()}
    assert found == {**expected, "SM_NUM_CPUS": cpus}
    assert arguments == recorded["argv"]


def test_headrace_train_gets_its_folders_and_hyperparameters(tmp_path: Path) -> None:
    files = {**hosts(), "hyperparameters.json": {"model": "resnet18", "epochs": "2"}, "inputdataconfig.json": {"train": {}}}
    found = read_container({"SAGEMAKER_BASE_DIR": str(container(tmp_path, files))})
    command, name = container_command(found, {}, gpus=0)
    assert name == "headrace"
    assert command[: len(TRAIN)] == TRAIN
    assert command[command.index("--data") + 1] == str(tmp_path / "input" / "data" / "train")
    assert command[command.index("--out") + 1] == str(tmp_path / "checkpoints")
    assert command[-4:] == ["--epochs", "2", "--model", "resnet18"]


def test_an_option_of_headrace_train_has_one_name_in_both_spellings(tmp_path: Path) -> None:
    def words(**values: str) -> list[str]:
        base = container(tmp_path / str(len(values)), {"hyperparameters.json": {"sagemaker_region": "r", **values}})
        return container_command(read_container({"SAGEMAKER_BASE_DIR": str(base)}), {}, gpus=0)[0]

    assert words(batch_size="8")[-2:] == ["--batch-size", "8"]
    assert words(batch_size="8", **{"batch-size": "8"}).count("--batch-size") == 1
    with pytest.raises(HeadraceError, match="batch-size and batch_size are one option, and have two values"):
        words(batch_size="8", **{"batch-size": "9"}, epochs="1")


ANOTHER = "launch --channel NAME=PLACE, or fit({NAME: …}), makes another"


@pytest.mark.parametrize("last", ["KeyError: 'SM_CHANNEL_TRAIN'", "[rank0]: FileNotFoundError: [Errno 2] …", "ValueError: 3"])
def test_the_end_of_a_traceback_that_may_lack_a_channel_is_answered_with_those_there(tmp_path: Path, last: str) -> None:
    base = container(tmp_path, {"inputdataconfig.json": {"training": {}, "labels": {}}})
    found = entry._remedies(f"Traceback (most recent call last):\n{last}\n", read_container({"SAGEMAKER_BASE_DIR": str(base)}))
    there = f"SM_CHANNEL_LABELS={base}/input/data/labels, SM_CHANNEL_TRAINING={base}/input/data/training"
    assert found == ([] if last.startswith("ValueError") else [f"the channels of this job: {there}; {ANOTHER}"])


def test_headrace_train_starts_its_own_ranks_on_one_host_and_torchrun_joins_several(tmp_path: Path) -> None:
    alone = read_container({"SAGEMAKER_BASE_DIR": str(container(tmp_path / "one", hosts()))})
    assert container_command(alone, {}, gpus=4)[0][: len(TRAIN)] == TRAIN
    two = read_container({"SAGEMAKER_BASE_DIR": str(container(tmp_path / "two", hosts("algo-1", "algo-2")))})
    command, _ = container_command(two, {}, gpus=4)
    assert command[: len(TORCHRUN)] == TORCHRUN
    assert command[command.index("--no-python") + 1 :][: len(TRAIN)] == TRAIN


def test_several_hosts_or_gpus_start_torchrun(tmp_path: Path) -> None:
    files = hosts("algo-1", "algo-2", current="algo-2")
    found = read_container({"SAGEMAKER_BASE_DIR": str(container(tmp_path, files, {"train.py": ""}))})
    plain, _ = container_command(found, {"HEADRACE_SCRIPT": "train.py"}, gpus=4)
    assert plain[1:] == [str(tmp_path / "code" / "train.py")]  # as the toolkit starts a script that asks for nothing
    command, _ = container_command(found, {"HEADRACE_SCRIPT": "train.py", "HEADRACE_TORCHRUN": "1"}, gpus=4)
    assert command[: len(TORCHRUN)] == TORCHRUN
    assert {"--nnodes=2", "--node_rank=1", "--nproc_per_node=4", "--master_addr=algo-1"} <= set(command)
    assert command[-1] == str(tmp_path / "code" / "train.py")
    with pytest.raises(HeadraceError, match="no script other"):
        container_command(found, {"HEADRACE_SCRIPT": "other.py"}, gpus=0)


@pytest.mark.parametrize(
    ("distribution", "count", "added"), [("ShardedByS3Key", 2, 1), ("ShardedByS3Key", 1, 0), ("FullyReplicated", 2, 0)]
)
def test_hosts_with_parts_of_the_data_are_told_so(tmp_path: Path, distribution: str, count: int, added: int) -> None:
    names = [f"algo-{number + 1}" for number in range(count)]
    files = {**hosts(*names), "inputdataconfig.json": {"train": {"S3DistributionType": distribution}}}
    command, _ = container_command(read_container({"SAGEMAKER_BASE_DIR": str(container(tmp_path, files))}), {}, gpus=1)
    assert command.count("--sharded-data") == added
    files["inputdataconfig.json"]["validation"] = {"S3DistributionType": distribution}
    command, _ = container_command(read_container({"SAGEMAKER_BASE_DIR": str(container(tmp_path, files))}), {}, gpus=1)
    assert command.count("--sharded-val") == added


def test_the_example_container_starts_the_entry_on_the_default_base() -> None:
    text = (Path(__file__).parents[2] / "examples" / "sagemaker.Dockerfile").read_text(encoding="utf-8")
    lines = dict(line.split(maxsplit=1) for line in text.splitlines() if line and not line.startswith("#"))
    assert lines["ARG"] == f"BASE={training_image('us-east-1', 'ml.g5.xlarge')}"
    assert json.loads(lines["ENTRYPOINT"]) == ["python", "-m", entry.__name__]


class Entry:
    """A running entry, alone or as process 1 of a PID namespace."""

    def __init__(self, base: Path, script: str, *prefix: str) -> None:
        self.base = container(base, hosts(), {"train.py": script})
        environment = {**os.environ, "SAGEMAKER_BASE_DIR": str(base), "HEADRACE_SCRIPT": "train.py", "SEEN": str(base / "seen")}
        words = [*prefix, sys.executable, "-m", "headrace.launch.entry"]
        self.process = subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, text=True)

    def wait_for(self, text: str) -> None:
        end_s = time.monotonic() + WAIT_S
        seen = self.base / "seen"
        while not (seen.exists() and text in seen.read_text()):
            assert time.monotonic() < end_s and self.process.poll() is None, self.process.stderr
            time.sleep(0.02)

    def end(self) -> tuple[int, str]:
        _, errors = self.process.communicate(timeout=WAIT_S)
        return self.process.returncode, errors

    def failure(self) -> str:
        path = self.base / "output" / "failure"
        return path.read_text() if path.exists() else ""


SAVES = """
import os, signal, sys, time
def save(number, frame):
    with open(os.environ["SEEN"], "a") as file:
        file.write("saved\\n")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
with open(os.environ["SEEN"], "w") as file:
    file.write("ready\\n")
time.sleep(600)
"""

UNSHARE = ("unshare", "-Ur", "--pid", "--fork", "--mount-proc", "--kill-child")


def unshare_works() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*UNSHARE, "true"], capture_output=True, timeout=20).returncode == 0


@pytest.fixture(params=["alone", "as process 1"])
def prefix(request: pytest.FixtureRequest) -> Iterator[tuple[str, ...]]:
    if request.param == "alone":
        yield ()
    elif unshare_works():
        yield UNSHARE
    else:
        pytest.skip("untested: unshare may make no PID namespace here")


def inner_pid(entry: Entry, prefix: tuple[str, ...]) -> int:
    """The entry's process as this namespace numbers it: unshare's child."""
    if not prefix:
        return entry.process.pid
    children = Path(f"/proc/{entry.process.pid}/task/{entry.process.pid}/children").read_text().split()
    return int(children[0])


def test_sigterm_reaches_the_script_which_saves(tmp_path: Path, prefix: tuple[str, ...]) -> None:
    entry = Entry(tmp_path, SAVES, *prefix)
    entry.wait_for("ready")
    os.kill(inner_pid(entry, prefix), signal.SIGTERM)
    code, _ = entry.end()
    assert code == 0
    assert (tmp_path / "seen").read_text() == "ready\nsaved\n"
    assert entry.failure() == ""


def test_a_job_that_is_asked_to_stop_has_no_failure(tmp_path: Path) -> None:
    entry = Entry(tmp_path, SAVES.replace("sys.exit(0)", "sys.exit(143)"))
    entry.wait_for("ready")
    entry.process.send_signal(signal.SIGTERM)
    code, _ = entry.end()
    assert code == 143 and entry.failure() == ""


def test_orphans_are_collected_and_left_processes_end(tmp_path: Path, prefix: tuple[str, ...]) -> None:
    script = """
import os, subprocess, sys, time
if os.fork() == 0:
    if os.fork() == 0:
        os._exit(0)  # an orphan that ends at once
    os._exit(0)
left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
with open(os.environ["SEEN"], "w") as file:
    file.write(f"{left.pid} {os.getpgrp()}")
"""
    entry = Entry(tmp_path, script, *prefix)
    code, errors = entry.end()
    assert code == 0, errors
    if not prefix:
        pid = int((tmp_path / "seen").read_text().split()[0])
        assert not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text().split()[2]


def test_a_failure_is_written_where_sagemaker_reads_it(tmp_path: Path, prefix: tuple[str, ...]) -> None:
    entry = Entry(tmp_path, "import sys\nprint('x' * 5000, file=sys.stderr)\nraise ValueError('no labels in row 7')", *prefix)
    code, errors = entry.end()
    assert code == 1
    assert "no labels in row 7" in errors
    failure = entry.failure()
    assert failure.startswith("training ended with exit code 1\n") and failure.rstrip().endswith(
        "ValueError: no labels in row 7"
    )
    assert len(failure) <= 1024


def test_a_killed_script_is_named_with_its_signal(tmp_path: Path) -> None:
    entry = Entry(tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    code, _ = entry.end()
    assert code == 128 + signal.SIGKILL
    assert "killed by signal 9" in entry.failure()


def test_a_damaged_or_absent_configuration_is_one_line(tmp_path: Path) -> None:
    entry = Entry(tmp_path, "")
    entry.end()
    (tmp_path / "input" / "config" / "resourceconfig.json").write_text("{")
    words = [sys.executable, "-m", "headrace.launch.entry"]
    done = subprocess.run(
        words, env={**os.environ, "SAGEMAKER_BASE_DIR": str(tmp_path)}, capture_output=True, text=True, timeout=WAIT_S
    )
    assert done.returncode == 1
    assert "resourceconfig.json" in done.stderr and "Traceback" not in done.stderr


def test_a_hyperparameter_that_no_variable_can_be_called_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "input" / "config"
    config.mkdir(parents=True)
    (config / "hyperparameters.json").write_text('{"a=b": "1", "model": "resnet18"}')
    monkeypatch.setenv("SAGEMAKER_BASE_DIR", str(tmp_path))
    assert entry.main() == 1
    assert capsys.readouterr().err == "headrace: illegal environment variable name\n"
    assert (tmp_path / "output" / "failure").read_text() == "illegal environment variable name\n"
