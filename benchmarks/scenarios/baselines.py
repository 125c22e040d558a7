"""The answers of other tools on the same jobs: their rules applied to our sessions, and TraceML itself.

- The overview page of PyTorch's TensorBoard plugin (deleted from pytorch/kineto in April 2026): time of the main process in
  a loader's `next()` above 5 % of the step → "set num_workers". Its other rules need a GPU.
- SageMaker's ProfilerReport: `sagemaker_rules`.
- PyTorch warns when num_workers exceeds the cores; Lightning (2.6) when it is below 2 and there is more than one core.
- TraceML runs the job itself (`traceml run`). The job marks its steps, as TraceML requires.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path

from headrace.diagnosis.measure import measure_ranks
from headrace.session.model import Session

from scenarios.sagemaker_rules import apply_rules

TENSORBOARD_SHARE = 0.05


def tensorboard(session: Session) -> str:
    """Return the answer of the plugin's only rule that needs no GPU."""
    ranks = measure_ranks(session)
    if not ranks:
        return "nothing"
    share = sum(step.wait_s for step in ranks[0].steps) / sum(step.step_s for step in ranks[0].steps)
    return f"DataLoader {share:.0%}: set num_workers" if share > TENSORBOARD_SHARE else "nothing"


def sagemaker(session: Session) -> str:
    """Return the rules that fire."""
    fired = [result.rule for result in apply_rules(session) if result.outcome == "fires"]
    return ", ".join(fired) or "nothing"


def warnings(session: Session) -> str:
    """Return PyTorch's and Lightning's advice on the number of workers, by their own conditions."""
    cores = session.host.cores_affinity or session.host.cores_online or 1
    said = []
    for loader in session.loaders[:1]:
        if loader.num_workers > cores:
            said.append(f"PyTorch: more than {cores} workers")
        if loader.num_workers < 2 and max(1, cores - 1) > 1:
            said.append(f"Lightning: num_workers={cores - 1}")
    return ", ".join(said) or "nothing"


def traceml(program: Path, job: Path, name: str, ranks: int, prefix: list[str]) -> str:
    """Return TraceML's primary diagnosis of one run of the job, or the reason for having none."""
    with tempfile.TemporaryDirectory() as folder:
        words = [
            str(program), "run", "--logs-dir", folder, "--run-name", "run", "--nproc-per-node", str(ranks),
            str(job), "--args", name, "--traceml",
        ]  # fmt: skip
        try:
            done = subprocess.run([*prefix, *words], capture_output=True, text=True, timeout=300)
        except subprocess.TimeoutExpired:
            return "no summary (took longer than 300 s)"
        summary = Path(folder) / "run/final_summary.json"
        if not summary.exists():
            return f"no summary (exit code {done.returncode})"
        return str(json.loads(summary.read_text())["primary_diagnosis"]["status"])
