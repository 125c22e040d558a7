"""What hostile code of a script counts with: how often Python has run it."""

from __future__ import annotations

SEEN = [0]


def seen() -> int:
    """Count one more run; return how many there were."""
    SEEN[0] += 1
    return SEEN[0]
