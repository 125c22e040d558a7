"""A script's own files are told from those of libraries."""

from __future__ import annotations

import os

import headrace.attach.sampler
import pytest
import torch
from headrace.attach.record.script_files import library_path


@pytest.mark.parametrize(
    "file, path",
    [
        ("/home/me/train.py", None),
        ("/home/me/lib/python3.y/train.py", None),
        ("<stdin>", None),
        ("<string>", None),
        ("<ipython-input-3-abc>", None),
        ("/tmp/ipykernel_77/123.py", None),
        ("<frozen importlib._bootstrap>", ""),
        ("<__array_function__ internals>", ""),
        (headrace.attach.sampler.__file__, ""),
        (os.__file__, "os.py"),
        (torch.__file__, "torch/__init__.py"),
        ("/usr/lib/python3/dist-packages/six.py", "six.py"),
        ("/opt/conda/lib/python3.12/json/decoder.py", "json/decoder.py"),
        ("/a/lib/python3.11/site-packages/timm/data/loader.py", "timm/data/loader.py"),
    ],
)
def test_a_file_is_the_scripts_or_a_path_in_a_library(file: str, path: str | None) -> None:
    assert library_path(file) == path
