"""Prints the requirements of headrace with one extra, one a line (pip cannot install only those)."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path


def requirements(extra: str) -> list[str]:
    """Return the requirements of `extra`, with `headrace[a,b]` entries replaced by their own requirements."""
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]

    def expand(names: list[str]) -> list[str]:
        lines: list[str] = []
        for name in names:
            for requirement in extras[name]:
                if requirement.startswith("headrace["):
                    lines += expand(requirement.removeprefix("headrace[").rstrip("]").split(","))
                else:
                    lines.append(requirement)
        return lines

    return list(dict.fromkeys(project["dependencies"] + expand([extra])))


if __name__ == "__main__":
    print("\n".join(requirements(sys.argv[1])))
