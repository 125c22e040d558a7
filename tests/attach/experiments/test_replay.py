"""The run that repeats one batch, the predictions from it, and the fixes that `--verify` measures."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from headrace.attach.experiments.replay import MATCH_VARIABLE, PHASES
from headrace.diagnosis.diagnose import diagnose
from headrace.diagnosis.result.model import Diagnosis
from headrace.profiling import verify_fixes as remeasure
from headrace.profiling.command import watch
from headrace.session.model import Event, Session
from session_factory import MAIN_PID, make_session

SCRIPT = """
import json, sys
import torch
from torch.utils.data import DataLoader, Dataset
torch.set_num_threads(1)
class Data(Dataset):
    def __len__(self): return 2000
    def __getitem__(self, index): return {"image": torch.randn(3, 8, 8), "label": index % 2, "name": "x"}
model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten(), torch.nn.Linear(144, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
seen = []
for number, batch in enumerate(DataLoader(Data(), batch_size=4, num_workers=1)):
    scores = model(batch["image"])
    image, weight = (one.is_contiguous(memory_format=torch.channels_last) for one in (batch["image"], model[0].weight))
    same = number < 8 or torch.equal(batch["image"][:2], first[:2])
    seen.append([len(batch["label"]), str(scores.dtype), image, weight, same])
    if number == 7: first = batch["image"].clone()
    optimizer.zero_grad(); torch.nn.functional.cross_entropy(scores, batch["label"]).backward(); optimizer.step()
    json.dump(seen, open(sys.argv[1], "w"))
raise SystemExit("a replay must not come to the end")
"""


@pytest.mark.slow
def test_the_loop_gets_one_batch_at_several_sizes_and_settings(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [sys.executable, str(tmp_path / "train.py"), str(tmp_path / "seen.json")]
    match = json.dumps({"num_workers": 1, "batch_size": 4})
    finished = watch(command, tmp_path / "s", hooks=(remeasure.REPLAY_HOOK,), env={MATCH_VARIABLE: match}, time_limit_s=80)
    assert finished.returncode == 0, capfd.readouterr().err
    found = Session.load(tmp_path / "s").facts["replay"]
    assert found["batch_size"] == 4
    assert list(found["seconds"]) == list(PHASES)
    assert all(seconds > 0 for seconds in found["seconds"].values())
    seen = json.loads((tmp_path / "seen.json").read_text())
    assert {length for length, *_ in seen} == {2, 4, 8}
    assert all(same for *_, same in seen), "the same images, whatever the size"
    assert {kind for _, kind, *_ in seen} == {"torch.float32", "torch.bfloat16"}
    last = [(image, weight) for _, _, image, weight, _ in seen]
    assert (True, True) in last
    assert last[-2] == (False, False), "put back for the phases after it"


def replayed(**seconds: float) -> Diagnosis:
    session = make_session(cpu_s=0.002, compute_s=0.02, workers=2, gpu_busy=0.9)
    return diagnose(replace(session, facts={"replay": {"batch_size": 32, "seconds": seconds}}))


def test_the_number_format_fix_is_predicted_from_the_replay() -> None:
    diagnosis = replayed(base=0.020, amp=0.010, channels_last=0.022, base_again=0.020)
    fixes = {fix.id: fix for fix in diagnosis.fixes}
    assert fixes["amp"].gain == pytest.approx(2.0, rel=0.1)
    assert fixes["amp"].interval is not None
    assert "channels_last" not in fixes, "it was slower in the replay"
    assert fixes["compile"].predicted_img_s is None


def test_the_fixed_cost_of_a_batch_comes_from_three_sizes() -> None:
    session = make_session(cpu_s=0.0005, compute_s=0.02, workers=1, batch_size=4, cores=4, main_cpu_share=0.95)
    seconds = {"half": 0.019, "base": 0.020, "double": 0.022}  # 18 ms + 0.5 ms an image
    events = (*session.events, Event(MAIN_PID, "operators", 2.5, 0.2))
    diagnosis = diagnose(replace(session, events=events, facts={"replay": {"seconds": seconds}}))
    assert diagnosis.verdict == "OVERHEAD_BOUND"
    bigger = next(fix for fix in diagnosis.fixes if fix.id == "batch_size=16")
    assert bigger.gain == pytest.approx(4 * 20 / 26, rel=0.1)
    assert bigger.basis == "a + c·b from a replayed batch"


def test_verify_measures_the_fixes_of_all_findings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = make_session(cpu_s=0.05, compute_s=0.02, workers=1)
    found = diagnose(session)
    first = replace(found.findings[0], fixes=found.findings[0].fixes[:1])
    other = replace(first, kind="STARTUP", fixes=(replace(first.fixes[0], id="persistent_workers", gain=None),))
    setting = replace(first, kind="NOT_PINNED", fixes=(replace(first.fixes[0], id="pin_memory", gain=1.5),))
    rates = iter([100.0, 150.0, 100.0, 160.0, 110.0, 105.0, 100.0])
    tried: list[Any] = []

    def rate(command: Any, folder: Path, trial: Any, window_s: float) -> tuple[float, None]:
        tried.append(folder.name)
        return next(rates), None

    monkeypatch.setattr(remeasure, "_rate", rate)
    said: list[str] = []
    diagnosis = replace(found, findings=(first, other), configuration=(setting,))
    verified = remeasure.remeasure_fixes(diagnosis, session, tmp_path, command=session.command, log=said.append)
    changed = [name for name in tried if "unchanged" not in name]
    assert sorted(name.split("-", 2)[2] for name in changed) == ["num_workers-3", "persistent_workers", "pin_memory"]
    assert all(fix.verified_img_s is not None for fix in verified.fixes)
    assert verified.configuration[0].fixes[0].verified_change is not None
    assert any("off by" in words for words in said)
    assert verified.confidence < diagnosis.confidence, "one prediction missed by far"
