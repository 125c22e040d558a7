"""Packing to an object store: the dataset is packed in the cache folder, then uploaded, the manifests last."""

from __future__ import annotations

import hashlib
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from headrace.datasets.shards.manifest import MANIFEST
from headrace.datasets.sources.archives.container_index_cache import cache_folder
from headrace.datasets.sources.remote.store import Bucket
from headrace.errors import UsageError
from headrace.system.files.private_cache import make_cache_folder

__all__ = ["check_free", "staging_folder", "upload"]

_UPLOADS = 4  # concurrent files; each is sent in parts by several connections


def staging_folder(url: str) -> Path:
    """Make and return the folder in which a dataset for `url` is packed, always the same: an interrupted pack continues.

    Raises SourceError if another user owns the folder or may write into it: what is there would be uploaded.
    """
    folder = cache_folder() / "pack" / hashlib.sha256(url.rstrip("/").encode()).hexdigest()[:32]
    return make_cache_folder(folder)


def check_free(bucket: Bucket, parts: list[str], staging: Path) -> None:
    """Raise UsageError if one of the parts ("" or train, val, test) is already a packed dataset.

    A part with the same manifest in the folder `staging` is allowed: its upload was interrupted.
    """
    for part in parts:
        there = bucket.read(f"{part}/{MANIFEST}".lstrip("/"))
        made = staging / part / MANIFEST
        if there is not None and not (made.exists() and made.read_bytes() == there):
            raise UsageError(f"{bucket.url}/{part} already holds a packed dataset", hint="give another prefix, or delete it")


def upload(bucket: Bucket, folder: Path) -> None:
    """Upload everything in `folder`, then delete it. A reader never sees a manifest before the files that it describes."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    for last in (False, True):
        chosen = [path for path in files if (path.name == MANIFEST) == last]
        with ThreadPoolExecutor(_UPLOADS, thread_name_prefix="headrace-upload") as pool:
            list(pool.map(lambda path: bucket.write(path.relative_to(folder).as_posix(), path), chosen))
    shutil.rmtree(folder)
