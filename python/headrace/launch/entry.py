"""The entry point of a training container: `python -m headrace.launch.entry`.

It reads SageMaker's JSON files, sets the `SM_*` variables, and runs `headrace train` (or the script that `HEADRACE_SCRIPT`
names, in its own folder, with what its `requirements.txt` asks for) with the hyperparameters as options, under torchrun where
there are several hosts. A script of SageMaker's SDK comes from the archive that `sagemaker_submit_directory` names. As the
container's first process it hands SIGTERM on, so that training writes a checkpoint before a stop or a spot interruption. A
failure's reason is written to /opt/ml/output/failure.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from headrace.attach.launch import GROUP_VARIABLE
from headrace.errors import HeadraceError
from headrace.launch.in_container.container import (
    CONTAINER_BASE,
    Container,
    read_container,
    sagemaker_variables,
    script_arguments,
    train_arguments,
)
from headrace.launch.in_container.first_process import Ended, run_first
from headrace.launch.in_container.requirements import FILE, install_requirements
from headrace.launch.in_container.source_archive import PROGRAM, fetch_source, named_source
from headrace.launch.own_code.source import ENTRY, SHELL_ENTRY
from headrace.system.processes.own_python import own_module

__all__ = ["ARGUMENTS", "container_command", "main"]

PORT = 7777
"""Port of torchrun's rendezvous between the hosts of a job. SageMaker's own SDK uses the same."""

TORCHRUN = "sagemaker_torch_distributed_enabled"
"""The hyperparameter by which SageMaker's SDK asks for torchrun."""

ARGUMENTS = "HEADRACE_ARGUMENTS"
"""Environment variable: a JSON list of further arguments of the script."""

FAILURE_CHARACTERS = 1024
"""SageMaker shows at most this many characters of the failure file."""

_NO_CHANNEL = re.compile(r"^(?:\[rank\d+\]:\s*)?(?:FileNotFoundError|KeyError|NotADirectoryError)\b", re.MULTILINE)
"""The last line of a traceback, under torchrun with the rank before it, that may name a channel that is not there."""

RESULTS = ("final.safetensors", "report.html", "metrics.jsonl", "config.toml")
"""Files of a finished training run to copy into the job's model folder."""


def main() -> int:
    """Run the training of this container and return its exit code."""
    try:
        container = read_container()
    except HeadraceError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for folder in (container.checkpoints, container.model, container.output):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        _bring_source(container, os.environ)
        command, program = container_command(container, os.environ, gpus=_gpus())
        environment = {**os.environ, **sagemaker_variables(container, gpus=_gpus(), program=program), GROUP_VARIABLE: "1"}
        code = _script_folder(container, os.environ)
        if code is not None and program.endswith(".py") and (code / FILE).is_file():
            environment = _with_requirements(container, code, environment)
        ended = run_first(command, environment, folder=code)
    except (OSError, ValueError, HeadraceError) as error:  # ValueError: a hyperparameter that no variable can be called
        return _fail(container, f"{error}", 1)
    if program == "headrace":
        _keep_results(container)
    if ended.code and not ended.signals:
        return _fail(container, _reason(ended, container), ended.code)
    return ended.code  # a job that was asked to stop has no failure


def container_command(container: Container, environment: Mapping[str, str], *, gpus: int) -> tuple[list[str], str]:
    """Return the command that this host runs, and the name of its script ("headrace" for `headrace train`).

    Raises `HeadraceError` if the script is not there.
    """
    script = _script(container, environment)
    if script:
        path = _script_root(container, script) / script
        below_torchrun = [str(path), *script_arguments(container), *_more_arguments(environment)]
        command = [sys.executable, *below_torchrun]
        if (
            path.suffix == ".sh"
        ):  # its first line names the shell, as where SageMaker's toolkit starts it; else it is that of sh
            path.chmod(path.stat().st_mode | 0o111)
            command = ["/bin/sh", "-c", 'exec "$0" "$@"', *below_torchrun]
        alone = (len(container.hosts) == 1 and gpus <= 1) or not _wants_torchrun(container, environment)
    else:
        command = own_module("headrace", "train", *_train_words(container))
        below_torchrun = ["--no-python", *command]
        alone = len(container.hosts) == 1  # it starts a process for each GPU itself
    name = Path(script).name if script else "headrace"
    if alone:
        return command, name
    master = environment.get("HEADRACE_MASTER_ADDR") or container.hosts[0]
    launcher = own_module(
        "torch.distributed.run",
        *(f"--nnodes={len(container.hosts)}", f"--node_rank={container.rank}"),
        *(f"--nproc_per_node={max(1, gpus)}", f"--master_addr={master}"),
        f"--master_port={environment.get('HEADRACE_MASTER_PORT') or PORT}",
    )
    return [*launcher, *below_torchrun], name


def _wants_torchrun(container: Container, environment: Mapping[str, str]) -> bool:
    """Return whether a script is to be started once for each GPU: it says so, as for SageMaker's toolkit."""
    return environment.get("HEADRACE_TORCHRUN") == "1" or bool(container.hyperparameters.get(TORCHRUN))


def _script(container: Container, environment: Mapping[str, str]) -> str:
    """Return the name of the script that takes the place of `headrace train`, or an empty text."""
    return environment.get("HEADRACE_SCRIPT") or str(container.hyperparameters.get(PROGRAM) or "")


def _bring_source(container: Container, environment: Mapping[str, str]) -> None:
    """Fill an empty code folder with the source that hyperparameters of SageMaker's SDK name, as SageMaker's toolkit does."""
    code, (program, place) = container.base / "code", named_source(container.hyperparameters)
    if not (program and place) or environment.get("HEADRACE_SCRIPT") or (code.is_dir() and any(code.iterdir())):
        return
    if place.startswith(f"{CONTAINER_BASE}/"):
        place = str(container.base / Path(place).relative_to(CONTAINER_BASE))
    fetch_source(place, code)


def _script_root(container: Container, script: str) -> Path:
    """Return the folder from which the script is named. Raises `HeadraceError` if the script is not there."""
    places = [container.base / "code", container.channel("code")]
    found = next((folder for folder in places if (folder / script).is_file()), None)
    if found is None:
        looked = " and ".join(str(folder / script) for folder in places)
        hint = (
            "--source-dir DIR --entry FILE brings it, as when the request was made" if script in (ENTRY, SHELL_ENTRY) else None
        )
        raise HeadraceError(f"there is no script {script}: looked for {looked}", hint=hint)
    return found


def _script_folder(container: Container, environment: Mapping[str, str]) -> Path | None:
    """Return the current folder of the command: the script's own; None for `headrace train`."""
    script = _script(container, environment)
    return _script_root(container, script) if script else None


def _more_arguments(environment: Mapping[str, str]) -> list[str]:
    """Return the arguments of the script that are no hyperparameters."""
    found = json.loads(environment.get(ARGUMENTS) or "[]")
    if not isinstance(found, list):
        raise HeadraceError(f"{ARGUMENTS} holds no list", hint="a JSON list of texts")
    return list(map(str, found))


def _with_requirements(container: Container, folder: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment in which the script finds the packages that its `requirements.txt` asks for."""
    target = container.base / "packages"
    found = install_requirements(folder, target, environment)
    print(f"headrace: {FILE}: {', '.join(found) or 'all is installed'}", file=sys.stderr, flush=True)
    if not found:
        return dict(environment)
    return {**environment, "PYTHONPATH": os.pathsep.join(filter(None, (str(target), environment.get("PYTHONPATH"))))}


def _train_words(container: Container) -> list[str]:
    """Return the options of `headrace train`: its folders, then the hyperparameters, which may name others."""
    words = ["--data", str(container.channel("train")), "--out", str(container.checkpoints), "--resume", "auto"]
    if _is_sharded(container, "train"):
        words.append("--sharded-data")
    if "validation" in container.inputs:
        words += ["--val", str(container.channel("validation"))]
    if _is_sharded(container, "validation"):
        words.append("--sharded-val")
    return [*words, *train_arguments(container)]


def _is_sharded(container: Container, channel: str) -> bool:
    """Return whether each host has only a part of a channel's objects."""
    return len(container.hosts) > 1 and container.inputs.get(channel, {}).get("S3DistributionType") == "ShardedByS3Key"


def _keep_results(container: Container) -> None:
    """Copy the results of a finished run to the model, and its sessions to the output, from where SageMaker uploads them."""
    if container.rank:
        return
    for name in RESULTS:
        if (container.checkpoints / name).is_file():
            shutil.copyfile(container.checkpoints / name, container.model / name)
    sessions = container.checkpoints / "sessions"
    if sessions.is_dir():
        shutil.copytree(sessions, container.output / "sessions", dirs_exist_ok=True)


def _reason(ended: Ended, container: Container) -> str:
    """Return why training failed, in words: how it ended, what to do where that is known, and the end of its output."""
    lines = [line for line in ended.stderr.splitlines() if line.strip()]
    last = "\n".join(lines[-12:])
    how = f"killed by signal {ended.code - 128}" if ended.code > 128 else f"exit code {ended.code}"
    found = [f"training ended with {how}", *_remedies(ended.stderr, container), last]
    return "\n".join(found)


def _remedies(stderr: str, container: Container) -> list[str]:
    """Return what to do about a path or a channel that is not there."""
    if _NO_CHANNEL.search(stderr) is None:
        return []
    channels = ", ".join(f"SM_CHANNEL_{name.upper()}={container.channel(name)}" for name in sorted(container.inputs))
    found = [f"the channels of this job: {channels or 'none'}; launch --channel NAME=PLACE, or fit({{NAME: …}}), makes another"]
    if str(CONTAINER_BASE) in stderr and container.base != CONTAINER_BASE:
        found.insert(0, f"{CONTAINER_BASE} is {container.base} here: read SM_CHANNEL_…, SM_MODEL_DIR and SM_OUTPUT_DATA_DIR")
    return found


def _fail(container: Container, reason: str, code: int) -> int:
    print(f"headrace: {reason.splitlines()[0]}", file=sys.stderr)
    container.failure.parent.mkdir(parents=True, exist_ok=True)
    head, _, rest = reason.partition("\n")
    room = FAILURE_CHARACTERS - len(head) - 1
    container.failure.write_text(f"{head}\n{rest[-room:] if room > 0 else ''}"[:FAILURE_CHARACTERS], encoding="utf-8")
    return code


def _gpus() -> int:
    """Return the number of NVIDIA GPUs that the container sees, without importing torch."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([one for one in visible.split(",") if one.strip() not in ("", "-1")])
    return sum(re.fullmatch(r"nvidia\d+", path.name) is not None for path in Path("/dev").iterdir())


if __name__ == "__main__":
    sys.exit(main())
