"""Checkpoints in an object store: uploaded, compared, and resumed from when the disk is lost."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from headrace.cli.main import main
from headrace.datasets.sources.remote.store import open_bucket
from headrace.errors import HeadraceError, SourceError, StateError, UsageError
from headrace.training import loop as trainer
from headrace.training.loop import Options, TrainingProgress, train
from headrace.training.settings.optimization import OptimizationOptions
from headrace.training.weights import checkpoint, uploads
from headrace.training.weights.uploads import Uploads, load_remote_checkpoint, remote_names
from noise import noise_folder
from real_stores import RealStore, missing, running

HELPERS = Path(__file__).parents[2] / "helpers"

TENSORS = {"a": torch.arange(100, dtype=torch.float32)}
COUNT = iter(range(1000))


@pytest.fixture(scope="module")
def server() -> Iterator[RealStore]:
    if reason := missing("moto"):
        pytest.skip(reason)
    with running("moto") as started:
        started.upload("runs", "", [])
        yield started


@pytest.fixture
def url(server: RealStore, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty prefix of the store."""
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    return f"s3://runs/number-{next(COUNT)}"


def change(url: str, path: str, data: bytes | None) -> None:
    """Change the store as a person, a lifecycle rule or a fault would."""
    bucket = open_bucket(url)
    bucket.delete(path) if data is None else bucket.write(path, data)


def saved(folder: Path, step: int) -> Path:
    return checkpoint.save(folder, step, TENSORS, {"step": step}, keep=9)


def test_uploads_are_read_back_and_only_the_newest_are_kept(url: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(uploads, "PIECE_BYTES", 100)  # several pieces
    sender = Uploads(url, keep=2)
    for step in (1, 2, 10):
        sender.submit(saved(tmp_path, step))
        sender.close()
        assert sender.last == f"{url}/step-{step:09d}" and not sender.held()
    assert remote_names(sender.bucket) == ["step-000000010", "step-000000002"]
    found = load_remote_checkpoint(sender.bucket, "step-000000010")
    assert found.state == {"step": 10} and torch.equal(found.tensors["a"], TENSORS["a"])
    assert found.path == f"{url}/step-000000010" and found.name == "step-000000010"


def test_a_slow_store_delays_no_write_and_gets_the_newest(url: str, tmp_path: Path, monkeypatch) -> None:
    sender = Uploads(url, keep=9)
    sending, go_on = threading.Event(), threading.Event()
    send = sender._send

    def slowly(path: Path) -> None:
        sending.set()
        assert go_on.wait(20)
        send(path)

    monkeypatch.setattr(sender, "_send", slowly)
    writer = checkpoint.Writer(tmp_path, keep=1, done=sender.submit, held=sender.held)
    for step in (1, 2, 3):
        writer.submit(step, TENSORS, {"step": step})
        writer.wait()
        assert sending.wait(20)
    assert sender.held() == {tmp_path / "step-000000001", tmp_path / "step-000000003"}
    assert (tmp_path / "step-000000001").exists()  # it is still being read
    go_on.set()
    sender.close()
    assert remote_names(sender.bucket) == ["step-000000003", "step-000000001"]


def test_a_corrupted_upload_is_repeated_and_then_raises(url: str, tmp_path: Path, monkeypatch) -> None:
    sender = Uploads(url, keep=2)
    write, sendings = sender.bucket.write, []

    def wrongly(path: str, source: Any) -> None:
        sendings.append(path)
        data = source.read_bytes()
        write(path, data[:-1] if len(sendings) <= wrong_sendings else data)

    monkeypatch.setattr(sender.bucket.__class__, "write", lambda self, path, source: wrongly(path, source))
    wrong_sendings = 1
    sender.submit(saved(tmp_path, 1))
    sender.close()
    assert [path.rpartition("/")[2] for path in sendings] == [checkpoint.TENSORS] * 2 + [checkpoint.STATE]
    wrong_sendings = 99
    sender.submit(saved(tmp_path, 2))
    with pytest.raises(
        HeadraceError, match=r"step-000000002 is whole, but is not in .*reads differently.*newest one there is step-000000001"
    ):
        sender.close()
    with pytest.raises(StateError, match=r"step-000000002 is incomplete: state\.json is missing"):
        load_remote_checkpoint(sender.bucket, "step-000000002")


def test_an_unusable_store_raises_before_training(url: str, options: Options) -> None:
    with pytest.raises(SourceError, match="no-such-bucket"):
        train(replace(options, checkpoint_url="s3://no-such-bucket/run"))
    assert not Path(options.out).exists()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return noise_folder(tmp_path_factory.mktemp("uploads"))


@pytest.fixture
def options(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Options]:
    monkeypatch.syspath_prepend(str(HELPERS))
    monkeypatch.setattr(trainer, "LOG_STEPS", 1)
    yield Options(
        model="tiny:make",
        data=str(data),
        out=str(tmp_path / "run"),
        epochs=3,
        batch_size=8,
        image_size=16,
        device="cpu",
        deterministic=True,
        threads=1,
        checkpoint_steps=2,
        optimization=OptimizationOptions(learning_rate=1.0),
    )
    torch.use_deterministic_algorithms(False)


def weights(options: Options) -> bytes:
    return (Path(options.out) / "final.safetensors").read_bytes()


def stop_at(step: int) -> Any:
    def stop(progress: TrainingProgress) -> None:
        if progress.step == step:
            os.kill(os.getpid(), signal.SIGTERM)

    return stop


def test_resume_from_the_store_skips_incomplete_and_damaged_uploads(options: Options, url: str, tmp_path: Path, capsys) -> None:
    train(options)
    stored = replace(options, out=str(tmp_path / "stored"), checkpoint_url=url, resume="auto", keep=3)
    result = train(stored, on_progress=stop_at(7))
    assert (result.exit_code, result.uploaded) == (143, f"{url}/step-000000007")  # sent before the process ends

    # the disk is lost: it goes on from the store
    shutil.rmtree(stored.out)
    remarks: list[str] = []
    result = train(replace(stored, steps=None), on_progress=lambda seen: remarks.append(seen.remark or "") or stop_at(9)(seen))
    assert result.resumed_from_step == 7
    assert f"resuming from {url}/step-000000007: this disk has no newer checkpoint" in remarks

    # the newest upload is incomplete, the one before is damaged: both are reported
    shutil.rmtree(stored.out)
    change(url, f"step-000000009/{checkpoint.STATE}", None)
    change(url, f"step-000000008/{checkpoint.TENSORS}", b"rot")
    remarks.clear()
    result = train(stored, on_progress=lambda seen: remarks.append(seen.remark or "") or None)
    assert result.resumed_from_step == 7
    assert remarks[0] == f"warning: {url}/step-000000009 is incomplete: state.json is missing"
    assert remarks[1] == f"warning: {url}/step-000000008/tensors.safetensors is damaged: its checksum does not match"
    assert remarks[2].endswith("step-000000007: the steps after it are trained again")
    assert weights(stored) == weights(options)
    left = remote_names(open_bucket(url))
    assert left[0] == "step-000000012" and load_remote_checkpoint(open_bucket(url), left[0]).state["step"] == 12
    assert len(left) <= 3


def test_resume_uses_the_upload_of_a_damaged_local_checkpoint(options: Options, url: str) -> None:
    stored = replace(options, checkpoint_url=url, resume="auto")
    train(stored, on_progress=stop_at(7))
    (Path(options.out) / "checkpoints/step-000000007" / checkpoint.TENSORS).write_bytes(b"rot")
    assert train(stored, on_progress=stop_at(8)).resumed_from_step == 7


def test_resume_takes_the_url_of_a_run_or_checkpoint_and_overwrites_none(
    options: Options, url: str, tmp_path: Path, capsys
) -> None:
    stored = replace(options, checkpoint_url=url)
    train(stored, on_progress=stop_at(5))
    with pytest.raises(UsageError, match="already holds checkpoints of a run"):
        train(replace(stored, out=str(tmp_path / "other")))
    oldest = remote_names(open_bucket(url))[-1]
    for named, step in ((url, 5), (f"{url}/{oldest}", int(oldest[-1]))):
        elsewhere = replace(options, out=str(tmp_path / f"from-{named[-1]}"), resume=named)
        assert train(elsewhere, on_progress=stop_at(6)).resumed_from_step == step
    with pytest.raises(StateError, match="holds no whole checkpoint"):
        train(replace(options, resume=f"{url}/nothing"))
    with pytest.raises(StateError, match=r"step-000000099 is incomplete: state\.json is missing"):
        train(replace(options, resume=f"{url}/step-000000099"))


def test_training_continues_without_the_store_and_fails_at_the_end(options: Options, url: str, monkeypatch) -> None:
    stored = replace(options, checkpoint_url=url, resume="auto")
    remarks: list[str] = []

    def refuse(*_: object) -> None:
        raise SourceError("the link is down", hint="mend it")

    def watch(seen: TrainingProgress) -> None:
        remarks.append(seen.remark or "")
        if seen.step == 4:
            monkeypatch.setattr(uploads, "_send_file", refuse)

    with pytest.raises(HeadraceError, match=r"step-000000012 is whole, but is not in .*: the link is down; "):
        train(stored, on_progress=watch)
    assert any("warning" in remark and "the link is down" in remark for remark in remarks)
    assert (Path(options.out) / "final.safetensors").exists()  # nothing of the training is lost


def test_the_command_reports_the_uploaded_checkpoint(options: Options, url: str, capsys) -> None:
    words = ["--model", "tiny:make", "--data", options.data, "--out", options.out, "--image-size", "16", "--batch-size", "8"]
    words += ["--device", "cpu", "--threads", "1", "--epochs", "1", "--checkpoint-url", url, "--json"]
    assert main(["train", *words]) == 0
    assert json.loads(capsys.readouterr().out)["uploaded"] == f"{url}/step-000000004"
    assert main(["train", *words]) == 2
