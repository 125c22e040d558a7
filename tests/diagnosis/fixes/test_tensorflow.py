"""TensorFlow: fixes for made-up sessions, hooks on a stand-in for its classes, and on TensorFlow where it is installed."""

from __future__ import annotations

import importlib.util
import os
import sys
import textwrap
from collections.abc import Callable
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


BENCHMARK = {"plain_s": 0.004, "headrace_s": 0.001, "images": 24}


def with_facts(session: Session, *pipeline: str, family: str = "tensorflow", **facts: object) -> Diagnosis:
    images = tuple(f"/data/{name}/{number}.jpg" for name in "abc" for number in range(4))
    loader = replace(session.loaders[0], family=family, num_workers=0, pipeline=pipeline, sample_paths=images)
    return diagnose(replace(session, loaders=(loader,), facts={"image_benchmark": BENCHMARK, **facts}))


def test_a_generator_of_images_is_offered_files_and_the_loader_with_predictions() -> None:
    session = make_session(workers=0, cpu_s=0.128, compute_s=0.02, cores=4)
    found = with_facts(session, "Tensor", "FlatMap (generator)", "Batch")
    fixes = {fix.id: fix for fix in found.fixes}
    assert list(fixes)[:2] == ["to_tf_dataset", "threads=4"], "the larger gain first"
    assert (fixes["to_tf_dataset"].gain or 0) > (fixes["threads=4"].gain or 0) > 2
    assert "from_tensor_slices" in (fixes["threads=4"].command or "")
    assert "to_tf_dataset()" in (fixes["to_tf_dataset"].command or "")
    ceiling = found.ceiling_img_s or 0
    assert all((fix.predicted_img_s or 0) <= 1.01 * ceiling for fix in found.fixes)
    # The same job with a prefetch at its end: what a batch costs was not timed, but what its images cost to decode is known.
    ahead = make_session(workers=1, cpu_s=0.128, compute_s=0.02, cores=4)
    ahead = replace(ahead, batches=(), steps=tuple(replace(step, process_cpu_s=0.14) for step in ahead.steps))
    fixes = {fix.id: fix for fix in with_facts(ahead, "Tensor", "FlatMap (generator)", "Batch", "Prefetch").fixes}
    assert fixes["to_tf_dataset"].predicted_img_s == pytest.approx(32 / 0.0205, rel=0.15)
    assert fixes["threads=4"].predicted_img_s is not None


def test_the_bridge_is_a_loader_of_headrace_and_no_generator_to_replace() -> None:
    session = make_session(workers=2, cpu_s=0.2, compute_s=0.01, cores=8)
    found = with_facts(session, "headrace.Loader", family="headrace")
    assert not any(fix.id in ("to_tf_dataset", "pack") or "generator" in fix.change for fix in found.fixes)


def test_a_slow_step_is_offered_what_tensorflow_has() -> None:
    session = make_session(workers=0, cpu_s=0.0001, compute_s=0.01, cores=4)
    eager = with_facts(session, "TensorSlice", "Batch", tensorflow={"eager": True})
    assert eager.verdict == "COMPUTE_BOUND"
    assert [fix.command for fix in eager.fixes] == ["@tf.function above the training step"]
    keras = with_facts(session, "TensorSlice", "Batch", tensorflow={"keras": True, "steps_per_execution": 1})
    assert [fix.id for fix in keras.fixes] == ["steps_per_execution=16"]
    several = with_facts(session, "TensorSlice", "Batch", tensorflow={"keras": True, "steps_per_execution": 8})
    assert several.fixes == () and any("steps_per_execution=8" in words for words in several.not_measured)


def test_threads_that_queue_are_not_storage() -> None:
    """A generator that reads from the page cache: what its thread is neither on a core nor queueing is its hand-over."""
    session = make_session(workers=0, cpu_s=0.04, blocked_s=0.05, compute_s=0.01, cores=2)
    batches = tuple(
        replace(batch, queue_s=None, collate_s=None, read_bytes=3_000_000, disk_bytes=0, cpu_s=0.04, wall_s=0.09)
        for batch in session.batches
    )
    samples = tuple(replace(sample, queue_share=0.5) for sample in session.samples)
    found = with_facts(replace(session, batches=batches, samples=samples), "Tensor", "FlatMap (generator)", "Batch")
    assert found.share_of_step["input_storage"] == pytest.approx(0, abs=0.01)
    assert found.share_of_step["input_queue"] == pytest.approx(0.4, abs=0.05)
    assert "40 ms queueing for a core" in " ".join(found.findings[0].evidence)


def test_other_programs_are_as_large_as_the_bar_says() -> None:
    session = make_session(workers=1, cpu_s=0.09, compute_s=0.01, cores=2, foreign_cores=1.8)
    steps = tuple(replace(step, process_cpu_s=0.04, queue_s=0.002, wait_queue_s=0.01) for step in session.steps)
    samples = tuple(replace(sample, queue_share=0.7) for sample in session.samples)
    session = replace(session, batches=(), steps=steps, samples=samples)
    found = with_facts(session, "TensorSlice", "Map", "Batch", "Distribute")
    assert found.verdict == "EXTERNAL_CPU" and found.primary is not None
    bar = found.share_of_step["input_queue"] + found.share_of_step["core_wait"]
    assert found.primary.share == pytest.approx(bar, abs=0.02)


def test_a_loop_inside_a_tf_function_is_named() -> None:
    session = make_session(workers=0, cpu_s=0.02, compute_s=0.02)
    loader = replace(session.loaders[0], family="tensorflow", pipeline=("TensorSlice", "Batch"))
    assert "tf.function" in diagnose(replace(session, loaders=(loader,), steps=(), batches=())).summary


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
    "tensorflow/python/eager/context.py": "executing_eagerly = lambda: True",
    "tensorflow/python/distribute/input_lib.py": """
        class PerReplica:
            def __init__(self, *values): self.values = values
        class DistributedDataset:
            def __init__(self, dataset): self._original_dataset = dataset
            def __iter__(self): return DistributedIterator(iter(self._original_dataset))
        class DistributedDatasetsFromFunction(DistributedDataset): pass
        class DistributedIterator:
            def __init__(self, inner): self.inner = inner
            def __iter__(self): return self
            def __next__(self):
                image, label = self.inner.made()
                return (PerReplica(image, image), PerReplica(label, label))
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
            def __next__(self): return self.made()
            def made(self):
                if not self.left: raise StopIteration
                self.left -= 1
                time.sleep(0.004)
                return (Batch(), Batch())
    """,
    "keras/src/backend/tensorflow/trainer.py": """
        class TensorFlowTrainer:
            layers, run_eagerly, jit_compile, dtype_policy = (), False, False, None
            def __init__(self, steps): self.steps_per_execution = steps
            def make_train_function(self): pass
        class TFEpochIterator:
            data_adapter = None
            def __init__(self, dataset): self.dataset = dataset
            def _get_iterator(self): return self.dataset
            def __iter__(self):
                self.inner = self.steps(iter(self._get_iterator())); return self
            def steps(self, iterator):
                while True: yield 0, 0, iterator
            def __next__(self): return next(self.inner)
    """,
    "train.py": """
        import time
        import tensorflow, tensorflow.errors
        from tensorflow.python.data.ops import dataset_ops as ops
        from tensorflow.python.data.ops.iterator_ops import OwnedIterator
        from tensorflow.python.distribute.input_lib import DistributedDataset, DistributedIterator
        from keras.src.backend.tensorflow.trainer import TensorFlowTrainer, TFEpochIterator
        def fit(dataset, steps=1):
            taken = 0
            TensorFlowTrainer(steps).make_train_function()
            try:
                for begin, end, iterator in TFEpochIterator(dataset):
                    assert not isinstance(iterator, OwnedIterator | DistributedIterator), "Keras would pull from its function"
                    for _, data in zip(range(steps), iterator): taken += 1
                    time.sleep(0.001)
            except tensorflow.errors.OutOfRangeError: return taken
        serial = ops._OptionsDataset(ops._MapDataset(ops.RangeDataset(count=40)))
        assert sum(1 for _ in serial) == 40
        assert fit(ops._PrefetchDataset(ops.RangeDataset(count=30))) == 30
        assert fit(DistributedDataset(ops._MapDataset(ops.RangeDataset(count=20))), 3) == 20
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
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    finished = watch([sys.executable, str(tmp_path / "train.py")], tmp_path / "s")
    errors = capfd.readouterr().err
    assert finished.returncode == 0, errors
    assert "headrace" not in errors
    session = Session.load(tmp_path / "s")
    distributed = ("Range", "Map", "Distribute")
    assert [loader.pipeline for loader in session.loaders] == [("Range", "Map"), ("Range", "Prefetch"), distributed]
    assert {loader.family for loader in session.loaders} == {"tensorflow"}
    assert [sum(step.loader == number for step in session.steps) for number in (1000, 1001, 1002)] == [40, 30, 20]
    assert all(step.items == (16 if step.loader == 1002 else 8) for step in session.steps)
    assert session.facts["tensorflow"]["steps_per_execution"] == 3
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


REAL_DISTRIBUTED = """
import os, sys
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import keras, tensorflow as tf
import headrace
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
data = tf.data.Dataset.range(168).map(lambda i: (tf.random.uniform((16,)), tf.cast(i % 2, tf.float32))).batch(8)
with strategy.scope():
    model = keras.Sequential([keras.layers.Input((16,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", steps_per_execution=4)
model.fit(data, epochs=2, verbose=0)
assert model.optimizer.iterations.numpy() == 42
seen = sum(len(strategy.experimental_local_results(batch[0])) for batch in strategy.experimental_distribute_dataset(data))
assert seen == 42, "two parts of each batch"
loader = headrace.Loader(sys.argv[1], 2, headrace.transforms.imagenet_train(16), output="numpy", threads=1)
images = keras.Sequential([keras.Input((16, 16, 3)), keras.layers.Flatten(), keras.layers.Dense(3)])
images.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
for _ in range(2):
    assert sum(1 for _ in loader.to_tf_dataset().map(lambda images, labels: images)) == len(loader)
images.fit(loader.to_keras_dataset(), epochs=2, verbose=0)

@tf.function
def inside():
    total = 0.0
    for inputs, _ in data:
        total += tf.reduce_sum(inputs)
    return total

inside()
"""


def test_hooks_time_distributed_datasets_and_know_the_bridge(
    image_folder: Callable[..., Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    if importlib.util.find_spec("tensorflow") is None:
        pytest.skip("TensorFlow is not installed")
    (tmp_path / "train.py").write_text(REAL_DISTRIBUTED)
    root = image_folder(classes=3, per_class=8)
    finished = watch([sys.executable, str(tmp_path / "train.py"), str(root)], tmp_path / "s")
    errors = capfd.readouterr().err
    assert finished.returncode == 0, errors
    assert "headrace: " not in errors
    session = Session.load(tmp_path / "s")
    steps = {loader.loader: [step for step in session.steps if step.loader == loader.loader] for loader in session.loaders}
    by_stages = {loader.pipeline: steps[loader.loader] for loader in session.loaders if steps[loader.loader]}
    distributed = [steps[one.loader] for one in session.loaders if one.pipeline == ("Range", "Map", "Batch", "Distribute")]
    assert [len(one) for one in distributed] == [43, 21], "Keras looks at one batch before the first epoch"
    assert {step.items for one in distributed for step in one} == {8}
    bridges = [one for one in session.loaders if one.pipeline[:1] == ("headrace.Loader",)]
    assert {one.family for one in bridges} == {"headrace"} and {one.num_workers for one in bridges} == {1}
    assert {len(steps[one.loader]) for one in bridges} <= {12, 22, 23, 24}, "Keras may leave the last batch of an epoch open"
    assert not any("generator" in stage for stages in by_stages for stage in stages)
    assert session.facts["tensorflow"]["keras"] is True
    assert diagnose(session).verdict != "INSUFFICIENT_DATA"
