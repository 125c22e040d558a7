"""`headrace run --data-map A=B`: which files are read from the copy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from headrace.accelerate.runtime import data_map
from headrace.cli.main import main
from PIL import Image

pytest.importorskip("torchvision")

SCRIPT = """
import io, os, pathlib, sys
import torch, torchvision
from PIL import Image
root = sys.argv[1]
class Colours(torch.utils.data.Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, at):
        path = os.path.join(root, "a", f"{at}.png")
        if at == 0:
            return Image.open(path).getpixel((0, 0))[0]
        if at == 1:
            return Image.open(pathlib.Path(path)).getpixel((0, 0))[0]
        if at == 2:
            return Image.open(io.BytesIO(pathlib.Path(path).read_bytes())).getpixel((0, 0))[0]
        return int(torchvision.io.read_image(os.path.relpath(path))[0, 0, 0])
if __name__ == "__main__":
    for method in ("fork", "spawn"):
        loader = torch.utils.data.DataLoader(Colours(), batch_size=4, num_workers=1, multiprocessing_context=method)
        print("workers", next(iter(loader)).tolist())
    print("main", next(iter(torch.utils.data.DataLoader(Colours(), batch_size=4))).tolist())
    print("only in A", open(os.path.join(root, "note.txt")).read(), "outside", open(sys.argv[2]).read())
    with open(os.path.join(root, "a", "new.txt"), "w") as file:
        file.write("x")
    with open(os.path.join(root, "a", "new.txt"), "a+") as file:
        file.write("y")
    print("listing", sorted(os.listdir(os.path.join(root, "a"))))
    folder = torchvision.datasets.ImageFolder(root, torchvision.transforms.ToTensor(), is_valid_file=lambda p: "png" in p)
    print("folder", round(float(folder[0][0][0, 0, 0]) * 255))
"""


@pytest.fixture
def trees(tmp_path: Path) -> tuple[Path, Path]:
    source, copy = tmp_path / "data", tmp_path / "fast"
    for root, value in ((source, 10), (copy, 200)):
        (root / "a").mkdir(parents=True)
        for at in range(4):
            Image.new("RGB", (8, 8), (value, 0, 0)).save(root / "a" / f"{at}.png")
    (source / "note.txt").write_text("here")
    return source, copy


@pytest.mark.slow
def test_reading_goes_to_the_copy_and_writing_does_not(trees: tuple[Path, Path], tmp_path: Path) -> None:
    source, copy = trees
    (tmp_path / "script.py").write_text(SCRIPT)
    beside = tmp_path / "data-beside"  # begins with the same letters
    beside.write_text("elsewhere")
    command = [sys.executable, "-m", "headrace", "run", "--data-map", f"{source}={copy}", "--"]
    done = subprocess.run(
        [*command, sys.executable, "script.py", str(source), str(beside)],
        cwd=tmp_path, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:3] == ["workers [200, 200, 200, 200]"] * 2 + ["main [200, 200, 200, 200]"]
    assert lines[3] == "only in A here outside elsewhere"
    assert "new.txt" in lines[4]
    assert lines[5] == "folder 200"
    assert (source / "a" / "new.txt").read_text() == "xy"
    assert not (copy / "a" / "new.txt").exists()
    assert "no record of a copy" in done.stderr


def test_a_copy_says_whether_its_pixels_differ(tmp_path: Path, image_folder, capfd: pytest.CaptureFixture[str]) -> None:  # type: ignore[no-untyped-def]
    source = image_folder(classes=1, per_class=3)
    for name, options, words in (
        ("marked", [], "the same pixels"),
        ("reduced", ["--short-side", "16"], "3 JPEGs reduced, so other pixels"),
    ):
        assert main(["pack", str(source), str(tmp_path / name), "--layout", "folder", *options]) == 0
        assert main(["run", "--data-map", f"{source}={tmp_path / name}", "--", sys.executable, "-c", "pass"]) == 0
        assert words in capfd.readouterr().err
    record = tmp_path / "marked" / "headrace-folder.jsonl"
    record.write_text(record.read_text().replace('"complete":true', '"complete":false'))
    assert main(["run", "--data-map", f"{source}={tmp_path / 'marked'}", "--", sys.executable, "-c", "pass"]) == 2
    assert "unfinished" in capfd.readouterr().err


@pytest.mark.parametrize("text", ["nothing", "=", "a=", "/no/such=/tmp", "/tmp=/no/such"])
def test_a_pair_that_is_none_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--data-map", text, "--", "true"]) == 2
    assert "--data-map" in capsys.readouterr().err


def test_paths_are_compared_by_folders(trees: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    source, copy = trees
    monkeypatch.setattr(
        data_map,
        "_pairs",
        [(f"{a}/", f"{b}/") for a, b in json.loads(next(iter(data_map.variables([(str(source), str(copy))]).values())))],
    )
    inside = str(source / "a" / "0.png")
    assert data_map.mapped(inside) == str(copy / "a" / "0.png")
    assert data_map.mapped(str(source / "note.txt")) == str(source / "note.txt")
    assert data_map.mapped(f"{source}-more/a/0.png") == f"{source}-more/a/0.png"
    monkeypatch.chdir(source)
    assert data_map.mapped("a/0.png") == str(copy / "a" / "0.png")
    assert data_map.mapped(os.curdir) == os.curdir


def test_a_path_that_leaves_the_tree_is_not_mapped(trees: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    source, copy = trees
    monkeypatch.setattr(data_map, "_pairs", [(f"{source}/", f"{copy}/")])
    (copy.parent / "note.txt").write_text("beside the copy")
    for path in (f"{source}/../note.txt", f"{source}/a/../../note.txt"):
        assert data_map.mapped(path) == path
    assert data_map.mapped(f"{source}/a/../a/0.png") == str(copy / "a" / "0.png")
    (source / "link").symlink_to(copy.parent)  # the way back is not the one that the letters name
    assert data_map.mapped(f"{source}/link/../0.png") == f"{source}/link/../0.png"
    monkeypatch.chdir(source / "a")
    assert data_map.mapped("../a/0.png") == str(copy / "a" / "0.png")
    assert data_map.mapped("../../note.txt") == "../../note.txt"
    assert data_map.mapped(str(source / "a" / "v1..2.png")) == str(source / "a" / "v1..2.png")
