"""The parsers in Python as fuzz targets: for any bytes, each ends soon, takes little memory, and raises only headrace's errors.

A target takes the bytes of one file (or of the part of it that a stranger chooses freely) and a folder to write them to.
Checksums around the bytes are made right here: otherwise nearly every input would end at the checksum.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import hashlib
import io
import json
import struct
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from containers import example, field, image_record, recordio, tfrecord
from headrace._native import Engine, Program, Store, Table, operation_schema
from headrace.cli.cloud.launch import _read as _read_request
from headrace.cost.estimates.calibrate import read_run
from headrace.cost.estimates.measured import _from_json
from headrace.datasets.records.dataset import fingerprint
from headrace.datasets.shards.index import read_columns, serialized
from headrace.datasets.shards.manifest import MANIFEST, read_manifest
from headrace.datasets.sources.archives.containers import ContainerRecords, merged, record_table
from headrace.datasets.sources.archives.recordio import scan_recordio
from headrace.datasets.sources.archives.tar import scan_tar
from headrace.datasets.sources.archives.tfrecord import scan_tfrecord
from headrace.datasets.sources.lst import open_lst
from headrace.datasets.sources.stream import ByteStream, stream_records
from headrace.datasets.sources.table import open_table
from headrace.errors import HeadraceError
from headrace.packing.copied_files import RECORD, opened_record
from headrace.report.sessions.session_folder import DIAGNOSIS_FILE, read_session_folder
from headrace.trials.experiment import cells
from sample_images import jpeg

__all__ = ["TARGETS", "Target"]

_scratch = tempfile.TemporaryDirectory(prefix="headrace-fuzz-")  # for seeds

IMAGE = b"\xff\xd8\xff\xe0 an image \xff\xd9"
BLOCK = 512
LARGEST_SIDE = 256
"""Pixels of a side: programs with larger results are only made, not run."""

FIRST = np.zeros(1, np.int64)
"""The number of the only record, and of its only draw."""

JSON_WORDS = (
    b'{"',
    b'":',
    b"[[",
    b"]]",
    b"null",
    b"true",
    b"1e308",
    b"NaN",
    b"-1",
    b"9" * 20,
    b"9" * 5000,
    b'"\\ud800"',
    b"[" * 2000,
)
TAR_WORDS = (b"path=", b"size=", b"linkpath=", b"GNU.sparse.size=", b"../", b"/", b"30 ", b"99999999 ", b"\n", b"=", b"0" * 20)
LIST_WORDS = (b"\t", b"\n", b",", b'"', b"../", b"/", b"9999999", b"1e9", b"nan", b"-1", b"\xff", b"0\t0\t")


@dataclass(frozen=True)
class Target:
    """A parser. `words`: pieces that its inputs consist of."""

    parse: Callable[[bytes, Path], object]
    seeds: Callable[[], Sequence[bytes]]
    words: Sequence[bytes] = ()
    modules: tuple[str, ...] = ()
    """Modules that the target imports when it runs: they guide the search too if they are imported before."""

    def run(self, data: bytes, folder: Path) -> None:
        """Parse one input. Whatever this raises is a finding."""
        with contextlib.suppress(HeadraceError):
            self.parse(data, folder)


def _written(folder: Path, name: str, data: bytes) -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def _opened(found: ContainerRecords, path: Path) -> None:
    """Do what opening the container does after its scan."""
    scan = merged([found])
    table = record_table([str(path)], scan.columns)
    fingerprint(table.keys, table.size, table.label)
    list(table.keys)


def _header(kind: bytes, name: bytes, size: int) -> bytes:
    """Return a tar header with the right checksum."""
    block = bytearray(BLOCK)
    block[: len(name)] = name
    block[100:108], block[124:136], block[156:157] = b"0000644\0", b"%011o\0" % size, kind
    block[257:265] = b"ustar\x0000"
    return _with_checksum(bytes(block))


def _with_checksum(block: bytes) -> bytes:
    total = sum(block) - sum(block[148:156]) + 8 * ord(" ")
    return block[:148] + b"%06o\0 " % total + block[156:]


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % BLOCK)


def pax_headers(data: bytes, folder: Path) -> None:
    """The first byte chooses pax or GNU's long name; the rest is the extended header of the archive's first image."""
    kind, body = (b"L" if data[:1] == b"L" else b"x"), data[1:]
    members = _header(kind, b"PaxHeader", len(body)) + _padded(body)
    for name, content in ((b"a/0.jpg", IMAGE), (b"a/0.cls", b"3"), (b"a/1.jpg", IMAGE)):
        members += _header(b"0", name, len(content)) + _padded(content)
    archive = _written(folder, "a.tar", members + bytes(2 * BLOCK))
    _streamed(archive)
    _opened(scan_tar([archive])(archive), archive)


def tar_headers(data: bytes, folder: Path) -> None:
    """An archive; the checksums of its headers are made right."""
    blocks = [data[at : at + BLOCK] for at in range(0, len(data), BLOCK)]
    whole = b"".join(_with_checksum(block) if block[257:262] == b"ustar" and len(block) == BLOCK else block for block in blocks)
    archive = _written(folder, "a.tar", whole)
    _streamed(archive)
    _opened(scan_tar([archive])(archive), archive)


def _streamed(path: Path) -> None:
    """Read an archive from a stream, as SageMaker's Pipe mode sends it."""
    data = path.read_bytes()
    pieces = (data[at : at + 700] for at in range(0, len(data), 700))
    with contextlib.suppress(HeadraceError):
        for _ in stream_records(ByteStream(pieces, path), lambda count: None):
            pass


def recordio_index(data: bytes, folder: Path) -> None:
    """An .idx file beside a sound .rec file."""
    path = _written(folder, "a.rec", b"".join(_records()))
    _written(folder, "a.idx", data)
    _opened(scan_recordio([path])(path), path)


def recordio_file(data: bytes, folder: Path) -> None:
    """A .rec file without an index, and the same bytes as a stream."""
    path = _written(folder, "b.rec", data)
    _streamed(path)
    _opened(scan_recordio([path])(path), path)


@functools.cache
def _records() -> tuple[bytes, ...]:
    split = IMAGE + struct.pack("<I", 0xCED7230A) * 2
    return tuple(image_record(image, 2.0, number, flag=number % 2) for number, image in enumerate((IMAGE, split, IMAGE)))


def tfrecord_example(data: bytes, folder: Path) -> None:
    """A tf.train.Example, in a file with the right checksums."""
    path = _written(folder, "a.tfrecord", tfrecord(data))
    _opened(scan_tfrecord([path])(path), path)


def lists(data: bytes, folder: Path) -> None:
    """The first byte chooses the kind of the list."""
    (folder / "a.jpg").touch()
    name = {b"c": "l.csv", b"t": "l.tsv"}.get(data[:1], "l.lst")
    path = _written(folder, name, data[1:])
    (open_lst if name == "l.lst" else open_table)(path)


def packed_manifest(data: bytes, folder: Path) -> None:
    """`headrace.json` of a packed dataset."""
    _written(folder, MANIFEST, data)
    read_manifest(folder).serialized()


def packed_index(data: bytes, folder: Path) -> None:
    """`index.safetensors` of a packed dataset."""
    columns = read_columns(_written(folder, "index.safetensors", data))
    table = record_table(["a"], columns)
    list(table.keys)
    if columns.sidecars is not None and len(columns):
        columns.sidecars.counts()


def folder_record(data: bytes, folder: Path) -> None:
    """The record of `pack --layout folder`."""
    _written(folder, RECORD, data)
    with opened_record(folder) as (_, entries):
        list(entries)


def session(data: bytes, folder: Path) -> None:
    """The lines of a session, which is then diagnosed."""
    (folder / DIAGNOSIS_FILE).unlink(missing_ok=True)
    _written(folder, "session.jsonl", data)
    read_session_folder(folder)


def diagnosis(data: bytes, folder: Path) -> None:
    """`diagnosis.json` in the folder of a session that is sound."""
    _written(folder, "session.jsonl", _session_lines())
    _written(folder, DIAGNOSIS_FILE, data)
    found = read_session_folder(folder)[1]
    json.dumps(found.to_json())


def trace(data: bytes, folder: Path) -> None:
    """A trace of PyTorch's profiler, which is then diagnosed; the first byte chooses the packed form."""
    packed = gzip.compress(data[1:], 1) if data[:1] == b"z" else data
    read_session_folder(_written(folder, "trace.json", packed))


@functools.cache
def _session_lines() -> bytes:
    """Return a short session with a line of each kind."""
    from session_factory import make_session

    folder = Path(_scratch.name)
    make_session(steps=4, workers=1, gpu_busy=0.3).save(folder)
    return (folder / "session.jsonl").read_bytes()


def checkpoint_state(data: bytes, folder: Path) -> None:
    """The state in a checkpoint's `state.json`, with the right checksums."""
    from headrace.training.weights import checkpoint
    from headrace.training.weights.saved_state import read_saved_state
    from headrace.training.weights.trained_weights import _from_checkpoint

    head = b'{"version": 1, "step": 3, "sha256": "%s", "state": ' % hashlib.sha256(_tensors()).hexdigest().encode()
    text = head + data + b"}"
    files = {
        checkpoint.STATE: b'{"sha256": "%s"}\n' % hashlib.sha256(text).hexdigest().encode() + text,
        checkpoint.TENSORS: _tensors(),
    }
    found = checkpoint.parse(folder, files.__getitem__)
    with contextlib.suppress(HeadraceError):
        read_saved_state(found)
    _from_checkpoint(found)


def checkpoint_files(data: bytes, folder: Path) -> None:
    """`state.json` as it is: without a right checksum."""
    from headrace.training.weights import checkpoint

    checkpoint.parse(folder, {checkpoint.STATE: data, checkpoint.TENSORS: _tensors()}.__getitem__)


def weights(data: bytes, folder: Path) -> None:
    """`final.safetensors`: what it says of itself. `predict`, `evaluate` and `export` read it."""
    from headrace.training.weights.trained_weights import _read_final

    _read_final(_written(folder, "final.safetensors", data))


@functools.cache
def _tensors() -> bytes:
    header = b'{"model.x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    return struct.pack("<Q", len(header)) + header + bytes(4)


def options_file(data: bytes, folder: Path) -> None:
    """A file for `train --config`."""
    from headrace.training.settings import options_file as options
    from headrace.training.settings.options import Options

    options.read(_written(folder, "config.toml", data), sorted(options.flatten(Options("", "", ""))))


def experiment(data: bytes, folder: Path) -> None:
    """A file for `trials`."""
    cells.load(str(_written(folder, "own.toml", data)))


def request(data: bytes, folder: Path) -> None:
    """A file for `launch --request`: its mistakes, and what it would run."""
    from headrace.launch.job_request.request_code import chosen_code
    from headrace.launch.job_request.validate import check_request

    document = _read_request(_written(folder, "request.json", data))
    mistakes = check_request(document, region="us-east-1")
    list(map(str, mistakes))
    if not any(mistake.fatal for mistake in mistakes):
        chosen_code(document, script=False)


def finished_job(data: bytes, folder: Path) -> None:
    """The documents of a finished job: `metrics.json` where the input begins with `m`, else `describe.json`."""
    from headrace.cost.market.prices import PriceTable
    from headrace.launch.finished_job.diagnose import diagnose_job
    from headrace.launch.finished_job.documents import read_documents

    _written(folder, "describe.json", _DESCRIPTION if data[:1] == b"m" else data)
    _written(folder, "metrics.json", data[1:] if data[:1] == b"m" else _METRICS)
    diagnose_job(read_documents(folder), PriceTable.load())


def finished_run(data: bytes, folder: Path) -> None:
    """A file for `cost --calibrate`."""
    read_run(_written(folder, "run.json", data))


def measured_rates(data: bytes, folder: Path) -> None:
    """A file for `cost --session`: what `tune --json` or `trials` wrote."""
    _from_json(_written(folder, "rates.json", data))


def operations(data: bytes, folder: Path) -> None:
    """Operations of the native engine as JSON: what a program takes gives the same pixels twice, and leaves none unwritten."""
    try:
        given = json.loads(data, object_hook=lambda fields: {name: _tuples(value) for name, value in fields.items()})
        program = Program([(name, values) for name, values in given])
    except (ValueError, TypeError, OverflowError, RecursionError):
        return
    width, height = program.out
    if max(width, height) > LARGEST_SIDE:
        return
    engine, table, store = _engine()
    results = []
    for filled in (0, 255):
        pixels = np.full(width * height * 3, filled, np.uint8)
        job = engine.submit(table, program, store, 3, 1, FIRST, FIRST.astype(np.uint64), pixels, [_photograph()])
        while not job.wait(0.1):  # so that an input that takes too long is noticed
            pass
        results.append((job.statuses(), pixels.tobytes()))
    (status, pixels_of_zeros), (status_again, pixels_of_ones) = results
    if status != status_again or (status == [0] and pixels_of_zeros != pixels_of_ones):
        raise AssertionError(f"the same operations gave statuses {status} and {status_again}, or other pixels")


def _tuples(value: object) -> object:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


@functools.cache
def _engine() -> tuple[Engine, Table, Store]:
    nothing = np.zeros(1, np.int64)
    return Engine(1), Table([""], nothing.astype(np.int32), nothing, nothing), Store("hwc")


@functools.cache
def _photograph() -> bytes:
    return jpeg(60, 44, 1)


def _operations() -> list[bytes]:
    """Each operation of the engine with the least, a middle and the largest of its values that make a small image."""
    seeds = []
    for name, _, fields in operation_schema():
        for share in (0.0, 0.3, 1.0):
            values = {field: _value(share, *kind) for field, *kind in fields}
            seeds.append(
                json.dumps([[name, values], ["resize_exact", {"size": [24, 16], "interpolation": "bilinear"}]]).encode()
            )
    return seeds


def _value(
    share: float, kind: str, count: int, is_optional: bool, choices: Sequence[str], limits: tuple[float, float] | None
) -> Any:
    """Return a value of a field of an operation: `share` of the way from the least to the largest."""
    if is_optional and not share:
        return None
    if kind == "flag":
        return share > 0
    if kind in ("choice", "filters"):
        chosen = choices[round(share * (len(choices) - 1))]
        return [chosen] if kind == "filters" else chosen
    least, most = limits or (0.1, 1.5)
    number = least + share * (min(most, 64) - least)
    number = round(number) if kind == "integer" else number
    return number if count == 1 else [number] * count


def _archives() -> list[bytes]:
    found = []
    for kind in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT):
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w", format=kind) as archive:
            for name, data in (
                ("a/0.jpg", IMAGE),
                ("a/0.cls", b"1"),
                ("a/0.json", b'{"label": 2}'),
                (f"{'d/' * 60}1.jpg", IMAGE),
            ):
                if kind == tarfile.USTAR_FORMAT and len(name) > 100:
                    name = f"{'e/' * 40}{name[-40:]}"
                info = tarfile.TarInfo(name)
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
        found.append(stream.getvalue()[: 12 * BLOCK] + bytes(2 * BLOCK))
    return found


def _manifests() -> list[bytes]:
    digest = "0" * 64
    document = {
        "format": "headrace", "version": 1,
        "counts": {"records": 3, "image_bytes": 30, "rejected": 0, "per_class": [1, 2], "unmarked": 1},
        "classes": ["cat", "dog"],
        "index": {"file": "index.safetensors", "size": 900, "sha256": digest},
        "shards": [{"file": "shard-000000.tar", "size": 10240, "sha256": digest, "records": 3}],
        "options": {"quality": 90}, "source": {"kind": "folder", "fingerprint": "0" * 32},
    }  # fmt: skip
    return [json.dumps(document).encode()]


def _indexes() -> list[bytes]:
    path = Path(_scratch.name) / "seed.tar"
    path.write_bytes(_archives()[0])
    return [serialized(merged([scan_tar([path])(path)]).columns)]


def _folder_records() -> list[bytes]:
    head = {"format": "headrace-folder", "version": 1, "complete": True, "options": {"quality": None}}
    entry = {
        "path": "a/b.jpg",
        "kind": "marked",
        "source_size": 9,
        "source_changed_ns": 5,
        "size": 9,
        "crc32c": 7,
        "error": None,
    }
    return ["".join(json.dumps(line) + "\n" for line in (head, entry, {**entry, "path": "c", "error": "x"})).encode()]


def _diagnoses() -> list[bytes]:
    folder = Path(_scratch.name)
    (folder / "session.jsonl").write_bytes(_session_lines())
    (folder / DIAGNOSIS_FILE).unlink(missing_ok=True)
    return [json.dumps(read_session_folder(folder)[1].to_json()).encode()]


def _states() -> list[bytes]:
    state = {
        "step": 3, "batch_size": 4, "loader": {"epoch": 1}, "scaler": {}, "groups": [{"momentum": 0.9}], "evaluated_step": 0,
        "scores": {"top1": 0.5, "top5": None, "loss": 2.0, "images": 7}, "classes": ["a", "b"], "trained_side": 16,
        "identity": {"model": "resnet20", "image_size": 16, "simulated": False, "recipe": {"epochs": 3.0}},
    }  # fmt: skip
    return [json.dumps(state).encode()]


def _finals() -> list[bytes]:
    facts = {"model": "resnet20", "image_size": 16, "classes": ["a", "b"], "steps": 3, "simulated": False}
    header = {"__metadata__": {"headrace": json.dumps(facts)}, "x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}
    text = json.dumps(header).encode()
    return [struct.pack("<Q", len(text)) + text + bytes(4)]


OPERATION_WORDS = (
    *JSON_WORDS,
    *(f'"{name}"'.encode() for name, *_ in operation_schema()),
    b"0",
    b"0.5",
    b"1e-300",
    b"255",
    b"4294967295",
)
TOML_WORDS = (*JSON_WORDS, b"[[cells]]\n", b"[published]\n", b" = ", b'"""', b"\\u0000", b"inf", b"1979-05-27", b"0x", b"a.b.c")

LISTS = (b"l0\t1.0\ta.jpg\n1\t2\tb.jpg\n", b'cpath,label\na.jpg,cat\n"b",\n', b"tpath\tlabel\na.jpg\t1.0\n")
PAX = (b"x20 path=a/other.jpg\n9 size=9\n", b"La/a/long/name.jpg\0", b"x27 GNU.sparse.name=a.jpg\n\n")
OPTIONS = b'epochs = 3\nmodel = "resnet50"\nclasses = ["a"]\n'
EXPERIMENT = b"""title = "t"
question = "q"
[[cells]]
loader = ["headrace", "pytorch"]
load = [1, 4]
[[published]]
where = {loader = "pytorch"}
seconds_per_epoch = 3.5
"""
FINISHED = ("headrace.launch.finished_job.documents", "headrace.launch.finished_job.diagnose")
_REQUEST = json.dumps({
    "TrainingJobName": "job", "RoleArn": "arn:aws:iam::123456789012:role/r",
    "AlgorithmSpecification": {"TrainingImage": "123456789012.dkr.ecr.us-east-1.amazonaws.com/a:1", "TrainingInputMode": "File",
                               "MetricDefinitions": [{"Name": "a", "Regex": "a=(.*)"}]},
    "InputDataConfig": [{"ChannelName": "train", "DataSource": {"S3DataSource": {
        "S3DataType": "S3Prefix", "S3Uri": "s3://bucket/train", "S3DataDistributionType": "FullyReplicated"}}}],
    "OutputDataConfig": {"S3OutputPath": "s3://bucket/out"}, "HyperParameters": {"epochs": "3"},
    "ResourceConfig": {"InstanceType": "ml.g5.xlarge", "InstanceCount": 1, "VolumeSizeInGB": 50},
    "StoppingCondition": {"MaxRuntimeInSeconds": 3600, "MaxWaitTimeInSeconds": 7200}, "EnableManagedSpotTraining": True,
    "CheckpointConfig": {"S3Uri": "s3://bucket/checkpoints"}, "Environment": {"A": "b"},
}).encode()  # fmt: skip
_DESCRIPTION = json.dumps({
    "TrainingJobName": "job", "TrainingJobStatus": "Completed", "BillableTimeInSeconds": 600,
    "HyperParameters": {"epochs": "3"},
    "ResourceConfig": {"InstanceType": "ml.g5.xlarge", "InstanceCount": 1}, "EnableManagedSpotTraining": True,
    "TrainingStartTime": 1700000100.0, "TrainingEndTime": "2023-11-14T22:25:00+00:00", "predicted_s": 500,
    "SecondaryStatusTransitions": [
        {"Status": "Starting", "StartTime": 1700000000.0, "EndTime": 1700000100.0},
        {"Status": "Training", "StartTime": 1700000100.0, "EndTime": 1700000700.0}],
    "FinalMetricDataList": [{"MetricName": "train:images_per_second", "Value": 900.0}],
    "AlgorithmSpecification": {"ContainerEntrypoint": ["python", "-m", "headrace.launch.entry"]},
}).encode()  # fmt: skip
_TRACE = json.dumps({"deviceProperties": [{"name": "A100", "totalGlobalMem": 4}], "distributedInfo": {"rank": 1},
                     "traceEvents": [
    {"ph": "X", "cat": kind, "name": name, "pid": 7, "ts": 5e6 + 100 * number + at, "dur": length}
    for number in range(3)
    for name, at, length, kind in (
        (f"ProfilerStep#{number}", 0, 100, "user_annotation"), ("enumerate(DataLoader)#x", 1, 30, "user_annotation"),
        ("sgemm", 31, 40, "kernel"), ("Memcpy HtoD", 40, 3, "gpu_memcpy"), ("ncclAllReduce", 60, 9, "kernel"))
]}).encode()  # fmt: skip
_TUNED = b'{"ingest": [{"img_s": 800.5, "threads": 2}], "compute_img_s": 350.0, "ranks": 1}'
_ROWS = b'{"rows": [{"ingest_img_s": 90, "workers": 3, "compute_img_s": 40.5, "simulated": false}]}'
_RUN = b'{"kind": "a", "predicted_s": 3, "observed_s": 4.5}'
_METRICS = json.dumps({"MetricDataResults": [
    {"Id": "a", "Label": f"algo-1 {name}", "Timestamps": [1700000160.0 + 60 * at for at in range(6)],
     "Values": [9.0 * share] * 6}
    for name, share in (("CPUUtilization", 40), ("GPUUtilization", 5), ("MemoryUtilization", 3))
]}).encode()  # fmt: skip
TRAINING = (
    "torch",
    "headrace.training.weights.checkpoint",
    "headrace.training.weights.saved_state",
    "headrace.training.weights.trained_weights",
)

TARGETS = {
    "pax_headers": Target(pax_headers, lambda: PAX, TAR_WORDS),
    "tar_headers": Target(tar_headers, _archives, TAR_WORDS),
    "recordio_index": Target(recordio_index, lambda: (b"0\t0\n1\t48\n2\t120\n", b"7\t48\n"), LIST_WORDS),
    "recordio_file": Target(recordio_file, lambda: (b"".join(_records()), recordio(b'{"a": 1}')), (b"\x0a\x23\xd7\xce",)),
    "tfrecord_example": Target(
        tfrecord_example,
        lambda: (example(image__encoded=IMAGE, image__class__label=3), field(1, b"x"), example(a=1 << 62)),
    ),
    "lists": Target(lists, lambda: LISTS, LIST_WORDS),
    "packed_manifest": Target(packed_manifest, _manifests, JSON_WORDS),
    "packed_index": Target(packed_index, _indexes, JSON_WORDS),
    "folder_record": Target(folder_record, _folder_records, JSON_WORDS),
    "session": Target(session, lambda: (_session_lines(),), JSON_WORDS),
    "diagnosis": Target(diagnosis, _diagnoses, JSON_WORDS),
    "trace": Target(trace, lambda: (_TRACE, b"z" + _TRACE), JSON_WORDS),
    "checkpoint_state": Target(checkpoint_state, _states, JSON_WORDS, TRAINING),
    "checkpoint_files": Target(checkpoint_files, lambda: (b'{"sha256": "00"}\n{"version": 1}',), JSON_WORDS, TRAINING),
    "weights": Target(weights, _finals, JSON_WORDS, TRAINING),
    "request": Target(
        request,
        lambda: (_REQUEST,),
        JSON_WORDS,
        ("headrace.launch.job_request.validate", "headrace.launch.job_request.request_code"),
    ),
    "finished_job": Target(finished_job, lambda: (_DESCRIPTION, b"m" + _METRICS), JSON_WORDS, FINISHED),
    "finished_run": Target(finished_run, lambda: (_RUN, _DESCRIPTION), JSON_WORDS),
    "measured_rates": Target(measured_rates, lambda: (_TUNED, _ROWS), JSON_WORDS),
    "options_file": Target(options_file, lambda: (OPTIONS,), TOML_WORDS, ("headrace.training.settings.options_file",)),
    "experiment": Target(experiment, lambda: (EXPERIMENT,), TOML_WORDS),
    "operations": Target(operations, _operations, OPERATION_WORDS),
}
