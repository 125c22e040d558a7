# ruff: noqa: PTH100, PTH112, PTH118, PTH120 -- runs in every Python below the command; pathlib would cost each 5 ms
"""Python itself runs this file in each process of a command that `headrace.attach.launch.spawn` has started.

It removes its folder from `sys.path` (PYTHONPATH keeps it, for child processes), starts `headrace.attach.record.load_hooks`
and `ending`, and runs the `sitecustomize` that this file hides, if there is one. The user's Python may be another environment
without headrace, so the package is then loaded from the folder of this file.
"""

import importlib.machinery
import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _run_hidden_sitecustomize() -> None:
    """Run the next `sitecustomize` on the path, which this file hides."""
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


def _start_headrace() -> None:
    """Start `headrace.attach.record.load_hooks`, from this copy of the package if it travelled, or no other is installed."""
    package = os.path.dirname(os.path.dirname(_HERE))
    lacking = os.path.join(os.path.dirname(package), "lacking")
    travelled = os.path.isdir(lacking)  # to a job's container, with what its image may lack: another headrace there is not ours
    if travelled:
        sys.path.append(lacking)
    if travelled or importlib.util.find_spec("headrace") is None:
        spec = importlib.util.spec_from_file_location(
            "headrace", os.path.join(package, "__init__.py"), submodule_search_locations=[package]
        )
        if spec is None or spec.loader is None:
            raise ImportError(f"no package at {package}")
        module = importlib.util.module_from_spec(spec)
        sys.modules["headrace"] = module
        spec.loader.exec_module(module)
    from headrace.attach.record import ending, load_hooks

    load_hooks.start()
    ending.start()


def _tell(error: BaseException) -> None:
    """Say on stderr, in the session, and in the output of a job that this process runs without headrace, and why."""
    import json

    number, why = os.getpid(), f"{type(error).__name__}: {error}"
    print(f"headrace: process {number} runs plain: {why}", file=sys.stderr)
    line = {"kind": "not_measured", "what": "training steps, because a hook of headrace failed", "why": why}
    session, plain = os.environ.get("HEADRACE_SESSION_DIR"), os.environ.get("HEADRACE_PLAIN_FILE")
    for path, text in (
        (session and os.path.join(session, f"plain-{number}.jsonl"), json.dumps(line)),
        (plain, f"process {number}: {why}"),
    ):
        try:
            if path:
                with open(os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600), "a", encoding="utf-8") as file:
                    file.write(text + "\n")
        except OSError:
            pass


sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != _HERE]

if os.environ.get("HEADRACE_HOOKS"):
    try:
        _start_headrace()
    except BaseException as error:  # fail open: the user's script comes first
        _tell(error)

_run_hidden_sitecustomize()
