"""Packing with threads of this process.

Threads suffice: reading, re-encoding, checksums and writing release the interpreter's lock. One thread writes in the order of
the plan, so the bytes do not depend on the number of threads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from headrace.packing.encoding.image_encoder import ImageEncoder
from headrace.packing.engines.engine import OnProgress
from headrace.packing.engines.unit import PackedRecords, UnitWriter, pack_chunk
from headrace.packing.engines.work import WorkFolder
from headrace.packing.planning.listing import Listing, Rejection
from headrace.packing.planning.options import PackOptions
from headrace.packing.planning.pack_plan import PackPlan

__all__ = ["LocalEngine", "chunks"]

# Most records and source bytes of a chunk: enough to amortise its overhead (about 50 µs), few enough for all workers.
_CHUNK = 256
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class LocalEngine:
    """An engine with a pool of `workers` threads."""

    encoder: ImageEncoder
    options: PackOptions
    workers: int

    def pack_units(
        self,
        part: str,
        listing: Listing,
        plan: PackPlan,
        units: Sequence[int],
        work: WorkFolder,
        on_progress: OnProgress,
    ) -> None:
        """Pack the units one after the other, their records in a pool of threads. Arguments as in `Engine`."""
        with (
            ThreadPoolExecutor(self.workers, thread_name_prefix="headrace-pack") as pool,
            ThreadPoolExecutor(1, thread_name_prefix="headrace-digest") as digester,
        ):
            try:
                results = self._in_order(pool, listing, plan, units)
                for number in units:
                    expected = plan.cuts[number + 1] - plan.cuts[number]
                    with work.open_part(number) as file:
                        writer = UnitWriter(file, listing, digester)
                        while writer.seen < expected:
                            before = writer.size
                            on_progress(writer.add(next(results), self.options), writer.size - before)
                        digest = writer.end()
                        change_digest = listing.change_digest(*plan.rows(number))
                        columns = writer.columns()
                        work.finish(number, change_digest, file, columns, digest, writer.rejected, writer.unmarked)
            finally:
                pool.shutdown(cancel_futures=True)

    def _in_order(
        self, pool: ThreadPoolExecutor, listing: Listing, plan: PackPlan, units: Sequence[int]
    ) -> Iterator[list[PackedRecords | Rejection]]:
        """Yield packed records in the plan's order; hold at most a few chunks for each worker in memory."""
        window: deque[Future[list[PackedRecords | Rejection]]] = deque()
        for number in units:
            for chunk in chunks(listing, plan.cuts[number], plan.cuts[number + 1]):
                window.append(pool.submit(pack_chunk, listing, self.encoder, chunk))
                if len(window) > 3 * self.workers:
                    yield window.popleft().result()
        while window:
            yield window.popleft().result()


def chunks(listing: Listing, begin: int, end: int) -> Iterator[range]:
    """Yield the positions from `begin` to `end` in ranges of `_CHUNK` records or about `_CHUNK_BYTES` source bytes."""
    ends = np.cumsum(listing.sizes[begin:end])
    at, count = 0, end - begin
    while at < count:
        limit = (int(ends[at - 1]) if at else 0) + _CHUNK_BYTES
        until = min(int(np.searchsorted(ends, limit)) + 1, at + _CHUNK, count)
        yield range(begin + at, begin + until)
        at = until
