"""The same SageMaker job, from the estimator of a notebook, with its script started under headrace.

from headrace.launch import under

estimator = under(PyTorch(entry_point="train.py", source_dir="project", …), "run")
estimator.fit({"training": "s3://bucket/train"})
"""

from __future__ import annotations

import platform
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, cast, get_args

from headrace.errors import UsageError
from headrace.launch.own_code.source import ENTRY, LEFT_OUT, MOST_BYTES, Source, Under
from headrace.launch.own_code.travelling import needed_glibc, stage, temporary_folder
from headrace.launch.sagemaker.image_table import Framework
from headrace.launch.sagemaker.images import check_image, check_processor, check_versions
from headrace.system.text.sizes import size_text

__all__ = ["under"]

Estimator = TypeVar("Estimator")

_OF_RECIPES = ("training_recipe_file", "is_nova_or_eval_recipe", "is_llmft_recipe", "_temp_recipe_train_dir", "_is_nova_recipe",
               "_is_llmft_recipe")  # fmt: skip
"""Attributes of estimators of SDK 2 (2.257) and trainers of both SDKs (3.27) that are set where a recipe made them."""

_VERSIONS = ("framework_version", "pytorch_version", "transformers_version", "py_version")
"""Attributes of estimators of SDK 2 that name an image."""

_PLAIN = "_headrace_plain"
"""Attribute of an estimator: fields that `under` has set, with their values before and since."""


def under(estimator: Estimator, how: Under = "run") -> Estimator:
    """Let a SageMaker job run its script under headrace, and return the estimator: `fit()` or `train()` then starts that job.

    estimator: of SageMaker's SDK 2 (`PyTorch(…)` and other framework estimators, or its `ModelTrainer`), or a `ModelTrainer` of
    SDK 3. how: "run" loads the images with headrace; "diagnose" writes session and report to the job's output; "plain" undoes
    it. Only where the code comes from changes: a copy of the source (without `.git`, `.env` and caches), with an entry file and
    headrace, which needs no package index in the container. The copy is made now: after an edit of the source, call `under`
    again. It lives as long as this process, for copies of the estimator too.

    Raises `UsageError` for what headrace cannot start: SageMaker's own data-parallel library, training recipes, sources in git,
    S3 or archives, pipeline variables, TensorFlow under "run", and images without the Python or torch that headrace needs.

        estimator = PyTorch(entry_point="train.py", source_dir="project", framework_version="2.8.0", py_version="py312", …)
        under(estimator, "run").fit({"training": "s3://bucket/train"})
    """
    if how not in get_args(Under):
        raise UsageError(f"under(…, {how!r}): {', '.join(map(repr, get_args(Under)))} are known")
    kind = _kind(estimator)
    _restore(estimator)
    if how != "plain":
        kind(estimator, how)
    return estimator


def _kind(estimator: Any) -> Any:
    """Return the function that changes estimators of this kind."""
    names = {f"{kind.__module__}.{kind.__qualname__}" for kind in type(estimator).__mro__}
    if "sagemaker.estimator.Framework" in names:
        return _framework
    if names & {"sagemaker.modules.train.model_trainer.ModelTrainer", "sagemaker.train.model_trainer.ModelTrainer"}:
        return _model_trainer
    found = f"{type(estimator).__module__}.{type(estimator).__qualname__}"
    raise UsageError(f"under: {found} is not supported", hint="PyTorch(…, image_uri=…) and ModelTrainer are")


def _restore(estimator: Any) -> None:
    """Undo what `under` has changed. A field that somebody has changed since keeps its new value."""
    for name, (before, ours) in vars(estimator).pop(_PLAIN, {}).items():
        if getattr(estimator, name) == ours:
            setattr(estimator, name, before)


def _change(estimator: Any, **fields: Any) -> None:
    """Set fields of an estimator, and remember what they were and what they are now."""
    vars(estimator)[_PLAIN] = {name: (getattr(estimator, name), value) for name, value in fields.items()}
    for name, value in fields.items():
        setattr(estimator, name, value)


def _framework(estimator: Any, how: Under) -> None:
    """Change an estimator of SDK 2: its folder and its entry point."""
    folder, entry = estimator.source_dir, estimator.entry_point
    _refuse_variables(source_dir=folder, entry_point=entry, image_uri=estimator.image_uri)
    if getattr(estimator, "git_config", None):
        raise UsageError("under: the source comes from git", hint="clone it, and give the folder as source_dir")
    _refuse_recipes(estimator)
    distribution = getattr(estimator, "distribution", None) or {}
    if isinstance(distribution, Mapping) and "smdistributed" in distribution:
        raise UsageError(
            "under: SageMaker's own data-parallel library starts the script by a launcher of its own",
            hint='distribution={"torch_distributed": {"enabled": True}} starts it by torchrun',
        )
    if not entry:
        raise UsageError("under: the estimator has no entry_point")
    source = _source(folder, entry, how)
    _check_framework(estimator, how)
    _change(estimator, source_dir=_staged(source), entry_point=source.program)


def _check_framework(estimator: Any, how: Under) -> None:
    """Raise `UsageError` where headrace cannot run in the estimator's image."""
    name = str(getattr(estimator, "_framework_name", ""))
    versions = {key: str(getattr(estimator, key, "") or "") for key in _VERSIONS}
    torch = versions["pytorch_version"] if name == "huggingface" else versions["framework_version"]
    if how == "run" and (name not in ("", "pytorch", "huggingface") or (name == "huggingface" and not torch)):
        raise UsageError(f'under: "run" is for PyTorch, not for {name}', hint='under(…, "diagnose") measures such a job')
    instances = _instances(estimator)
    if isinstance(estimator.image_uri, str):
        _check(estimator.image_uri, instances, how)
        return
    check_processor(instances, platform.machine())
    if name in get_args(Framework) and torch:
        check_versions(
            cast(Framework, name),
            torch,
            versions["py_version"],
            glibc=needed_glibc(),
            needs=how,
            transformers=versions["transformers_version"],
        )


def _instances(holder: Any) -> list[str]:
    """Return the instance types of an estimator or a trainer's compute, of all its groups."""
    groups = [holder, *(getattr(holder, "instance_groups", None) or ())]
    return [one.instance_type for one in groups if isinstance(getattr(one, "instance_type", None), str)]


def _model_trainer(trainer: Any, how: Under) -> None:
    """Change a `ModelTrainer` of either SDK: its source code."""
    code = trainer.source_code
    if code is None or not (code.entry_script or code.command):
        raise UsageError("under: the trainer has no script of yours", hint="SourceCode(source_dir=…, entry_script=…)")
    _refuse_variables(
        source_dir=code.source_dir, entry_script=code.entry_script, command=code.command, image=trainer.training_image
    )
    _refuse_recipes(trainer)
    if isinstance(trainer.training_image, str):
        _check(trainer.training_image, _instances(trainer.compute), how)
    patterns = frozenset(getattr(code, "ignore_patterns", None) or ())
    changed: dict[str, Any] = {}
    if hasattr(code, "ignore_patterns"):
        changed["ignore_patterns"] = None  # the copy is filtered: they would take files of headrace
    if code.command:
        source = replace(_folder_source(code.source_dir, how), command=code.command, left_out=patterns)
        source.check()
        changed["command"] = f"python {ENTRY}"
    else:
        source = replace(_source(code.source_dir, code.entry_script, how), left_out=patterns)
        changed["entry_script"] = source.program
    changed["source_dir"] = _staged(source)
    _change(trainer, source_code=code.model_copy(update=changed))


def _check(uri: str, instances: list[str], how: Under) -> None:
    remark = check_image(uri, instances, glibc=needed_glibc(), machine=platform.machine(), needs=how)
    if remark is not None:
        warnings.warn(f"under: {remark}", stacklevel=5)


def _refuse_recipes(estimator: Any) -> None:
    if any(getattr(estimator, name, None) for name in _OF_RECIPES):
        raise UsageError("under: a training recipe brings its own script")


def _refuse_variables(**values: Any) -> None:
    for name, value in values.items():
        if value is not None and not isinstance(value, str):
            raise UsageError(f"under: {name} is a {type(value).__name__}, which is known only when a pipeline runs")


def _source(folder: str | None, entry: str, how: Under) -> Source:
    """Return the source that an estimator names by a folder and an entry, or by a file alone."""
    if folder is None:
        if not Path(entry).is_file():
            raise UsageError(f"under: there is no file {entry}")
        return Source.of_file(Path(entry), how)
    source = replace(_folder_source(folder, how), entry=entry)
    source.check()
    return source


def _folder_source(folder: str | None, how: Under) -> Source:
    if folder is None:
        raise UsageError("under: a command needs a source_dir, in which headrace can travel")
    if folder.startswith(("s3://", "http://", "https://")) or folder.endswith((".tar.gz", ".tgz")):
        raise UsageError(
            f"under: the source is {folder}", hint="headrace travels with a folder of this machine: unpack it here"
        )
    if not Path(folder).is_dir():
        raise UsageError(f"under: there is no folder {folder}")
    return Source(Path(folder), "", how, left_out=LEFT_OUT, follows_links=True)  # links travel with the SDKs too


def _staged(source: Source) -> str:
    """Return the path of a folder with what travels, which lasts as long as this process."""
    if (size := source.contents.size_bytes) > MOST_BYTES:
        raise UsageError(f"under: the source has {size_text(size)}", hint="data do not travel with the code: use a channel")
    stage(source, folder := temporary_folder())
    return str(folder)
