"""Check that the other end of each connection between ranks belongs to this run, on a machine that other users share.

The ranks of our launcher meet in a private folder, so nobody else reads where they listen. But gloo takes whoever connects to a
port first for the peer that it waits for, and any user of the machine may connect to a port. So each pair of ranks exchanges a
code over its own connection before any value: it depends on a secret of the folder and on who sends it to whom, so what one
rank has sent convinces no other.
"""

from __future__ import annotations

import hashlib
import hmac
from datetime import timedelta

from headrace.errors import HeadraceError

__all__ = ["check_members"]

_BYTES = hashlib.sha256().digest_size


def check_members(secret: bytes, run: str, rank: int, world_size: int, *, timeout_s: float) -> None:
    """Raise HeadraceError unless every connection of this rank leads to a rank that knows `secret`. All ranks call this.

    `run`: a name that no other run has.
    """
    import torch
    from torch import distributed

    others = [other for other in range(world_size) if other != rank]
    received = {other: torch.zeros(_BYTES, dtype=torch.uint8) for other in others}
    waiting = [distributed.irecv(received[other], other) for other in others]
    sent = [torch.frombuffer(bytearray(_code(secret, run, rank, other)), dtype=torch.uint8) for other in others]
    waiting += [distributed.isend(code, other) for code, other in zip(sent, others, strict=True)]
    for work in waiting:
        if work is not None:
            work.wait(timedelta(seconds=timeout_s))
    for other in others:
        if not hmac.compare_digest(received[other].numpy().tobytes(), _code(secret, run, other, rank)):
            raise HeadraceError(
                f"rank {rank}: a process that does not belong to this run answers in the place of rank {other}",
                hint="another user of this machine may be interfering; start the run again",
            )


def _code(secret: bytes, run: str, sender: int, receiver: int) -> bytes:
    return hmac.digest(secret, f"{run}:{sender}:{receiver}".encode(), "sha256")
