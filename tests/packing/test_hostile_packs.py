"""Packed datasets that others made: no name of theirs gets into an archive that this user makes, where it could lead out."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import headrace
import numpy as np
import pytest
from headrace.cli.main import main
from headrace.datasets.records.keys import Keys
from headrace.datasets.records.packed_keys import wrong_key
from headrace.datasets.records.sidecar_files import SidecarFiles
from headrace.datasets.shards.index import read_columns, serialized
from headrace.datasets.shards.manifest import INDEX, MANIFEST
from headrace.errors import FormatError


@pytest.fixture
def hostile(image_folder: Callable[..., Path], tmp_path: Path) -> Callable[..., Path]:
    """Return a packed dataset of four images whose index has other columns; its digest is right."""
    headrace.pack(image_folder(classes=2, per_class=2), tmp_path / "packed")

    def make(**columns: Any) -> Path:
        folder = tmp_path / "packed"
        data = serialized(dataclasses.replace(read_columns(folder / INDEX), **columns))
        document = json.loads((folder / MANIFEST).read_text())
        document["index"] |= {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        (folder / INDEX).write_bytes(data)
        (folder / MANIFEST).write_text(json.dumps(document))
        return folder

    return make


@pytest.mark.parametrize("key", ["../../x", "/etc/x", "a/..", "a\x1b[2J", "a\nb", "a\\b", "a.b", "", ".."])
def test_keys_that_no_packing_makes_are_not_packed_again(
    key: str, hostile: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = Keys.of(["a/0", "a/1", key, "b/1"])
    folder = hostile(keys=keys.blob, key_start=keys.start)
    with pytest.raises(FormatError, match="which is no name of a member"):
        headrace.pack(folder, tmp_path / "again")
    assert not list(tmp_path.glob("again/*.tar"))
    assert main(["verify", str(folder)]) == 1
    printed = capsys.readouterr()
    assert "no name of a member" in printed.out + printed.err and "\x1b" not in printed.out + printed.err


@pytest.mark.parametrize("name", ["../../x", "a/b", "a\x1b[2J", "a\\b"])
def test_sidecar_files_whose_names_lead_out_are_refused(name: str, hostile: Callable[..., Path], tmp_path: Path) -> None:
    rows = np.zeros(4, dtype=np.int64)
    folder = hostile(sidecars=SidecarFiles(np.arange(5, dtype=np.int64), rows + 512, rows + 5, rows, (name,)))
    with pytest.raises(FormatError, match="no ending of a member's name"):
        headrace.pack(folder, tmp_path / "again")


def test_keys_that_packing_makes_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["%2E%2E/cat/a", "a/b=jpg", "a/c=", "längs/ö", "a b", "caf%E9", "a//b", "~/x"] * 3
    assert wrong_key(Keys.of(names)) is None and wrong_key(Keys.of([])) is None
    for at in range(len(names)):
        for wrong in ("", "/a", "a.b", "\0"):
            assert wrong_key(Keys.of([*names[:at], wrong, *names[at:]])) == at
