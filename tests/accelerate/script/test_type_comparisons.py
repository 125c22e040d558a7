"""Scripts that compare `type(tensor)` are found by the text of their own modules."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest
from headrace.accelerate.script import library_code, type_comparisons
from headrace.accelerate.script import text as script_text
from headrace.accelerate.script.type_comparisons import compares_tensor_types

FOUND = [
    "def f(x):\n    return type(x) is torch.Tensor\n",
    "if type(batch[0]) == torch.Tensor: pass\n",
    "ok = type(x[0]) in (list, torch.Tensor)\n",
    "ok = type(x) is not tv_tensors.Image\n",
]
NOT_FOUND = ["ok = isinstance(x, torch.Tensor)\n", "ok = type(x) is list\n", "kind = type(x)\n", "y = torch.Tensor(type(x))\n"]


@pytest.mark.parametrize("text", [*FOUND, *NOT_FOUND])
def test_comparisons_are_found(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type_comparisons, "module_with", script_text.module_with)
    for name, empty in (("_known", set(sys.modules)), ("_own", {}), ("_without", {})):
        monkeypatch.setattr(script_text, name, empty)
    (tmp_path / "own_script_part.py").write_text(
        "x = batch = torch = tv_tensors = None\ndef g():\n    " + text.replace("\n", "\n    ")
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        importlib.import_module("own_script_part")
        assert compares_tensor_types() == ("own_script_part" if text in FOUND else None)
    finally:
        sys.modules.pop("own_script_part", None)


def test_installed_packages_and_headrace_are_not_searched() -> None:
    import torch

    assert all(library_code.is_installed(str(path)) for path in (torch.__file__, script_text.__file__, json.__file__))
