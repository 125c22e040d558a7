"""The package's shape: imports flow one way, exported names exist, importing it is light."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import headrace

PACKAGE = Path(headrace.__file__).parent

# A module may import those of its own rank or below. The order of DESIGN §3; what is not listed is ranked by its folder.
RANKS = [
    ("errors", "_native", "interpolation", "extras"),
    ("tfevents", "records", "sizes", "descriptors", "image_header", "machine", "disk", "nvml", "transforms", "stats"),
    ("shards", "sources", "sampler", "blocks", "parts", "restart"),
    ("index_cache", "byte_cache", "batch_transforms"),
    ("planner", "packing", "verification", "inspection", "contact_sheet", "session", "kineto", "decode"),
    ("feed", "lookahead", "streaming", "gpu", "attach"),
    ("views",),
    ("loader",),
    (
        "checkpoint",
        "recipe",
        "evaluation",
        "interruption",
        "devices",
        "blurpool",
        "pretrained",
        "models",
        "weights",
        "training",
        "trainer",
        "inference",
        "export",
        "accelerate",
    ),
    ("diagnosis",),
    ("series", "same_loaders"),
    ("measured",),
    ("steptime", "start_up"),
    ("verdicts",),
    ("predict", "condition", "image_benchmark", "watching", "configuration", "tensorflow_advice", "read_sweep"),
    ("diagnose", "sagemaker_rules", "doctor", "software", "reach"),
    (
        "remeasure",
        "first_verdict",
    ),
    ("report",),
    ("watched", "callbacks"),
    ("tune", "trials", "cost", "launch", "demo"),
    ("cli", "__main__"),
]


def modules() -> dict[str, Path]:
    """Dotted names below `headrace` (without it) and their files."""
    names = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        if "site" in parts or "templates" in parts:
            continue  # runs inside the user's process, imported by path
        names[".".join(part for part in parts if part != "__init__")] = path
    names.pop("")
    return names


def imports(path: Path) -> set[str]:
    """Own modules that a file imports when it is imported (not those under TYPE_CHECKING)."""
    tree = ast.parse(path.read_text())
    guarded = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    found = set()
    for node in ast.walk(tree):
        if id(node) in guarded:
            continue
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "headrace":
            base = node.module.removeprefix("headrace").removeprefix(".")
            for alias in node.names:
                joined = f"{base}.{alias.name}".removeprefix(".")
                found.add(joined if joined in modules() or not base else base)
        elif isinstance(node, ast.Import):
            found |= {alias.name.removeprefix("headrace.") for alias in node.names if alias.name.startswith("headrace.")}
    return found


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
    rank = {name: number for number, names in enumerate(RANKS) for name in names}
    for name, targets in graph().items():
        top = name.split(".")[0]
        assert top in rank, f"headrace.{name}: give it a place in RANKS"
        for target in targets:
            assert rank[target.split(".")[0]] <= rank[top], f"headrace.{name} imports headrace.{target}, which stands above it"


def test_what_runs_in_the_users_process_imports_the_standard_library_only() -> None:
    own = [*PACKAGE.joinpath("attach").rglob("*.py"), PACKAGE / "session.py"]
    assert len(own) > 1
    for path in own:
        for node in ast.parse(path.read_text()).body:
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
        tree = ast.parse(path.read_text())
        exported = next(
            (
                ast.literal_eval(node.value)
                for node in tree.body
                if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
            ),
            None,
        )
        if exported is not None:
            defined = {
                target
                for node in ast.walk(tree)
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
