"""What a SageMaker container finds: its folders, hyperparameters, channels and hosts, and the `SM_*` variables from them.

`/opt/ml` lies elsewhere where `SAGEMAKER_BASE_DIR` says so, as in SageMaker's own toolkit. The three JSON files decide; the
variables are made from them for scripts that read those.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headrace.errors import HeadraceError

__all__ = [
    "BASE_VARIABLE",
    "CONTAINER_BASE",
    "Container",
    "decoded",
    "read_container",
    "sagemaker_variables",
    "script_arguments",
    "train_arguments",
]

BASE_VARIABLE = "SAGEMAKER_BASE_DIR"
CONTAINER_BASE = Path("/opt/ml")
RESERVED = "sagemaker_"
"""Hyperparameters with this prefix are for the toolkit, not for the script."""

OTHERS_RESERVED = frozenset({"_tuning_objective_metric", "default_user_module_name"})
"""Further hyperparameters that are for the toolkit, not for the script."""

OWN_VARIABLES = frozenset(
    f"{RESERVED}{name}"
    for name in ("program", "submit_directory", "enable_cloudwatch_metrics", "region", "container_log_level", "job_name",
                 "s3_output")
)  # fmt: skip
"""The toolkit's hyperparameters that it interprets itself. All others with its prefix go into `SM_FRAMEWORK_PARAMS`."""

DISTRIBUTED = tuple(
    f"{RESERVED}{name}_enabled"
    for name in ("mpi", "parameter_server", "distributed_dataparallel", "pytorch_ddp", "pytorch_xla_multi_worker",
                 "multi_worker_mirrored_strategy", "torch_distributed")
)  # fmt: skip
"""Hyperparameters by which the SageMaker SDK requests distributed training."""


@dataclass(frozen=True, slots=True)
class Container:
    """What SageMaker tells one host of a job. base: `/opt/ml`. hyperparameters: values parsed as JSON where possible."""

    base: Path
    hyperparameters: Mapping[str, Any]
    inputs: Mapping[str, Mapping[str, Any]]
    resources: Mapping[str, Any]

    @property
    def host(self) -> str:
        """The name of this host: `algo-1`."""
        return str(self.resources.get("current_host", "algo-1"))

    @property
    def hosts(self) -> list[str]:
        """The names of all hosts."""
        return list(self.resources.get("hosts") or [self.host])

    @property
    def rank(self) -> int:
        """The number of this host among all hosts of the job, from 0."""
        return self.hosts.index(self.host) if self.host in self.hosts else 0

    @property
    def checkpoints(self) -> Path:
        """The folder that SageMaker copies to S3 during the job, and restores before a restart."""
        return self.base / "checkpoints"

    @property
    def model(self) -> Path:
        """The folder whose content is the model of the finished job."""
        return self.base / "model"

    @property
    def output(self) -> Path:
        """The folder for results other than the model; SageMaker uploads its content."""
        return self.base / "output" / "data"

    @property
    def failure(self) -> Path:
        """The file whose text becomes the job's FailureReason."""
        return self.base / "output" / "failure"

    def channel(self, name: str) -> Path:
        """Return the path of a channel; in Pipe mode NAME_0, NAME_1, … stand beside it."""
        return self.base / "input" / "data" / name


def read_container(environment: Mapping[str, str] | None = None) -> Container:
    """Read the JSON files of this container. Raises `HeadraceError` naming a file that cannot be read."""
    base = Path((os.environ if environment is None else environment).get(BASE_VARIABLE) or CONTAINER_BASE)
    config = base / "input" / "config"
    texts = _read(config / "hyperparameters.json")
    return Container(base, decoded(texts), _read(config / "inputdataconfig.json"), _read(config / "resourceconfig.json"))


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as reason:
        raise HeadraceError(f"cannot read {path}: {reason}", hint="SageMaker writes this file before the job starts") from None
    if not isinstance(found, dict):
        raise HeadraceError(f"{path} holds no JSON object", hint="SageMaker writes this file before the job starts")
    return found


def decoded(texts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that hyperparameters' texts stand for, as the toolkit does: `"[1, 2]"` is a list, `"abc"` is text."""
    return {name: _decoded(value) for name, value in texts.items()}


def _decoded(value: Any) -> Any:
    try:
        return json.loads(value)
    except (RecursionError, TypeError, ValueError):
        return value


def sagemaker_variables(container: Container, *, gpus: int, program: str) -> dict[str, str]:
    """Return the `SM_*` variables that SageMaker's toolkit would set. `program`: file name of the script."""
    base, resources = container.base, container.resources
    own = {name: value for name, value in container.hyperparameters.items() if not _is_reserved(name)}
    framework = {
        name: value
        for name, value in container.hyperparameters.items()
        if name.startswith(RESERVED) and name not in OWN_VARIABLES
    }
    config = base / "input" / "config"
    module = program.removesuffix(".py")
    groups = resources.get("instance_groups") or []
    names = [str(group["instance_group_name"]) for group in groups]
    current = resources.get("current_group_name") or resources.get("current_instance_group") or "homogeneousCluster"
    members = {str(group["instance_group_name"]): group for group in groups}
    arguments = script_arguments(container)
    plain: dict[str, Any] = {
        "SM_HOSTS": container.hosts,
        "SM_NETWORK_INTERFACE_NAME": resources.get("network_interface_name", "eth0"),
        "SM_HPS": own,
        "SM_USER_ENTRY_POINT": program,
        "SM_FRAMEWORK_PARAMS": framework,
        "SM_RESOURCE_CONFIG": dict(resources),
        "SM_INPUT_DATA_CONFIG": dict(container.inputs),
        "SM_OUTPUT_DATA_DIR": str(base / "output" / "data"),
        "SM_CHANNELS": sorted(container.inputs),
        "SM_CURRENT_HOST": container.host,
        "SM_CURRENT_INSTANCE_TYPE": resources.get("current_instance_type", "local"),
        "SM_CURRENT_INSTANCE_GROUP": current,
        "SM_CURRENT_INSTANCE_GROUP_HOSTS": list(members[current]["hosts"]) if current in members else [],
        "SM_INSTANCE_GROUPS": names,
        "SM_INSTANCE_GROUPS_DICT": members,
        "SM_DISTRIBUTION_INSTANCE_GROUPS": framework.get(
            f"{RESERVED}distribution_instance_groups", [current] if any(map(framework.get, DISTRIBUTED)) else []
        ),
        "SM_IS_HETERO": len(names) > 1,
        "SM_MODULE_NAME": module,
        "SM_LOG_LEVEL": container.hyperparameters.get(f"{RESERVED}container_log_level", logging.INFO),
        "SM_FRAMEWORK_MODULE": "",
        "SM_INPUT_DIR": str(base / "input"),
        "SM_INPUT_CONFIG_DIR": str(config),
        "SM_OUTPUT_DIR": str(base / "output"),
        "SM_NUM_CPUS": os.cpu_count() or 1,
        "SM_NUM_GPUS": gpus,
        "SM_NUM_NEURONS": 0,
        "SM_MODEL_DIR": str(base / "model"),
        "SM_MODULE_DIR": str(container.hyperparameters.get(f"{RESERVED}submit_directory", base / "code")),
        "SM_USER_ARGS": arguments,
        "SM_OUTPUT_INTERMEDIATE_DIR": str(base / "output" / "intermediate"),
    }
    for name in container.inputs:
        plain[f"SM_CHANNEL_{name.upper()}"] = str(container.channel(name))
    for name, value in own.items():
        plain[f"SM_HP_{name.upper()}"] = value
    plain["SM_TRAINING_ENV"] = _training_environment(container, plain)
    return {name: value if isinstance(value, str) else _text(value) for name, value in plain.items()}


def _training_environment(container: Container, plain: Mapping[str, Any]) -> dict[str, Any]:
    """Return all of it in one object, as the toolkit's `SM_TRAINING_ENV` has it."""
    same = (
        *("CURRENT_HOST", "CURRENT_INSTANCE_GROUP", "CURRENT_INSTANCE_GROUP_HOSTS", "CURRENT_INSTANCE_TYPE", "HOSTS"),
        *("DISTRIBUTION_INSTANCE_GROUPS", "INPUT_CONFIG_DIR", "INPUT_DATA_CONFIG", "INPUT_DIR", "INSTANCE_GROUPS"),
        *("INSTANCE_GROUPS_DICT", "IS_HETERO", "LOG_LEVEL", "MODEL_DIR", "MODULE_DIR", "MODULE_NAME", "NUM_CPUS", "NUM_GPUS"),
        *("NETWORK_INTERFACE_NAME", "NUM_NEURONS", "OUTPUT_DATA_DIR", "OUTPUT_DIR", "OUTPUT_INTERMEDIATE_DIR"),
        *("RESOURCE_CONFIG", "USER_ENTRY_POINT"),
    )
    distributed = _distribution_hosts(container, plain["SM_DISTRIBUTION_INSTANCE_GROUPS"])
    master = (distributed or container.hosts)[0]
    return {
        **{name.lower(): plain[f"SM_{name}"] for name in same},
        "additional_framework_parameters": plain["SM_FRAMEWORK_PARAMS"],
        "channel_input_dirs": {name: str(container.channel(name)) for name in container.inputs},
        "distribution_hosts": distributed,
        "framework_module": None,
        "hyperparameters": plain["SM_HPS"],
        "is_master": container.host == master,
        "is_modelparallel_enabled": None,
        "is_smddpmprun_installed": False,
        "is_smddprun_installed": False,
        "job_name": os.environ.get("TRAINING_JOB_NAME"),
        "master_hostname": master,
        "topology": container.resources.get("topology") or [],
    }


def _distribution_hosts(container: Container, groups: Sequence[str]) -> list[str]:
    """Return the hosts of the groups that train together; all hosts where the configuration knows no groups."""
    known = container.resources.get("instance_groups") or []
    if not known:
        return container.hosts
    return [host for group in known if group["instance_group_name"] in groups for host in group["hosts"]]


def _is_reserved(name: str) -> bool:
    return name.startswith(RESERVED) or name in OTHERS_RESERVED


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, dict | list | bool | float):
        return json.dumps(value, sort_keys=True, separators=(",", ":"))
    return str(value)


def script_arguments(container: Container) -> list[str]:
    """Return the hyperparameters as command-line arguments: `--name value`, or `-n value` for a name of one letter."""
    words = []
    for name, value in sorted(container.hyperparameters.items()):
        if not _is_reserved(name):
            words += [f"-{name}" if len(name) == 1 else f"--{name}", _argument(value)]
    return words


def train_arguments(container: Container) -> list[str]:
    """Return the hyperparameters as options of `headrace train`: `batch_size` is `batch-size`.

    Raises `HeadraceError` where both are there and differ.
    """
    found: dict[str, Any] = {}
    for name, value in container.hyperparameters.items():
        option = name if _is_reserved(name) else name.replace("_", "-")
        if found.setdefault(option, value) != value:
            raise HeadraceError(
                f"the hyperparameters {option} and {option.replace('-', '_')} are one option, and have two values",
                hint="leave one out",
            )
    return script_arguments(replace(container, hyperparameters=found))


def _argument(value: Any) -> str:
    """Return a value as the toolkit passes it: `a=1,b=2` for an object."""
    if isinstance(value, dict):
        return ",".join(f"{key}={inner}" for key, inner in value.items())
    return "" if value is None else str(value)
