"""Complete a release: check what `make release` built, and write SHA256SUMS and NOTES.md beside it.

    python scripts/release.py dist

The notes are the version's entry of CHANGELOG.md. Files of other versions in the folder are an error: a release is one version.
"""

from __future__ import annotations

import hashlib
import re
import sys
import tomllib
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
NOTES, SUMS = "NOTES.md", "SHA256SUMS"


def version_here() -> str:
    """Return the version of this checkout."""
    cargo = tomllib.loads((REPOSITORY / "Cargo.toml").read_text(encoding="utf-8"))
    return str(cargo["workspace"]["package"]["version"])


def files_of(folder: Path, version: str) -> list[Path]:
    """Return wheels and source archive of a version. Exit with a line that says what is missing, or does not belong there."""
    found = sorted(path for path in folder.iterdir() if path.suffix == ".whl" or path.name.endswith(".tar.gz"))
    if strange := [path.name for path in found if not re.match(rf"headrace-{re.escape(version)}[-.]", path.name)]:
        raise SystemExit(f"{folder} holds files of another version than {version}: {', '.join(strange)}; remove them")
    for ending, what in (
        ("x86_64.whl", "wheel for x86-64"),
        ("aarch64.whl", "wheel for aarch64"),
        (".tar.gz", "source archive"),
    ):
        if not any(path.name.endswith(ending) for path in found):
            raise SystemExit(f"{folder} has no {what} of {version}: make release builds it")
    return found


def notes(changelog: str, version: str) -> str:
    """Return the entry of a version, with its heading. Exit with a line where the changelog has none."""
    found = re.search(rf"^## \[{re.escape(version)}\].*?(?=^## \[|\Z)", changelog, re.MULTILINE | re.DOTALL)
    if found is None:
        raise SystemExit(f"CHANGELOG.md has no entry [{version}]: give Unreleased the version and the date")
    return found[0].strip() + "\n"


def main() -> int:
    """Write the two files, and print the checksums."""
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        print(__doc__, file=sys.stderr)
        return 2
    folder = Path(sys.argv[1])
    version = version_here()
    files = files_of(folder, version)
    text = (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8")
    (folder / NOTES).write_text(notes(text, version), encoding="utf-8")
    sums = "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in [*files, folder / NOTES])
    (folder / SUMS).write_text(sums, encoding="utf-8")
    print(sums, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
