"""Fetch what headrace left in the output of a job: the session and report of each host, and why a host ran plain.

SageMaker keeps the output as objects below `output/`, or packed as `output.tar.gz`, as the request asks.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, cast

from headrace.datasets.sources.archives.tar import TarStream
from headrace.errors import FormatError, SourceError
from headrace.launch.sagemaker.aws import error_code, explained, list_sizes, read_object
from headrace.system.files.atomic_write import atomic_write
from headrace.system.files.private_files import check_below, make_private_folder
from headrace.system.text.size_limits import record_limit, too_large

__all__ = ["fetch_results"]

PACKED = "output.tar.gz"

MOST_FILES = 10_000
"""Read at most this many files: each process of a watched script writes one."""

LONGEST_NAME = 4096
"""A longer name is no file's here; the pattern looks at each folder of one."""

_OURS = re.compile(r"(?:^|/)(headrace-(?:plain-)?[\w.-]+(?:/[\w.-]+)*)$")
"""A file of ours among those of the script: in a folder with the name of a host, or the file of reasons."""

Log = Callable[[str], None]
Sleep = Callable[[float], None]


def fetch_results(s3: Any, description: Mapping[str, Any], folder: Path, *, sleep: Sleep, log: Log) -> list[Path]:
    """Write headrace's files of a finished job's output below `folder`, and return the folders with a session.

    Nothing is made where the job has none. Raises `HeadraceError` where S3 refuses, and for more than a record's bytes.
    """
    uri = str((description.get("OutputDataConfig") or {}).get("S3OutputPath") or "")
    bucket, _, prefix = uri.removeprefix("s3://").strip("/").partition("/")
    below = "/".join(filter(None, (prefix, str(description["TrainingJobName"]), "output"))) + "/"
    keys = [key for key, _ in list_sizes(s3, bucket, below, sleep=sleep, log=log)]
    found = {key: name for key in keys if (name := _own_name(key.removeprefix(below)))}
    kept = _Kept(folder)
    for key, name in found.items():
        kept.write(name, read_object(s3, bucket, key, sleep=sleep, log=log))
    if not found and below + PACKED in keys:
        _unpack(s3, bucket, below + PACKED, kept)
    return sorted({path.parent for path in folder.glob("headrace-*/*.jsonl")})


class _Kept:
    """Files that are written below a folder, up to a record's bytes together."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._bytes, self._files = folder, 0, 0

    def write(self, name: str, data: bytes) -> None:
        self._bytes, self._files = self._bytes + len(data), self._files + 1
        if self._bytes > record_limit():
            raise SourceError(f"the session of the job {too_large(self._bytes, record_limit())}")
        if self._files > MOST_FILES:
            raise SourceError(f"the session of the job has more than {MOST_FILES:,} files")
        path = self._folder / name
        check_below(self._folder, path.parent)  # an earlier report there may have come with somebody else's files
        make_private_folder(path.parent)
        atomic_write(path, data, private=True)


def _own_name(name: str) -> str | None:
    """Return the name of a file of ours from its folder on; None for another file, and for one that leads elsewhere."""
    found = _OURS.search(name) if len(name) <= LONGEST_NAME else None
    return found[1] if found and ".." not in name.split("/") else None


def _unpack(s3: Any, bucket: str, key: str, kept: _Kept) -> None:
    """Write our files of a packed output, of which the rest is passed over: plain files only, no link."""
    try:
        body = s3.get_object(Bucket=bucket, Key=key)["Body"]
        with gzip.open(body) as stream:
            archive = TarStream(Path(PACKED), cast(IO[bytes], stream))
            for member in archive.members():
                if not member.is_file or (name := _own_name(member.name)) is None:
                    continue
                if member.size > record_limit():
                    raise SourceError(f"{name} in s3://{bucket}/{key} {too_large(member.size, record_limit())}")
                kept.write(name, archive.read(member.size))
    except (FormatError, EOFError, OSError, zlib.error) as error:
        raise SourceError(f"s3://{bucket}/{key} is no archive that can be read: {error}") from None
    except SourceError:
        raise
    except Exception as error:  # botocore has a class for each error
        if error_code(error):
            raise explained(error, f"reading s3://{bucket}/{key}") from None
        raise
