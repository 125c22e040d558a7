"""The surface that others' scripts rely on: flags, fields of `--json`, public names and their arguments, errors.

`collect(repository)` describes the tree that is imported. tests/golden/contract.json is what it found before the
package was laid out in folders. To record it anew, when the contract is meant to change:

    python tests/helpers/contract.py > tests/golden/contract.json
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import inspect
import io
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

JOB = """
import time, torch
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

if __name__ == "__main__":
    crop = transforms.Compose([transforms.RandomResizedCrop(32), transforms.ToTensor()])
    data = datasets.ImageFolder("images", crop)
    model = torch.nn.Linear(3 * 32 * 32, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        for images, labels in DataLoader(torch.utils.data.ConcatDataset([data] * 8), batch_size=4):
            optimizer.zero_grad()
            model(images.flatten(1)).sum().backward()
            optimizer.step()
            time.sleep(0.005)
"""
TRAIN = ["--model", "resnet20", "--image-size", "32", "--batch-size", "4", "--device", "cpu", "--epochs", "1", "--threads", "1"]


def plain(value: Any) -> Any:
    """A default as JSON; what is not a plain value, or depends on the machine, becomes None."""
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    return value if isinstance(value, (str, int, float, bool)) and "/" not in str(value) else None


@functools.cache
def verbs() -> dict[str, Any]:
    """Every verb with its options and positional arguments."""
    found: dict[str, Any] = {}
    for verb, name in importlib.import_module("headrace.cli.main").VERBS.items():
        module = importlib.import_module(name)
        parser = argparse.ArgumentParser()
        module.add_arguments(parser)
        found[verb] = {
            "takes_command": getattr(module, "TAKES_COMMAND", False),
            "arguments": [
                {
                    "names": action.option_strings or [action.dest],
                    "nargs": action.nargs,
                    "choices": None if action.choices is None else sorted(map(str, action.choices)),
                    "default": plain(action.default),
                    "required": action.required,
                }
                for action in parser._actions
                if "--help" not in action.option_strings
            ],
        }
    return found


def signature(function: Any) -> list[dict[str, Any]] | None:
    """The arguments of a function or class, in order; None for what has no signature."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    empty = inspect.Parameter.empty
    return [
        {"name": one.name, "kind": one.kind.name, "required": one.default is empty, "default": plain(one.default)}
        for one in parameters
        if one.name != "self"
    ]


@functools.cache
def names() -> dict[str, Any]:
    """The public names of the package and of its transforms, with the arguments of what can be called."""
    found: dict[str, Any] = {}
    for module_name in ("headrace", "headrace.transforms"):
        module = importlib.import_module(module_name)
        for name in module.__all__:
            value = getattr(module, name)
            found[f"{module_name}.{name}"] = signature(value) if callable(value) else None
            for member in vars(value) if inspect.isclass(value) and module_name == "headrace" else ():
                if not member.startswith("_") and callable(getattr(value, member)):
                    found[f"{module_name}.{name}.{member}"] = signature(getattr(value, member))
    found["headrace.packing.PackOptions"] = signature(importlib.import_module("headrace.packing").PackOptions)
    return found


def errors() -> dict[str, list[str]]:
    """Every error with the classes that it can be caught as."""
    module = importlib.import_module("headrace.errors")
    classes = {name: value for name, value in vars(module).items() if inspect.isclass(value) and issubclass(value, Exception)}
    return {name: [base.__name__ for base in value.__mro__[1:-2]] for name, value in classes.items()}


def fields(value: Any, at: str = "") -> Iterator[str]:
    """The paths of all fields of a JSON document: `findings[].fixes[].id`."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield f"{at}.{key}".lstrip(".")
            yield from fields(inner, f"{at}.{key}".lstrip("."))
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from fields(inner, f"{at}[]")


def document_of(words: list[str]) -> Any:
    """The JSON document of one command line."""
    main = importlib.import_module("headrace.cli.main").main
    printed, remarks = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(remarks):
        code = main(words)
    if code:
        raise RuntimeError(f"headrace {' '.join(words)} ended with {code}:\n{remarks.getvalue()}{printed.getvalue()}")
    return json.loads(printed.getvalue())


def images(folder: Path) -> None:
    """Make an image folder of two classes with eight small images each."""
    import numpy as np
    from PIL import Image

    draw = np.random.default_rng(0)
    for number in range(16):
        path = folder / f"class_{number % 2}" / f"{number:02d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = draw.integers(0, 255, (6, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize((80, 60), Image.Resampling.BICUBIC).save(path, quality=90)


def documents() -> dict[str, list[str]]:
    """The fields of the `--json` documents of every verb, from small runs in the working folder."""
    images(Path("images"))
    Path("job.py").write_text(JOB)
    job = ["--", sys.executable, "job.py"]
    commands = {
        "doctor": ["doctor", "--json"],
        "pack": ["pack", "images", "packed", "--json"],
        "inspect": ["inspect", "packed", "--json"],
        "verify": ["verify", "packed", "--json"],
        "diagnose": ["diagnose", "--out", "session", "--json", *job],
        "report": ["report", "session", "--json"],
        "compare": ["compare", "session", "session", "--json"],
        "run": ["run", "--json", *job],
        "train": ["train", "--data", "packed", "--val", "packed", "--out", "run", *TRAIN, "--json"],
        "evaluate": ["evaluate", "run", "--data", "packed", "--per-class", "--json"],
        "predict": ["predict", "run", "images", "--json"],
        "export": ["export", "run", "--format", "safetensors", "--out", "out.safetensors", "--json"],
        "cost": ["cost", "--model", "resnet50", "--images", "1000", "--bytes", "1e8", "--input-mode", "auto", "--json"],
        "train --dry-run": ["train", "--data", "packed", "--out", "dry", *TRAIN, "--dry-run", "--json"],
    }
    found = {name: sorted(set(fields(document_of(words)))) for name, words in commands.items()}
    found["doctor"] = [path for path in found["doctor"] if not path.startswith("software.packages.")]  # what is installed
    return found


def loader() -> dict[str, Any]:
    """Fields of a loader's state and statistics, and its public attributes."""
    import headrace

    with headrace.Loader(
        "packed", 4, headrace.transforms.imagenet_train(32), output="numpy", threads=1, on_error="skip"
    ) as found:
        for _ in found:
            pass
        stats = found.stats()
        return {
            "state": sorted(set(fields(found.state_dict()))),
            "stats": sorted(name for name in dir(stats) if not name.startswith("_")),
            "attributes": sorted(name for name in dir(found) if not name.startswith("_")),
            "dataset": sorted(name for name in dir(found.dataset) if not name.startswith("_")),
        }


def schema(path: Path) -> list[str]:
    """The properties of the published schema of a diagnosis, by definition."""
    document = json.loads(path.read_text(encoding="utf-8"))
    found = [f"diagnosis.{name}" for name in document["properties"]]
    for definition, inner in document["$defs"].items():
        found += [f"{definition}.{name}" for name in inner.get("properties", ())]
    return sorted(found)


def collect(repository: Path) -> dict[str, Any]:
    """Everything, from the tree that is imported; runs happen in the working folder."""
    return {
        "verbs": verbs(),
        "names": names(),
        "errors": errors(),
        "schema": schema(repository / "docs" / "reference" / "diagnosis.schema.json"),
        "documents": documents(),
        "loader": loader(),
    }


if __name__ == "__main__":
    where = Path(importlib.import_module("headrace").__file__ or "").resolve().parents[2]
    with tempfile.TemporaryDirectory() as scratch, contextlib.chdir(scratch):
        recorded = collect(where)
    json.dump(recorded, sys.stdout, indent=1, sort_keys=True)
    print()
