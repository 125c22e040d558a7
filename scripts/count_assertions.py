"""Print the number of assertions in Python tests, for each folder given.   python scripts/count_assertions.py [FOLDER …]

Counted are `assert`, `pytest.raises`, `pytest.warns`, `pytest.fail`, and `assert_*` of `numpy.testing` and `torch.testing`.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent


def is_assertion(node: ast.AST) -> bool:
    """Return whether a node of the syntax tree checks something."""
    if isinstance(node, ast.Assert):
        return True
    if not isinstance(node, ast.Call):
        return False
    called = ast.unparse(node.func)
    return called in ("pytest.raises", "pytest.warns", "pytest.fail") or ".testing.assert_" in called


def count(folder: Path) -> int:
    """Return the number of assertions in all Python files below a folder."""
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in folder.rglob("*.py"))
    return sum(is_assertion(node) for tree in trees for node in ast.walk(tree))


def main() -> int:
    """Print one line for each folder."""
    for name in sys.argv[1:] or [str(REPOSITORY / "tests")]:
        print(f"{count(Path(name)):,} assertions in {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
