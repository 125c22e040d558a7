"""How the ranks of one attempt find each other in a store that still holds what an earlier attempt left there.

torchrun keeps one store over all its restarts. torch 2.15 gives every restarted process the same keys in it ("a new store for
every retry" says its rendezvous.py, which is no longer so), so gloo and NCCL read the addresses of processes that are dead,
and fail or wait for them. TORCHELASTIC_RESTART_COUNT is no remedy: agents on several machines count restarts differently.
"""

from __future__ import annotations

import hashlib
import time
import uuid
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from torch.distributed import Store

__all__ = ["meet"]

POLL_S = 0.02


def meet(store: Store, rank: int, world_size: int, *, timeout_s: float) -> str:
    """A name that exactly the `world_size` processes of this attempt share; no earlier attempt had it.

    Every process shows a token of its own. Rank 0 proposes a name made of the tokens it sees, and proposes anew while one of
    them turns out to be of a dead process, replaced by its successor's; a name counts when every owner of a token in it has
    agreed. Raises HeadraceError, naming the ranks that did not come, after `timeout_s`.
    """
    token = uuid.uuid4().hex
    store.set(_here(rank), token)
    deadline_s = time.monotonic() + timeout_s
    proposed = ""
    while time.monotonic() < deadline_s:
        tokens = _tokens(store, world_size) if rank == 0 else _read(store, "proposal").split(",")
        if len(tokens) == world_size and all(tokens) and tokens[rank] == token:
            name = hashlib.sha256(",".join(tokens).encode()).hexdigest()[:16]
            if proposed != name:
                proposed = name
                if rank == 0:
                    store.set("proposal", ",".join(tokens))
                store.set(_agreed(name, rank), "1")
            if rank == 0 and store.check([_agreed(name, other) for other in range(world_size)]):
                store.set(f"{name}/settled", "1")
            if store.check([f"{name}/settled"]):
                return name
        time.sleep(POLL_S)
    raise HeadraceError(
        f"rank {rank} of {world_size} waited {timeout_s:.0f} s for {_missing(store, proposed, rank, world_size)}",
        hint="see what that process says; all must be started, and reach MASTER_ADDR:MASTER_PORT",
    )


def _tokens(store: Store, world_size: int) -> list[str]:
    return [_read(store, _here(rank)) for rank in range(world_size)]


def _read(store: Store, key: str) -> str:
    """A value, or nothing where there is none: `get` alone would wait."""
    return store.get(key).decode() if store.check([key]) else ""


def _here(rank: int) -> str:
    return f"here/{rank}"


def _agreed(name: str, rank: int) -> str:
    return f"{name}/agreed/{rank}"


def _missing(store: Store, proposed: str, rank: int, world_size: int) -> str:
    others = [other for other in range(world_size) if other != rank]
    absent = [other for other in others if not store.check([_agreed(proposed, other) if proposed else _here(other)])]
    return f"rank {', '.join(map(str, absent))}" if absent else "the others to agree on a beginning"
