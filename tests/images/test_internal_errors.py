"""A fault of the native module is an error that programs can handle, wherever it happens."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from headrace import _native
from headrace.errors import HeadraceError

BINDINGS = Path(__file__).parents[2] / "crates/headrace-py/src"
GUARDS = ("guarded(", "detached(", "wait_for(")
# They only hand over a field or a number, or follow C's rules for buffers.
TRIVIAL = {
    "__getbuffer__", "__len__", "abandon", "cache_counts", "counters", "counts", "follow_pillow", "groups", "index_bytes",
    "indexes_found", "is_fixed", "layout", "operation_schema", "out", "provoke_panic", "refusals", "rows", "size", "size_bytes",
    "status_names", "statuses",
}  # fmt: skip


@pytest.mark.parametrize("place", ["call", "detached"])
def test_a_panic_becomes_an_error_of_headrace(place: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(HeadraceError, match="internal error in headrace"):
        _native.provoke_panic(place)
    assert "provoked by a test" in capfd.readouterr().err  # its place is needed for a report


def entry_points() -> dict[str, str]:
    """Return the source of each function that Python can call, by its name."""
    found = {}
    for path in BINDINGS.glob("*.rs"):
        source = path.read_text()
        blocks = re.findall(r"^#\[pyfunction\].*?^}", source, re.M | re.S)
        for methods in re.findall(r"^#\[pymethods\]\nimpl.*?^}", source, re.M | re.S):
            blocks += re.findall(r"^    (?:unsafe )?fn .*?^    }", methods, re.M | re.S)
        for block in blocks:
            name = re.search(r"\bfn (\w+)", block)
            assert name
            found[f"{path.stem}.{name[1]}"] = block
    return found


def test_every_entry_point_is_guarded() -> None:
    found = entry_points()
    assert len(found) > 40
    unguarded = [
        name for name, source in found.items() if name.split(".")[1] not in TRIVIAL and not any(g in source for g in GUARDS)
    ]
    assert not unguarded
