"""What to type to install headrace or a part of it: no package index has it yet, a checkout and a release's folder do."""

from __future__ import annotations

from headrace._native import __version__

__all__ = ["RELEASES", "UPDATE_HINT", "extra_hint"]

RELEASES = "dist"
"""Where the wheels of releases are, for pip's --find-links: a folder, or the URL of a page that links them."""

UPDATE_HINT = "get a newer headrace: git pull in its checkout and pip install . there, or a newer wheel"


def extra_hint(extra: str) -> str:
    """Return what to type to install an extra of headrace: "train", "aws"."""
    release = f"pip install --find-links {RELEASES} 'headrace[{extra}]=={__version__}'"
    return f"in a checkout of headrace pip install '.[{extra}]', with a release {release}"
