"""Packing on a Ray cluster: each worker packs whole units in memory, and the driver writes them.

Workers need headrace and access to the source (a shared file system, or a store's URL), but not to the destination: the bytes
of a unit return through Ray's object store. A worker whose node dies is restarted elsewhere and repeats its unit.
"""

from __future__ import annotations

import importlib
import io
import os
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace._native import __version__
from headrace.datasets.open import open_stored
from headrace.datasets.records.dataset import Dataset
from headrace.datasets.shards.index import Columns
from headrace.datasets.sources.remote.store import is_url
from headrace.errors import HeadraceError, MissingDependencyError, SourceError, UsageError
from headrace.packing.encoding.image_encoder import image_encoder
from headrace.packing.engines.engine import OnProgress
from headrace.packing.engines.local import chunks
from headrace.packing.engines.unit import UnitWriter, pack_chunk
from headrace.packing.engines.work import WorkFolder
from headrace.packing.planning.listing import Listing, Rejection, list_records, split
from headrace.packing.planning.options import PackOptions
from headrace.packing.planning.pack_plan import PackPlan
from headrace.system.text.foreign_errors import message_lines
from headrace.system.text.install_hints import extra_hint

__all__ = ["RayEngine"]


@dataclass(frozen=True, slots=True)
class _Unit:
    """A packed unit, returned to the driver."""

    data: bytes
    columns: Columns | None
    digest: str
    rejected: list[Rejection]
    unmarked: int


class _Worker:
    """A process of the cluster that packs units; it lists the source itself, once."""

    def __init__(self, src: str, root: str | None, options: PackOptions, fingerprint: str, version: str) -> None:
        host = os.uname().nodename
        if version != __version__:
            raise HeadraceError(f"{host} has headrace {__version__}, the pack was started by {version}")
        self.options, self.encoder = options, image_encoder(options)
        dataset = open_stored(src, root, list_unreadable=True)
        if dataset.fingerprint != fingerprint:
            raise SourceError(f"{src} holds other records on {host} than where the pack was started")
        self.parts = split(list_records(dataset, options), options)

    def pack(self, part: str, begin: int, end: int) -> _Unit | HeadraceError:
        """Pack one unit. A HeadraceError is returned instead of raised, because Ray wraps exceptions."""
        listing = self.parts[part]
        file = io.BytesIO()
        try:
            with ThreadPoolExecutor(1) as digester:
                writer = UnitWriter(file, listing, digester)
                for chunk in chunks(listing, begin, end):
                    writer.add(pack_chunk(listing, self.encoder, chunk), self.options)
                digest = writer.end()
            return _Unit(file.getvalue(), writer.columns(), digest, writer.rejected, writer.unmarked)
        except HeadraceError as error:
            return error


class RayEngine:
    """An engine on the Ray cluster: the connected one, else the one Ray finds or starts by its own rules (RAY_ADDRESS)."""

    def __init__(
        self,
        src: str | os.PathLike[str] | Dataset,
        root: str | os.PathLike[str] | None,
        options: PackOptions,
        listing: Listing,
        workers: int | None,
    ) -> None:
        if isinstance(src, Dataset):
            raise UsageError("engine ray opens the source on other machines: give its path or URL, not an open dataset")
        self._ray = _ray()
        if not self._ray.is_initialized():
            self._ray.init(log_to_driver=False, logging_level="warning")
        self.workers = workers or max(1, int(self._ray.cluster_resources().get("CPU", 1)))
        where = str(src) if is_url(src) else str(Path(src).expanduser().absolute())
        base = None if root is None else str(root) if is_url(root) else str(Path(root).expanduser().absolute())
        self._arguments = (where, base, options, listing.dataset.fingerprint, __version__)

    def pack_units(
        self,
        part: str,
        listing: Listing,
        plan: PackPlan,
        units: Sequence[int],
        work: WorkFolder,
        on_progress: OnProgress,
    ) -> None:
        """Pack each unit in a Ray actor, and store its shard from this process. Arguments as in `Engine`."""
        if not units:
            return
        make = self._ray.remote(num_cpus=1, max_restarts=-1, max_task_retries=3)(_Worker)
        actors = [make.remote(*self._arguments) for _ in range(min(self.workers, len(units)))]
        idle, waiting = deque(actors), deque(units)
        running: dict[Any, tuple[int, Any]] = {}
        try:
            while waiting or running:
                while waiting and idle:
                    number, actor = waiting.popleft(), idle.popleft()
                    running[actor.pack.remote(part, plan.cuts[number], plan.cuts[number + 1])] = (number, actor)
                ready, _ = self._ray.wait(list(running), num_returns=1)
                number, actor = running.pop(ready[0])
                written = self._finish(number, listing.change_digest(*plan.rows(number)), ready[0], work)
                idle.append(actor)
                on_progress(plan.cuts[number + 1] - plan.cuts[number], written)
        finally:
            for actor in actors:
                self._ray.kill(actor)

    def _finish(self, number: int, change_digest: str, reference: Any, work: WorkFolder) -> int:
        """Write a unit to its place; return its size in bytes."""
        try:
            unit = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            cause = getattr(error, "cause", None)
            if isinstance(cause, HeadraceError):
                raise cause from error
            raise HeadraceError(
                f"a worker on the Ray cluster failed: {message_lines(error)[-1]}",
                hint="every node needs headrace and the same source; give the same command again: it continues",
            ) from error
        if isinstance(unit, HeadraceError):
            raise unit
        with work.open_part(number) as file:
            file.write(unit.data)
            work.finish(number, change_digest, file, unit.columns, unit.digest, unit.rejected, unit.unmarked)
        return len(unit.data)


def _ray() -> Any:
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise MissingDependencyError("Ray is needed for --engine ray", hint=extra_hint("ray")) from error
