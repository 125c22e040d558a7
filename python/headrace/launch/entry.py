"""The entry point of a training container: `python -m headrace.launch.entry`.

It reads SageMaker's JSON files, sets the `SM_*` variables, and runs `headrace train` (or the script that `HEADRACE_SCRIPT`
names) with the hyperparameters as options, under torchrun where there are several hosts. As the container's first
process it hands SIGTERM on, so that training writes a checkpoint before a stop or a spot interruption. A failure's reason is
written to /opt/ml/output/failure.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from headrace.errors import HeadraceError
from headrace.launch.in_container.container import Container, read_container, sagemaker_variables, script_arguments
from headrace.launch.in_container.first_process import Ended, run_first
from headrace.system.processes.own_python import own_module

__all__ = ["container_command", "main"]

PORT = 7777
"""Port of torchrun's rendezvous between the hosts of a job. SageMaker's own SDK uses the same."""

TORCHRUN = "sagemaker_torch_distributed_enabled"
"""The hyperparameter by which SageMaker's SDK asks for torchrun."""

FAILURE_CHARACTERS = 1024
"""SageMaker shows at most this many characters of the failure file."""

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
        command, program = container_command(container, os.environ, gpus=_gpus())
        environment = {**os.environ, **sagemaker_variables(container, gpus=_gpus(), program=program)}
        ended = run_first(command, environment)
    except (OSError, ValueError, HeadraceError) as error:  # ValueError: a hyperparameter that no variable can be called
        return _fail(container, f"{error}", 1)
    if program == "headrace":
        _keep_results(container)
    if ended.code and not ended.signals:
        return _fail(container, _reason(ended), ended.code)
    return ended.code  # a job that was asked to stop has no failure


def container_command(container: Container, environment: Mapping[str, str], *, gpus: int) -> tuple[list[str], str]:
    """Return the command that this host runs, and the name of its script ("headrace" for `headrace train`).

    Raises `HeadraceError` if the script is not there.
    """
    script = environment.get("HEADRACE_SCRIPT") or str(container.hyperparameters.get("sagemaker_program") or "")
    if script:
        path = _find_script(container, script)
        command, below_torchrun = [sys.executable, str(path), *script_arguments(container)], [str(path)]
        below_torchrun += script_arguments(container)
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


def _find_script(container: Container, script: str) -> Path:
    places = [container.base / "code" / script, container.channel("code") / script]
    found = next((path for path in places if path.is_file()), None)
    if found is None:
        raise HeadraceError(f"there is no script {script}: looked for {' and '.join(map(str, places))}")
    return found


def _train_words(container: Container) -> list[str]:
    """Return the options of `headrace train`: its folders, then the hyperparameters, which may name others."""
    words = ["--data", str(container.channel("train")), "--out", str(container.checkpoints), "--resume", "auto"]
    if _is_sharded(container, "train"):
        words.append("--sharded-data")
    if "validation" in container.inputs:
        words += ["--val", str(container.channel("validation"))]
    if _is_sharded(container, "validation"):
        words.append("--sharded-val")
    return [*words, *script_arguments(container)]


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


def _reason(ended: Ended) -> str:
    lines = [line for line in ended.stderr.splitlines() if line.strip()]
    last = "\n".join(lines[-12:])
    how = f"killed by signal {ended.code - 128}" if ended.code > 128 else f"exit code {ended.code}"
    return f"training ended with {how}\n{last}"


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
