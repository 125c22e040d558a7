"""What to type to install headrace or a part of it: no package index has it yet, a checkout and a wheel do."""

from __future__ import annotations

__all__ = ["UPDATE_HINT", "extra_hint"]

UPDATE_HINT = "get a newer headrace: git pull in its checkout and pip install . there, or a newer wheel"


def extra_hint(extra: str) -> str:
    """Return what to type to install an extra of headrace: "train", "aws"."""
    return f"in a checkout of headrace pip install '.[{extra}]', with a wheel pip install 'FILE.whl[{extra}]'"
