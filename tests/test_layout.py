"""The package's shape: imports flow one way, exported names exist, importing it is light."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from pathlib import Path

import headrace
import pytest

PACKAGE = Path(headrace.__file__).parent

# The staircase of folders: a folder imports only from folders above it in this list, and from itself. The order is that of
# folders; no file has a rank of its own. `errors` and `_native` are the ground, the package's face is the top.
ORDER = [
    "errors",
    "_native",
    "system",
    "images",
    "session",
    "transforms",
    "datasets",
    "attach",
    "diagnosis",
    "packing",
    "gpu",
    "loading",
    "inspection",
    "accelerate",
    "training",
    "report",
    "profiling",
    "cost",
    "trials",
    "launch",
    "demo",
    "callbacks",
    "cli",
    "__main__",
]

# The same inside a folder that has rooms: a room imports only from rooms above it, the modules beside the rooms are the top.
ROOMS = {
    "accelerate": ["runtime", "workers", "script", "transforms", "script_code", "whole", "lazy", "deferred"],
    "attach": ["machine", "record", "training", "experiments", "batches"],
    "cli": ["shared", "data", "profile", "train", "cloud"],
    "cost": ["market", "estimates"],
    "datasets": ["records", "shards", "sources"],
    "datasets.sources": ["folders", "archives", "remote"],
    "diagnosis": ["result", "measure", "rules", "fixes", "endings", "findings"],
    "gpu": ["preparation", "decoder", "augmentation"],
    "launch": ["sagemaker", "in_container", "job_request", "own_code", "local", "finished_job"],
    "loading": ["statistics", "order", "feeding", "batches"],
    "packing": ["planning", "encoding", "engines"],
    "report": ["text", "sessions", "drawing", "pages", "exports"],
    "system": ["text", "files", "processes", "hardware"],
    "training": ["distributed", "models", "settings", "weights", "logs", "learning", "inputs", "tune"],
    "trials": ["experiment", "inputs", "measuring", "results", "pages"],
}

OTHER_NAMES = {"json"}
"""Strings `headrace.NAME` that name no module: `headrace.json` is a file."""

MOST_MODULES = 12
"""A folder holds at most this many modules of its own level."""


@functools.cache
def modules() -> dict[str, Path]:
    """Dotted names below `headrace` (without it) and their files."""
    names: dict[str, Path] = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        if "site" in parts or "templates" in parts:
            continue  # runs inside the user's process, imported by path
        names[".".join(part for part in parts if part != "__init__")] = path
    names.pop("", None)
    return names


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@functools.cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(tree(path)))


def imports(path: Path) -> set[str]:
    """Own modules that a file imports, inside functions and for a type checker too."""
    found = set()
    for node in nodes(path):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "headrace":
            base = node.module.removeprefix("headrace").removeprefix(".")
            for alias in node.names:
                joined = f"{base}.{alias.name}".removeprefix(".")
                found.add(joined if joined in modules() or not base else base)
        elif isinstance(node, ast.Import):
            found |= {alias.name.removeprefix("headrace.") for alias in node.names if alias.name.startswith("headrace.")}
    return found


@functools.cache
def graph() -> dict[str, set[str]]:
    known = modules()
    return {name: {target for target in imports(path) if target in known and target != name} for name, path in known.items()}


def test_no_import_cycles() -> None:
    edges = graph()
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join((*trail, name))
        if name not in done:
            for target in sorted(edges[name]):
                visit(target, (*trail, name))
            done.add(name)

    for name in edges:
        visit(name, ())


def test_imports_flow_one_way() -> None:
    """Every folder in the package has a place in ORDER, and imports from places above it only."""
    for name, targets in graph().items():
        folder = name.split(".")[0]
        assert folder in ORDER, f"headrace.{name}: {folder} has no place in ORDER"
        for target in targets:
            above = target.split(".")[0]
            assert ORDER.index(above) <= ORDER.index(folder), (
                f"headrace.{name} imports headrace.{target}, which is further down"
            )


@pytest.mark.parametrize("folder", ROOMS)
def test_imports_between_the_rooms_of_a_folder_flow_one_way(folder: str) -> None:
    """Each folder inside has a place in ROOMS, unless it holds no modules. Modules beside the rooms may import all of them."""
    rooms = ROOMS[folder]
    path = PACKAGE.joinpath(*folder.split("."))
    found = {one.name for one in path.iterdir() if one.is_dir() and (one / "__init__.py").exists() and one.name != "site"}
    assert found == set(rooms)

    def place(name: str) -> int:
        room = name.removeprefix(f"{folder}.").split(".")[0]
        return rooms.index(room) if room in rooms else len(rooms)

    for name, targets in graph().items():
        for target in targets:
            if name.startswith(f"{folder}.") and target.startswith(f"{folder}."):
                assert place(target) <= place(name), f"headrace.{name} imports headrace.{target}, which is further down"


def test_each_folder_with_rooms_has_an_order_and_no_folder_is_crowded() -> None:
    for folder in [path.parent for path in PACKAGE.rglob("__init__.py")]:
        name = ".".join(folder.relative_to(PACKAGE).parts)
        has_rooms = any((one / "__init__.py").exists() for one in folder.iterdir() if one.is_dir() and one.name != "site")
        assert not has_rooms or not name or name in ROOMS, f"headrace.{name} has rooms without an order in ROOMS"
        own = [one for one in folder.glob("*.py") if one.name != "__init__.py"]
        assert len(own) <= MOST_MODULES, f"headrace.{name} holds {len(own)} modules; give them rooms"


def test_dotted_names_in_strings_exist() -> None:
    """`sys.modules.get("headrace.…")` becomes None after a move, and nothing else tells."""
    named = re.compile(r"headrace(\.[a-z_]+)+")
    for path in PACKAGE.rglob("*.py"):
        for node in nodes(path):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and named.fullmatch(node.value):
                name = node.value.removeprefix("headrace.")
                known = name in modules() or name in OTHER_NAMES or name.split(".")[0] == "_native"
                assert known, f"{path}, line {node.lineno}: {node.value} does not exist"


def test_nothing_imports_the_package_face() -> None:
    """`from headrace import X` runs the face, the top of the staircase; only users do that."""
    for name, path in modules().items():
        for node in nodes(path):
            if isinstance(node, ast.ImportFrom):
                assert node.module != "headrace", f"headrace.{name}, line {node.lineno}: import from the module that defines it"
            elif isinstance(node, ast.Import):
                assert "headrace" not in [alias.name for alias in node.names], f"headrace.{name}, line {node.lineno}"


def test_the_root_holds_the_face_only() -> None:
    allowed = {"__init__.py", "__main__.py", "_native.pyi", "errors.py", "py.typed"}
    found = {path.name for path in PACKAGE.iterdir() if path.is_file() and not path.name.startswith("_native.abi3")}
    assert found <= allowed, f"move into a folder: {sorted(found - allowed)}"


def test_no_folder_bears_the_name_of_a_public_function() -> None:
    """Importing a module below such a folder would put the folder in the place of the function."""
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir()}
    assert not folders & {"watch", "pack", "verify", "open"}


LONGEST_MODULE, LONGEST_FUNCTION = 600, 60


def test_modules_and_functions_stay_short() -> None:
    """Lines of a function count from its signature to its end, docstring included."""
    for name, path in modules().items():
        text = path.read_text()
        assert text.count("\n") <= LONGEST_MODULE, f"headrace.{name}: {text.count(chr(10))} lines; split it by concept"
        for node in nodes(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                assert length <= LONGEST_FUNCTION, f"headrace.{name}.{node.name}: {length} lines; split it by step"


def test_what_runs_in_the_users_process_imports_the_standard_library_only() -> None:
    own = [*PACKAGE.joinpath("attach").rglob("*.py"), *PACKAGE.joinpath("session").rglob("*.py")]
    used: set[str] = set()
    for path in own:  # grows: modules of other folders that these use count too
        for target in sorted(imports(path) & set(modules()) - used):
            used.add(target)
            own += [modules()[target]] if modules()[target] not in own else []
    assert {"system.hardware.cgroup", "system.hardware.gpm", "system.hardware.nvml"} <= used
    assert {target.split(".")[0] for target in used} <= {"attach", "session", "system", "errors"}, used
    for path in own:
        for node in tree(path).body:
            names = (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
            for name in names:
                top = name.split(".")[0]
                assert top == "headrace" or top in sys.stdlib_module_names, f"{path} imports {name}"


def test_exported_names_are_complete_sorted_and_exist() -> None:
    assert headrace.__all__ == sorted(headrace.__all__)
    for name in headrace.__all__:
        assert getattr(headrace, name) is not None
    for name, path in modules().items():
        exported = next(
            (
                ast.literal_eval(node.value)
                for node in tree(path).body
                if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
            ),
            None,
        )
        if exported is not None:
            defined = {
                target
                for node in nodes(path)
                for target in (
                    [node.name]
                    if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef)
                    else [alias.asname or alias.name for alias in node.names]
                    if isinstance(node, ast.ImportFrom | ast.Import)
                    else [ast.unparse(t) for t in node.targets]
                    if isinstance(node, ast.Assign)
                    else [ast.unparse(node.target)]
                    if isinstance(node, ast.AnnAssign)
                    else []
                )
            }
            assert set(exported) <= defined, f"headrace.{name}: {set(exported) - defined}"


def test_importing_headrace_is_light() -> None:
    code = (
        "import sys, headrace; "
        "heavy = {'torch', 'numpy', 'boto3', 'rich', 'PIL', 'torchvision'} & set(sys.modules); "
        "assert not heavy, heavy; print(len([m for m in sys.modules if m.startswith('headrace')]))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) <= 4


def test_test_files_have_unique_names() -> None:
    """pytest imports test files by their base name, so two of one name stop the collection."""
    names = [path.name for path in Path(__file__).parent.rglob("test_*.py")]
    assert len(set(names)) == len(names), sorted(name for name in set(names) if names.count(name) > 1)
