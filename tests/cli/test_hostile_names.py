"""Names that hold escape sequences, control characters or bytes that are not UTF-8 act on no terminal and break no JSON."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import shlex
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from headrace.cli.main import main
from headrace.cli.shared import output
from sample_images import jpeg

HOSTILE = ["\x1b[2J", "\r", "\x9b31m", "\u202e", "\nerror: forged"]
ACTIVE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
CONFIGURATION = ["--model", "resnet18", "--device", "cpu", "--batch-size", "2", "--image-size", "32", "--epochs", "1"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An image folder with such names: classes, images, an image that is none, and one of an ending that is left out."""
    root = tmp_path / "images\x1b[2J"
    for number, hostile in enumerate(HOSTILE):
        inside = root / f"class{hostile}"
        inside.mkdir(parents=True)
        for name in ("a", "b"):
            (inside / f"{name}{hostile}.jpg").write_bytes(jpeg(40, 30, number))
        (inside / f"bad{hostile}.jpg").write_bytes(b"no image")
        (inside / f"left{hostile}.gif").write_bytes(b"GIF89a")
    raw = os.fsencode(root) + b"/caf\xe9"
    os.mkdir(raw)  # noqa: PTH102 (a path of bytes)
    with open(raw + b"/\xff.jpg", "wb") as file:
        file.write(jpeg(40, 30))
    return root


def run(*words: str | Path) -> tuple[str, str]:
    command = [sys.executable, "-m", "headrace", *map(str, words)]
    done = subprocess.run(command, capture_output=True, timeout=200, check=False, env=os.environ | {"OMP_NUM_THREADS": "1"})
    return done.stdout.decode(), done.stderr.decode()  # strict: valid UTF-8


def check(*words: str | Path) -> None:
    for text in run(*words):
        assert not ACTIVE.search(text), repr(text)
        assert not any(line.startswith("error: forged") for line in text.splitlines())
    document, _ = run(words[0], "--json", *words[1:])
    json.dumps(json.loads(document), ensure_ascii=False).encode()  # no lone surrogate


@pytest.mark.slow
def test_pack_verify_and_inspect(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out\x1b[2J"
    check("pack", folder, out)
    check("pack", folder, tmp_path / "packed", "--undecodable", "skip")
    manifest = json.loads((tmp_path / "packed" / "headrace.json").read_text())
    assert "caf%E9" in manifest["classes"]
    for line in (tmp_path / "packed" / "errors.jsonl").read_bytes().splitlines():
        json.dumps(json.loads(line), ensure_ascii=False).encode()
    (tmp_path / "packed" / "stray\x1b[2J\r\u202e").touch()
    check("verify", tmp_path / "packed")
    check("inspect", folder)
    check("inspect", tmp_path / "packed")
    check("inspect", tmp_path / "missing\x1b[2J\n")


@pytest.mark.slow
def test_dry_run_and_predict(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    check("train", "--data", folder, *CONFIGURATION, "--dry-run")
    check("predict", tmp_path / "no\x1b]0;title\x07model\u202e", folder)


def test_diagnose(tmp_path: Path) -> None:
    check("diagnose", "--out", tmp_path / "s\x1b[2J", "--", "no\x1b[2Jprogram\r")


def test_tables_and_bars_on_a_terminal() -> None:
    """Rich's own rendering, on a pseudo-terminal: its colours pass, the names' characters do not."""
    code = (
        "from headrace.cli.shared import output; from rich.table import Table\n"
        "table = Table('name'); table.add_row('a\\x1b[2J\\u202eb'); output.stdout_console.print(table)\n"
        "output.stdout_console.print('[red]c\\x9bd')\n"
        "with output.progress('e\\x1b]0;x\\x07f', 2) as bar: bar.advance(1, 'g\\x1b[3Jh')\n"
    )
    child, descriptor = pty.fork()
    if child == 0:
        os.environ.update(TERM="xterm", COLUMNS="100")
        os.execv(sys.executable, [sys.executable, "-c", code])
    written = b""
    try:
        while piece := os.read(descriptor, 4096):
            written += piece
    except OSError:  # the end of a pseudo-terminal
        pass
    os.waitpid(child, 0)
    text = written.decode()
    assert "\\x1b[2J" in text and "\\u202e" in text and "\\x1b[3J" in text and "c\\x9bd" in text
    assert not {"\x1b[2J", "\x1b[3J", "\u202e", "\x9b", "\x1b]0;"} & {
        text[at : at + n] for at in range(len(text)) for n in (1, 4)
    }


def test_json_has_no_active_characters(capsys: pytest.CaptureFixture[str]) -> None:
    """Some acted on the terminal: JSON escapes only those below the space."""
    document = {f"key{hostile}": f"\x7f{hostile}é" for hostile in HOSTILE}
    output.write_document(document)
    printed = capsys.readouterr().out
    assert not ACTIVE.search(printed)
    assert json.loads(printed) == document
    assert "é" in printed


def test_messages_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    output.log("a\x1b[2J\nb")
    output.say("c\r\nd")
    captured = capsys.readouterr()
    assert (captured.err, captured.out) == ("a\\x1b[2J\\nb\n", "c\\r\\nd\n")


def test_options_file_keeps_names_that_are_not_utf8(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from headrace.training.settings import options_file
    from headrace.training.settings.options import Options

    for data in ("/d/caf\udce9/50%E9", "/d/50%E9", "/d/ü"):
        options = Options(model="resnet18", data=data, out="run")
        options_file.write(options, tmp_path / "config.toml")
        assert options_file.read(tmp_path / "config.toml", list(options_file.flatten(options)))["data"] == data


@pytest.mark.parametrize("ends", [("jpg", "png"), ("JPG", "png"), ("jpg", "JPG")])
def test_keys_of_a_tar_are_escaped_once(tmp_path: Path, ends: tuple[str, str]) -> None:
    """A tar packs to the keys that docs/reference/format.md states, whether its members share a stem or only look like it."""
    from headrace.datasets.open import open as open_dataset

    names = [f"a/x.{ends[0]}", f"a/x.{ends[1]}", "a/y=jpg.jpg", "b.1/z.jpg", "b.1/100%.jpg"]
    with tarfile.open(tmp_path / "in.tar", "w") as archive:
        for number, name in enumerate(names):
            data = jpeg(40, 30, number)
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    assert main(["pack", str(tmp_path / "in.tar"), str(tmp_path / "out")]) == 0
    expected = [f"a/x={ends[0]}", f"a/x={ends[1]}", "a/y%3Djpg", "b%2E1/z", "b%2E1/100%25"]
    assert list(open_dataset(tmp_path / "out").table.keys) == expected


@pytest.mark.slow
def test_commands_to_copy_are_quoted_and_lines_about_loaders_are_one_line(tmp_path: Path) -> None:
    photos = tmp_path / "two words\nand a line" / "photos"
    for number in range(4):
        path = photos / f"c{number % 2}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(60, 50, number))
    copied, _ = run("pack", photos, tmp_path / "my copy", "--layout", "folder")
    (line,) = [line for line in copied.splitlines() if "--data-map" in line]
    words = shlex.split(line.split(":", 1)[1].replace("\\n", "\n"))
    assert words[:4] == ["headrace", "run", "--data-map", f"{photos}={tmp_path / 'my copy'}"]
    pytest.importorskip("torchvision")
    script = "import sys\nfrom torch.utils.data import DataLoader\nfrom torchvision.datasets import ImageFolder\n"
    script += "from torchvision import transforms as T\nchain = T.Compose([T.Resize((8, 8)), T.ToTensor()])\n"
    script += "list(DataLoader(ImageFolder(sys.argv[1], chain)))"
    _, remarks = run("run", "--", sys.executable, "-c", script, photos)
    assert [line for line in remarks.splitlines() if "loader over" in line and "line/photos" in line], remarks
