"""How the ranks of one attempt find each other in a store that still holds the keys of an earlier attempt.

torchrun keeps one store over all its restarts. torch 2.15 gives restarted processes the same keys in it (a comment in its
rendezvous.py promises a new store, which is no longer true). gloo and NCCL then read the addresses of dead processes, and fail
or wait for them. TORCHELASTIC_RESTART_COUNT does not help: agents on several machines count restarts differently.
"""

from __future__ import annotations

import hashlib
import time
import uuid
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from torch.distributed import Store

__all__ = ["agree_on_group_name"]

POLL_S = 0.02


def agree_on_group_name(store: Store, rank: int, world_size: int, *, timeout_s: float) -> str:
    """Return a name that exactly the `world_size` processes of this attempt share, and no earlier attempt had.

    Every process publishes a random token. Rank 0 proposes a name made of the tokens it reads. If a token was that of a dead
    process, its successor replaces it and rank 0 proposes again. A name is final when the owners of all its tokens agree.
    Raises HeadraceError after `timeout_s`, naming the ranks that are missing.
    """
    token = uuid.uuid4().hex
    store.set(_token_key(rank), token)
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
                store.set(_agreed_key(name, rank), "1")
            if rank == 0 and store.check([_agreed_key(name, other) for other in range(world_size)]):
                store.set(f"{name}/settled", "1")
            if store.check([f"{name}/settled"]):
                return name
        time.sleep(POLL_S)
    raise HeadraceError(
        f"rank {rank} of {world_size} waited {timeout_s:.0f} s for {_missing(store, proposed, rank, world_size)}",
        hint="read the output of that process; all must be started, and reach MASTER_ADDR:MASTER_PORT",
    )


def _tokens(store: Store, world_size: int) -> list[str]:
    return [_read(store, _token_key(rank)) for rank in range(world_size)]


def _read(store: Store, key: str) -> str:
    """Return a value, or "" if there is none: `get` alone would wait."""
    return store.get(key).decode() if store.check([key]) else ""


def _token_key(rank: int) -> str:
    return f"here/{rank}"


def _agreed_key(name: str, rank: int) -> str:
    return f"{name}/agreed/{rank}"


def _missing(store: Store, proposed: str, rank: int, world_size: int) -> str:
    others = [other for other in range(world_size) if other != rank]
    absent = [other for other in others if not store.check([_agreed_key(proposed, other) if proposed else _token_key(other)])]
    return f"rank {', '.join(map(str, absent))}" if absent else "the others to agree on a beginning"
