"""Files for other launchers: read by their own parsers, and run with programs that stand for srun, ssh and aws."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from headrace.cli.main import main
from headrace.datasets.open import open as open_dataset
from headrace.launch import other_launchers

TRAIN = ["--model", "resnet18", "--data", "/data/my images", "--epochs", "2", "--env", "NOTE=a 'b' $c"]
ROLE = "arn:aws:iam::123456789012:role/pack"
PACK = ["--data", "s3://photos/raw", "--packed", "s3://photos/packed", "--image", "123.dkr.ecr/headrace:1", "--role", ROLE]

SRUN = """#!/bin/bash
# srun: one process for each node
while [[ "$1" == --* ]]; do shift; done
pids=()
trap 'exit 137' TERM  # the real one kills its tasks then
for ((node = 0; node < SLURM_NNODES; node++)); do SLURM_NODEID=$node "$@" & pids+=($!); done
printf '%s ' "${pids[@]}" > "$RECORD/tasks"
code=0
for pid in "${pids[@]}"; do
    wait "$pid" || code=$?
done
exit $code
"""
SCONTROL = """#!/bin/bash
if [ "$1" = show ]; then printf 'node-a\\nnode-b\\n'; else echo "$*" >> "$RECORD/scontrol"; fi
"""
SCANCEL = """#!/bin/bash
[ "$*" = "--signal=TERM 1234.0" ] && kill -TERM $(cat "$RECORD/tasks")
"""
SSH = """#!/bin/bash
echo "$4" >> "$RECORD/hosts"
HOST="$4" exec bash -c "$5"
"""
PYTHON = """#!/bin/bash
printf '%s\\n' "NOTE=${NOTE:-}" "$@" > "$RECORD/${HOST:-node}-${SLURM_NODEID:-}.txt"
if [ -n "${SLEEPS:-}" ]; then
    trap 'touch "$RECORD/saved-${SLURM_NODEID:-}"; exit 0' TERM
    touch "$RECORD/ready-${SLURM_NODEID:-}"
    while :; do sleep 0.05; done
fi
exit ${CODE:-0}
"""
AWS = """#!/bin/bash
printf '%s\\0' "$@" > "$RECORD/aws-$2.txt"
"""


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The environment in which the scripts run: programs of ours come first."""
    programs = {"srun": SRUN, "scontrol": SCONTROL, "scancel": SCANCEL, "ssh": SSH, "python": PYTHON, "aws": AWS}
    for name, text in programs.items():
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    slurm = {"SLURM_NNODES": "2", "SLURM_JOB_ID": "1234", "SLURM_JOB_NODELIST": "node-[a-b]"}
    return {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "RECORD": str(tmp_path), "HOME": str(tmp_path), **slurm}


def written(*words: str) -> str:
    assert main(["launch", *words, "--out", "file.sh"]) == 0
    return Path("file.sh").read_text()


def run(world: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", "file.sh"], env=world, capture_output=True, text=True, timeout=120)


def recorded(name: str) -> list[str]:
    return Path(name).read_text().splitlines()


HEADRACE = ["-m", "headrace", "train", "--data", "/data/my images", "--out", "results/headrace-train", "--resume", "auto",
            "--model", "resnet18", "--epochs", "2"]  # fmt: skip


def test_the_slurm_script_starts_torchrun_on_each_node_with_the_words_unchanged(world: dict[str, str]) -> None:
    text = written("slurm", *TRAIN, "--count", "2", "--gpus", "8", "--max-hours", "1.5")
    options = dict(
        line.removeprefix("#SBATCH --").partition("=")[::2] for line in text.splitlines() if line.startswith("#SBATCH")
    )
    assert options["nodes"] == "2" and options["gpus-per-node"] == "8" and options["time"] == "01:30:00"
    assert options["signal"] == "B:USR1@120" and "requeue" in options
    done = run(world)
    assert done.returncode == 0, done.stderr
    for node in "01":
        lines = recorded(f"node-{node}.txt")
        assert lines[0] == "NOTE=a 'b' $c"
        assert lines[1:8] == ["-m", "torch.distributed.run", "--nnodes=2", f"--node_rank={node}", "--nproc_per_node=8",
                              "--master_addr=node-a", "--master_port=29734"]  # fmt: skip
        assert lines[8:] == HEADRACE
    assert not Path("scontrol").exists()


def test_a_slurm_job_that_fails_keeps_its_exit_code(world: dict[str, str]) -> None:
    written("slurm", *TRAIN)
    assert run({**world, "CODE": "3"}).returncode == 3


def test_a_slurm_job_at_its_time_limit_saves_and_goes_back_into_the_queue(world: dict[str, str]) -> None:
    written("slurm", *TRAIN, "--count", "2")
    job = subprocess.Popen(["bash", "file.sh"], env={**world, "SLEEPS": "1"}, start_new_session=True)
    try:
        while not (Path("ready-0").exists() and Path("ready-1").exists()):
            assert job.poll() is None
            time.sleep(0.05)
        job.send_signal(signal.SIGUSR1)  # to the shell only, as --signal=B: does
        assert job.wait(timeout=120) == 0
    finally:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
    assert Path("saved-0").exists() and Path("saved-1").exists()
    assert recorded("scontrol") == ["requeue 1234"]


def test_the_ssh_script_starts_each_host_with_its_rank(world: dict[str, str]) -> None:
    written("ssh", *TRAIN, "--hosts", "me@node-a", "node-b", "--gpus", "4")
    done = run(world)
    assert done.returncode == 0, done.stderr
    assert sorted(recorded("hosts")) == ["me@node-a", "node-b"]
    for rank, host in enumerate(("me@node-a", "node-b")):
        lines = recorded(f"{host}-.txt")
        assert lines[0] == "NOTE=a 'b' $c"
        assert lines[3:8] == ["--nnodes=2", f"--node_rank={rank}", "--nproc_per_node=4", "--master_addr=node-a",
                              "--master_port=29500"]  # fmt: skip
        assert lines[8:] == HEADRACE


def test_the_ssh_script_ends_with_the_code_of_a_host_that_fails(world: dict[str, str]) -> None:
    written("ssh", *TRAIN, "--hosts", "node-a", "node-b")
    assert run({**world, "CODE": "3"}).returncode == 3


def test_a_script_of_the_user_runs_in_place_of_headrace_train(world: dict[str, str]) -> None:
    text = written("slurm", "--script", "my train.py", "--hyperparameter", "lr=0.1")
    assert "'my train.py' --lr 0.1" in text and "headrace train" not in text


OWN = ["--source-dir", "my project", "--entry", "train.py", "--data", "photos", "--hyperparameter", "lr=0.1"]


@pytest.fixture
def project(world: dict[str, str]) -> Path:
    folder = Path("my project")
    (folder / "parts").mkdir(parents=True)
    (folder / "train.py").write_text("raise SystemExit(0)")
    (folder / "parts" / "model.py").write_text("")
    (folder / "requirements.txt").write_text("rich")
    return folder


@pytest.mark.parametrize("under", ["run", "diagnose", "plain"])
def test_a_folder_of_the_user_is_copied_with_headrace_and_started_under_it(
    world: dict[str, str], project: Path, under: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["slurm", *OWN, "--name", "mine", "--under", under, "--count", "2", "--out", "file.sh", "--", "--their", "a b"]
    assert main(["launch", *words]) == 0
    code = Path("mine-code").absolute()
    assert (code / "parts/model.py").is_file() and (code / ".headrace/headrace/attach").is_dir()
    assert (code / "headrace_entry.py").exists() is (under != "plain")
    said = capsys.readouterr().err
    assert f"copied to {code}, with headrace" in said and "requirements.txt where the machines see them" in said
    done = run(world)
    assert done.returncode == 0, done.stderr
    for node in "01":
        lines = recorded(f"node-{node}.txt")
        assert lines[-5:] == ["headrace_entry.py" if under != "plain" else "train.py", "--their", "a b", "--lr", "0.1"]
    text = Path("file.sh").read_text()
    assert f"SM_CHANNEL_TRAINING={Path('photos').absolute()}" in text and f"cd {code} || exit 1" in text
    assert (code / "results/mine/model").is_dir() and (code / "results/mine/output").is_dir()


def test_the_copy_of_the_folder_is_written_through_no_link(
    world: dict[str, str], project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The folder below the current one is named by headrace: a link in it may have come with a stranger's files."""
    words = ["launch", "slurm", *OWN, "--name", "mine", "--out", "file.sh"]
    (mine := Path("mine.txt")).write_text("mine")
    (kept := Path("elsewhere")).mkdir()
    for link, target in {"": kept, "train.py": mine, "parts": kept, ".headrace": kept, "results": kept}.items():
        place = Path("mine-code") / link
        place.parent.mkdir(exist_ok=True)
        place.symlink_to(target.absolute())
        assert main(words) == 1
        assert "cannot write" in (said := capsys.readouterr().err) and "link" in said, link
        assert mine.read_text() == "mine" and not [*kept.iterdir()], link
        place.unlink()


@pytest.mark.parametrize(
    ("module", "named"),
    [("json.py", "json.py"), ("json/__init__.py", "json"), ("parts/model/__init__.py", "parts/model"), ("json.so", "json.so")],
)
def test_modules_that_the_source_lacks_are_not_beside_its_copy(
    world: dict[str, str], project: Path, module: str, named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Python would import them in place of others. The job's files stay, and caches and headrace itself are made anew."""
    words = ["launch", "slurm", *OWN, "--name", "mine", "--out", "file.sh"]
    made = [Path("mine-code") / name for name in (".headrace/json.py", "parts/__pycache__/model.cpython-311.pyc")]
    for file in (*made, stray := Path("mine-code") / module, kept := Path("mine-code/results/mine/model/net.py")):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("raise SystemExit(9)")
    assert main(words) == 2
    assert f"Python would import {Path.cwd()}/mine-code/{named}, which the source does not have" in capsys.readouterr().err
    stray.unlink()
    assert main(words) == 0
    assert kept.exists() and not any(file.exists() for file in made)


def test_a_copy_that_lies_in_the_source_is_not_copied(world: dict[str, str], project: Path) -> None:
    words = ["launch", "skypilot", *OWN, "--name", "mine", "--out", str(project / "task.yaml")]
    for _ in range(2):
        assert main(words) == 0
    assert not (project / "mine-code/mine-code").exists() and (project / "mine-code/.headrace/headrace").is_dir()
    (project / "requirements.txt").unlink()  # that of the older copy is not of the source
    assert main(words) == 0
    assert "pip install -r" not in (project / "task.yaml").read_text()


def test_the_ssh_script_starts_in_the_copy_of_the_folder(world: dict[str, str], project: Path) -> None:
    Path("bin/python").write_text('#!/bin/bash\npwd > "$RECORD/$HOST.txt"\n')
    Path("bin/python").chmod(0o755)
    written("ssh", *OWN, "--name", "mine", "--hosts", "node-a", "node-b")
    assert run(world).returncode == 0
    assert [recorded(f"node-{host}.txt") for host in "ab"] == [[str(Path("mine-code").absolute())]] * 2


def test_the_skypilot_task_sends_the_copy_of_the_folder(world: dict[str, str], project: Path) -> None:
    yaml = pytest.importorskip("yaml")
    task = yaml.safe_load(written("skypilot", *OWN, "--name", "mine"))
    assert task["workdir"] == str(Path("mine-code").absolute()) and task["setup"] == "pip install -r requirements.txt\n"
    (project / "requirements.txt").unlink()
    assert "setup" not in yaml.safe_load(written("skypilot", *OWN, "--name", "other"))


@pytest.mark.parametrize("spot", [False, True])
def test_the_skypilot_task_is_what_its_schema_wants(world: dict[str, str], spot: bool) -> None:
    yaml = pytest.importorskip("yaml")
    text = written("skypilot", *TRAIN, "--count", "2", "--instance", "g5.12xlarge", *(["--spot"] if spot else []))
    task = yaml.safe_load(text)
    assert set(task) == {"name", "num_nodes", "resources", "envs", "setup", "run"}
    assert task["num_nodes"] == 2 and task["resources"]["instance_type"] == "g5.12xlarge"
    assert task["resources"].get("use_spot", False) is spot
    assert task["envs"] == {"NOTE": "a 'b' $c"}
    sky = {"SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2", "SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_RANK": "1",
           "SKYPILOT_NUM_GPUS_PER_NODE": "4", **task["envs"]}  # fmt: skip
    done = subprocess.run(["bash", "-c", task["run"]], env={**world, **sky}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = recorded("node-.txt")
    assert lines[3:8] == ["--nnodes=2", "--node_rank=1", "--nproc_per_node=4", "--master_addr=10.0.0.1", "--master_port=29500"]
    assert lines[8:] == HEADRACE


@pytest.mark.skipif("HEADRACE_SKYPILOT" not in os.environ, reason="untested: no environment with SkyPilot")
def test_skypilots_own_parser_takes_the_task(world: dict[str, str]) -> None:
    """HEADRACE_SKYPILOT: the Python of an environment with skypilot."""
    Path("task.yaml").write_text(written("skypilot", *TRAIN, "--count", "2", "--gpus", "4", "--spot"))
    code = "import sky, sys; task = sky.Task.from_yaml('task.yaml'); print(task.num_nodes, *task.resources)"
    words = [os.environ["HEADRACE_SKYPILOT"], "-c", code]
    done = subprocess.run(words, env={**os.environ, "HOME": world["HOME"]}, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("2 "), done.stdout
    Path("task.yaml").write_text(Path("task.yaml").read_text().replace("num_nodes:", "number_of_nodes:"))
    again = subprocess.run(words, env={**os.environ, "HOME": world["HOME"]}, capture_output=True, text=True, timeout=300)
    assert again.returncode != 0, "its parser takes anything"


def requests(world: dict[str, str]) -> dict[str, Any]:
    done = run(world)
    assert done.returncode == 0, done.stderr
    found = {}
    for path in sorted(Path().glob("aws-*.txt")):
        words = path.read_text().split("\0")
        assert words[2:4] == ["--region", "us-east-1"] and words[4] == "--cli-input-json"
        found[path.stem.removeprefix("aws-")] = json.loads(words[5])
    return found


def valid(service: str, operation: str, request: dict[str, Any]) -> None:
    boto3 = pytest.importorskip("boto3")
    validate = pytest.importorskip("botocore.validate")
    client = boto3.client(service, region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="x")
    shape = client.meta.service_model.operation_model(operation).input_shape
    report = validate.ParamValidator().validate(request, shape)
    assert not report.has_errors(), report.generate_report()


def test_the_batch_script_packs_every_part_once(
    world: dict[str, str], image_folder: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The container's command, run for each index of the array, makes one whole dataset."""
    written("batch", *PACK[2:], "--data", "PHOTOS", "--queue", "images", "--efs", "fs-0123456789abcdef0", "--units", "3",
            "--hyperparameter", "shard-size=64KiB")  # fmt: skip
    found = requests(world)
    valid("batch", "RegisterJobDefinition", found["register-job-definition"])
    valid("batch", "SubmitJob", found["submit-job"])
    assert found["submit-job"]["arrayProperties"] == {"size": 3}
    (shell, option, command) = found["register-job-definition"]["containerProperties"]["command"]
    assert (shell, option) == ("/bin/sh", "-c")
    photos = image_folder(classes=2, per_class=40, name="photos")
    for index in range(3):
        words = shlex.split(os.path.expandvars(command.replace("$AWS_BATCH_JOB_ARRAY_INDEX", str(index))))
        assert words[:3] == ["exec", "headrace", "pack"]
        assert words[4].startswith("/packed/")
        assert main(["pack", str(photos), str(tmp_path / "packed"), *words[5:]]) == 0
    assert len(open_dataset(tmp_path / "packed")) == 80


def test_the_processing_script_packs_from_s3_to_s3(world: dict[str, str]) -> None:
    written("processing", *PACK, "--hyperparameter", "max-side=512")
    request = requests(world)["create-processing-job"]
    valid("sagemaker", "CreateProcessingJob", request)
    entry = request["AppSpecification"]["ContainerEntrypoint"]
    assert entry == ["headrace", "pack", "s3://photos/raw", "s3://photos/packed", "--max-side", "512"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["slurm"], "needs --model and --data"),
        (["ssh", *TRAIN], "needs --hosts"),
        (["ssh", *TRAIN, "--hosts", "a; rm -rf /"], "is not a host name"),
        (["slurm", *TRAIN, "--name", "a b"], "letters, digits"),
        (["slurm", *TRAIN, "--env", "A-B=1"], "not the name of a variable"),
        (["slurm", *TRAIN, "--count", "0"], "at least one machine"),
        (["batch", *PACK], "--queue, --efs"),
        (["batch", *PACK, "--queue", "q", "--efs", "fs-1"], "2 to 10,000"),
        (["batch"], "--data, --packed, --image, --role"),
        (["processing", *PACK, "--units", "2"], "on one instance"),
        (["processing", *PACK, "--packed", "/here"], "reads from S3"),
        (["slurm", "NAME", *TRAIN], "takes no job name"),
        (["slurm", "--source-dir", "src"], "beside --out"),
        (["slurm", "--source-dir", "src", "--out", "file.sh"], "there is no folder src"),
        (["slurm", "--source-dir", ".", "--out", "file.sh"], "there is no file train.py"),
        (["slurm", "--source-dir", ".", "--data", "s3://bucket/photos", "--out", "file.sh"], "reads files"),
        (["slurm", "--under", "run", "--out", "file.sh"], "for a script of your own"),
    ],
)
def test_what_cannot_work_is_refused_in_words(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["launch", *words]) == 2
    assert message in capsys.readouterr().err


def test_without_a_file_the_text_goes_to_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "slurm", *TRAIN]) == 0
    assert capsys.readouterr().out.startswith("#!/bin/bash\n#SBATCH")
    assert main(["launch", "slurm", *TRAIN, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["text"].startswith("#!/bin/bash\n#SBATCH")


@pytest.mark.parametrize("target", ["slurm", "ssh"])
def test_shellcheck_finds_nothing(world: dict[str, str], target: str) -> None:
    checker = Path("/usr/bin/shellcheck")
    if not checker.exists():
        pytest.skip("untested: shellcheck is not installed")
    written(target, *TRAIN, "--hosts", "node-a")
    done = subprocess.run([checker, "-S", "warning", "file.sh"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


PAGE = Path(__file__).parents[2] / "docs" / "guides" / "launch.md"
EXAMPLES = Path(__file__).parents[2] / "examples" / "launchers"
COMMANDS = re.findall(
    r"^headrace launch (?:slurm|skypilot|ssh|batch|processing) .*", PAGE.read_text(encoding="utf-8"), re.MULTILINE
)


def test_the_commands_of_the_guide_write_the_files_of_the_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    targets = [line.split()[2] for line in COMMANDS]
    assert sorted(targets) == sorted(path.stem for path in EXAMPLES.iterdir()) and len(targets) == 5
    for target, line in zip(targets, COMMANDS, strict=True):
        words = shlex.split(line.partition("  #")[0])[1:]
        assert main(words) == 0, line
        (example,) = EXAMPLES.glob(f"{target}.*")
        text = Path(words[words.index("--out") + 1]).read_text(encoding="utf-8")
        assert text == example.read_text(encoding="utf-8"), f"{line.partition(' --out')[0]} --out {example}"


PLACE = re.compile(r"§\{?(\w+)")


def test_every_place_of_a_template_gets_a_value_and_every_value_has_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, set[str]] = {}
    filled = other_launchers._filled

    def watched(template: str, **values: Any) -> str:
        given[template] = set(values)
        return filled(template, **values)

    monkeypatch.setattr(other_launchers, "_filled", watched)
    for line in COMMANDS:
        assert main(shlex.split(line.partition(" --out")[0])[1:]) == 0
    templates = Path(other_launchers.__file__).parent / "templates"
    assert given == {path.name: set(PLACE.findall(path.read_text(encoding="utf-8"))) for path in templates.iterdir()}


def test_a_value_that_looks_like_a_place_stays_itself(world: dict[str, str]) -> None:
    run_it = ["--script", "train.py", "--data", "§{name}", "--env", "NOTE=§{port}\n§exports\n", "--hosts", "a"]
    for target in ("slurm", "ssh", "skypilot"):
        text = written(target, *run_it)
        sign = "\\u00a7" if target == "skypilot" else "§"  # JSON
        assert "§{name}" in text and f"{sign}{{port}}" in text and f"{sign}exports" in text


@pytest.mark.usefixtures("world")
def test_the_skypilot_task_brings_the_wheel_that_no_index_has(capsys: pytest.CaptureFixture[str]) -> None:
    yaml = pytest.importorskip("yaml")
    task = yaml.safe_load(written("skypilot", *TRAIN, "--wheel", "dist/headrace-1.whl"))
    assert task["setup"] == "pip install '/tmp/headrace-1.whl[train,aws]'\n"
    assert task["file_mounts"] == {"/tmp/headrace-1.whl": str(Path("dist/headrace-1.whl").absolute())}
    assert "remark" not in capsys.readouterr().err
    written("skypilot", *TRAIN)
    assert "no package index has it: --wheel FILE brings one" in capsys.readouterr().err


@pytest.mark.parametrize(
    "value", ["x\nsetup: |\n  touch RAN", "x\r\nrun: evil", "x\u2028setup: evil", "x\x85run: evil", "a'b\n\\n", "é\n"]
)
def test_a_line_feed_in_an_option_stays_in_the_skypilot_task(value: str, world: dict[str, str]) -> None:
    """It ended the block of `run` before, and what followed it replaced `setup`."""
    yaml = pytest.importorskip("yaml")
    text = written("skypilot", *TRAIN, "--count", "2", "--gpus", "4", "--hyperparameter", f"note={value}")
    task = yaml.safe_load(text)
    assert task["setup"] == "pip install 'headrace[train,aws]'\n"
    assert set(task) == {"name", "num_nodes", "resources", "envs", "setup", "run"}
    last = task["run"].rstrip("\n").splitlines()[-1]
    printed = subprocess.run(["bash", "-c", f"printf '%s\\0' {last}"], env=world, capture_output=True, check=True).stdout
    assert value.encode() in printed.split(b"\0")
