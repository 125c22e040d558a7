"""TensorFlow: fixes for made-up sessions, hooks on a stand-in for its classes, and on TensorFlow where it is installed."""

from __future__ import annotations

import importlib.util
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
from headrace.diagnosis.diagnose import diagnose
from headrace.diagnosis.result.model import Diagnosis
from headrace.profiling.command import watch
from headrace.session.model import Session
from session_factory import make_session


def diagnosed(*pipeline: str, unseen: bool = False, workers: int = 0, **make: float) -> Diagnosis:
    """Diagnose a job with a tf.data pipeline. `unseen`: its stages work ahead, in TensorFlow's threads."""
    session = make_session(workers=workers, **make)
    loader = replace(session.loaders[0], family="tensorflow", num_workers=0, pipeline=pipeline)
    batches = () if unseen else tuple(replace(batch, queue_s=None, collate_s=None) for batch in session.batches)
    return diagnose(replace(session, loaders=(loader,), batches=batches))


def test_serial_pipeline_is_offered_prefetch_and_parallel_map() -> None:
    diagnosis = diagnosed("TFRecord", "Map", "Batch", cpu_s=0.02, compute_s=0.02, cores=4)
    assert diagnosis.verdict == "NO_OVERLAP"
    assert "num_workers" not in diagnosis.summary
    fixes = {fix.id: fix for fix in diagnosis.fixes}
    assert fixes["prefetch=1"].predicted_img_s == pytest.approx(32 / 0.0212, rel=0.1)
    assert "prefetch(tf.data.AUTOTUNE)" in (fixes["prefetch=1"].command or "")
    assert (fixes["threads=4"].gain or 0) >= (fixes["prefetch=1"].gain or 0)
    assert "num_parallel_calls" in (fixes["threads=4"].command or "")
    assert fixes["num_workers=4"].predicted_img_s is None
    assert "interleave" in (fixes["num_workers=4"].command or "")
    assert not any("DataLoader" in (fix.command or "") for fix in diagnosis.fixes)
    assert diagnosis.primary is not None
    assert "the pipeline: TFRecord → Map → Batch" in diagnosis.primary.evidence


def test_fixes_name_python_code_in_the_pipeline() -> None:
    generator = diagnosed("Tensor", "FlatMap (generator)", "Batch", cpu_s=0.05, compute_s=0.01)
    assert any(fix.id == "pack" and "generator" in fix.change for fix in generator.fixes)
    mapped = diagnosed("Range", "Map (python)", "Batch", cpu_s=0.05, compute_s=0.01)
    python = next(fix for fix in mapped.fixes if fix.id.startswith("threads="))
    assert python.predicted_img_s is None
    assert "py_function" in python.change


def test_pipeline_that_works_ahead_is_judged_by_its_cpu_use() -> None:
    waiting = diagnosed("TFRecord", "ParallelMap", "Batch", "Prefetch", unseen=True, workers=1, cpu_s=0.002, blocked_s=0.05)
    assert waiting.verdict == "STORAGE_LATENCY"
    assert waiting.share_of_step["input_storage"] == pytest.approx(waiting.wait_share or 0, abs=0.02)
    assert "cache" in {fix.id for fix in waiting.fixes}
    assert all(fix.predicted_img_s is None for fix in waiting.fixes)
    assert not any(fix.id.startswith("prefetch") for fix in waiting.fixes)


STAND_IN = {
    "tensorflow/__init__.py": "__version__ = '0.stand-in'",
    "tensorflow/errors.py": """
        class OutOfRangeError(Exception):
            def __init__(self, node, op, message): super().__init__(message)
    """,
    "tensorflow/python/data/ops/dataset_ops.py": """
        import time
        from tensorflow.python.data.ops import iterator_ops
        class DatasetV2:
            def __init__(self, source=None, count=0): self.source, self.count = source, count
            def _inputs(self): return [self.source] if self.source is not None else []
            def __iter__(self): return iterator_ops.OwnedIterator(self)
        class RangeDataset(DatasetV2): pass
        class _MapDataset(DatasetV2): pass
        class _PrefetchDataset(DatasetV2): pass
        class _OptionsDataset(DatasetV2): pass
    """,
    "tensorflow/python/data/ops/iterator_ops.py": """
        import time
        class Batch:
            shape = (8, 3)
        class OwnedIterator:
            def __init__(self, dataset):
                while dataset.source is not None: dataset = dataset.source
                self.left = dataset.count
            def __iter__(self): return self
            def __next__(self):
                if not self.left: raise StopIteration
                self.left -= 1
                time.sleep(0.004)
                return (Batch(), Batch())
    """,
    "keras/src/backend/tensorflow/trainer.py": """
        class TFEpochIterator:
            def __init__(self, dataset): self.dataset = dataset
            def __iter__(self):
                self.inner = self.steps(iter(self.dataset)); return self
            def steps(self, iterator):
                while True: yield 0, 0, iterator
            def __next__(self): return next(self.inner)
    """,
    "train.py": """
        import time
        import tensorflow, tensorflow.errors
        from tensorflow.python.data.ops import dataset_ops as ops
        from tensorflow.python.data.ops.iterator_ops import OwnedIterator
        from keras.src.backend.tensorflow.trainer import TFEpochIterator
        def fit(dataset):
            taken = 0
            try:
                for begin, end, iterator in TFEpochIterator(dataset):
                    assert not isinstance(iterator, OwnedIterator), "what Keras pulls from inside its function is not timed"
                    for _, data in zip(range(1), iterator): taken += 1
                    time.sleep(0.001)
            except tensorflow.errors.OutOfRangeError: return taken
        serial = ops._OptionsDataset(ops._MapDataset(ops.RangeDataset(count=40)))
        assert sum(1 for _ in serial) == 40
        assert fit(ops._PrefetchDataset(ops.RangeDataset(count=30))) == 30
    """,
}


def test_hooks_time_a_stand_in_for_tensorflow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, text in STAND_IN.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text))
    for folder in {file.parent for file in tmp_path.rglob("*.py")} - {tmp_path}:
        (folder / "__init__.py").touch()
    for middle in ("tensorflow/python", "tensorflow/python/data", "keras", "keras/src", "keras/src/backend"):
        (tmp_path / middle / "__init__.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    finished = watch([sys.executable, str(tmp_path / "train.py")], tmp_path / "s")
    errors = capfd.readouterr().err
    assert finished.returncode == 0, errors
    assert "headrace" not in errors
    session = Session.load(tmp_path / "s")
    assert [loader.pipeline for loader in session.loaders] == [("Range", "Map"), ("Range", "Prefetch")]
    assert {loader.family for loader in session.loaders} == {"tensorflow"}
    assert [sum(step.loader == number for step in session.steps) for number in (1000, 1001)] == [40, 30]
    assert all(step.items == 8 for step in session.steps)
    assert {batch.loader for batch in session.batches} == {1000}, "what works ahead is not timed inside next()"
    assert session.processes[0].tensorflow == "0.stand-in"
    assert session.processes[0].torch is None


REAL = """
import os, time
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import keras, tensorflow as tf
numbers = tf.data.Dataset.range(400)
data = numbers.map(lambda i: (tf.random.uniform((16,)), tf.cast(i % 2, tf.float32))).batch(8)
model = keras.Sequential([keras.layers.Input((16,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
history = model.fit(data, epochs=2, verbose=0, validation_data=data.take(2))
assert len(history.history["val_loss"]) == 2
assert model.optimizer.iterations.numpy() == 100
def generate():
    for number in range(200): yield float(number)
seen = 0
for batch in tf.data.Dataset.from_generator(generate, output_signature=tf.TensorSpec(())).batch(4).prefetch(2):
    seen += 1; time.sleep(0.002)
assert seen == 50
"""


def test_hooks_time_keras_fit_and_a_custom_loop(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    if importlib.util.find_spec("tensorflow") is None:
        pytest.skip("TensorFlow is not installed")
    (tmp_path / "train.py").write_text(REAL)
    finished = watch([sys.executable, str(tmp_path / "train.py")], tmp_path / "s")
    errors = capfd.readouterr().err
    assert finished.returncode == 0, errors
    assert "headrace: " not in errors
    session = Session.load(tmp_path / "s")
    stages = [loader.pipeline for loader in session.loaders]
    assert ("Range", "Map", "Batch") in stages
    assert any("FlatMap (generator)" in pipeline and pipeline[-1] == "Prefetch" for pipeline in stages)
    training = [step for step in session.steps if step.loader == 1000 + stages.index(("Range", "Map", "Batch"))]
    assert len(training) >= 98
    assert diagnose(session).verdict != "INSUFFICIENT_DATA"
