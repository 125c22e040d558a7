# ruff: noqa: PTH100, PTH101, PTH103, PTH110, PTH112, PTH116, PTH118, PTH119, PTH120, UP006, UP035 -- starts each process of a job, on any Python 3
"""Start the script beside this file under headrace, in the place of this file.

headrace wrote this file into a copy of the script's folder. A launcher that starts it (`python`, torchrun, SageMaker's toolkit)
starts the script: this process becomes the script's, with the same number, arguments and environment, but for the variables by
which headrace attaches itself. A module that imports this file gets the script's names. Where headrace cannot start, the script
runs plain, and a line says why: in the log, and in the job's output.
"""

import contextlib
import importlib
import json
import os
import shlex
import sys
import time
from typing import List

SCRIPT = "§script"
COMMAND = "§command"
UNDER = "§under"
PACKAGE = "§package"

HERE = os.path.dirname(os.path.abspath(__file__))
NAME = os.path.basename(__file__)
TRAVELLED = os.path.join(HERE, ".headrace")

LEAST_PYTHON = (3, 11)
LOCAL_RANKS = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")
"""Variables with the number of a process on its host: of torchrun, Open MPI, Intel MPI and Slurm."""

PLAIN_VARIABLE = "HEADRACE_PLAIN_FILE"
"""Variable with the path of a file in the job's output: a line for each reason why something runs plain."""

PATIENCE_S = 60.0
"""Wait so long for the session that the first rank of this host begins."""


def module_of(file: str) -> str:
    """Return the name by which a file of this folder is imported."""
    return (file[:-3] if file.endswith(".py") else file).replace("/", ".")


def restore_names() -> None:
    """Give the variables of SageMaker's toolkit the name of the script, where they have that of this file."""
    names = {NAME: SCRIPT, module_of(NAME): module_of(SCRIPT), module_of(NAME) + ".sh": SCRIPT}
    for key in ("SM_USER_ENTRY_POINT", "SM_ENTRY_SCRIPT", "SM_MODULE_NAME"):
        if os.environ.get(key) in names:
            os.environ[key] = names[os.environ[key]]
    try:
        training = json.loads(os.environ["SM_TRAINING_ENV"])
        for key in ("user_entry_point", "module_name"):
            training[key] = names.get(training.get(key), training.get(key))
        os.environ["SM_TRAINING_ENV"] = json.dumps(training, separators=(",", ":"), sort_keys=True)
    except (KeyError, ValueError, TypeError, AttributeError):
        pass  # no variable, or one that this file does not know


def script_words() -> List[str]:
    """Return the words with which this process was started, with the script in the place of this file."""
    if COMMAND is not None:
        return ["/bin/bash", "-c", " ".join([COMMAND, *map(shlex.quote, sys.argv[1:])])]
    script = os.path.join(HERE, SCRIPT)
    if SCRIPT.endswith(".sh"):  # its first line names the shell, as where SageMaker's toolkit starts it; else it is that of sh
        with contextlib.suppress(OSError):
            os.chmod(script, os.stat(script).st_mode | 0o111)
        return ["/bin/sh", "-c", 'exec "$0" "$@"', script, *sys.argv[1:]]
    words = [sys.executable, *getattr(sys, "orig_argv", [])[1:]]
    for number, word in enumerate(words):
        if os.path.basename(word) == NAME and os.path.abspath(word) == os.path.join(HERE, NAME):
            words[number] = os.path.join(os.path.dirname(word), SCRIPT)
            return words
        if word == "-m" and words[number + 1 : number + 2] == [module_of(NAME)]:
            words[number + 1] = module_of(SCRIPT)
            return words
    return [sys.executable, script, *sys.argv[1:]]


def output_path(before: str, after: str = "") -> str:
    """Return a path with this host's name in the folder of the job's output, which SageMaker uploads."""
    output = os.environ.get("SM_OUTPUT_DATA_DIR") or "/opt/ml/output/data"
    host = os.environ.get("SM_CURRENT_HOST") or os.uname().nodename
    return os.path.join(output, before + host + after)


def is_first_of_host(folder: str) -> bool:
    """Return whether this process has the sampler and writes the report: the first rank of a host, at its first start."""
    if next((os.environ[name] for name in LOCAL_RANKS if name in os.environ), "0") != "0":
        return False
    os.makedirs(folder, mode=0o700, exist_ok=True)
    try:
        os.close(os.open(os.path.join(folder, ".first"), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        return False
    return True


def keep_reason(words: str) -> None:
    """Add a line to the file that says why the script, or a process of it, runs plain."""
    path = os.environ[PLAIN_VARIABLE]
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "a", encoding="utf-8") as file:
            file.write(words + "\n")
    except OSError:
        pass  # the line in the log is there


def attached(words: List[str]) -> List[str]:
    """Return the words that start the script under headrace; set the variables of its hooks."""
    if sys.version_info < LEAST_PYTHON:
        raise RuntimeError("Python {}.{}, and headrace needs {}.{}".format(*sys.version_info[:2], *LEAST_PYTHON))
    travelled = os.path.isdir(TRAVELLED)
    package = TRAVELLED if travelled else PACKAGE
    sys.path.insert(0, package)
    sys.path.append(os.path.join(package, "lacking"))
    importlib.import_module("headrace._native")
    launch = importlib.import_module("headrace.attach.launch")
    if UNDER == "run":
        hook = importlib.import_module("headrace.accelerate.settings").HOOK
        os.environ.update(launch.attached_environment(None, (hook,)))
        return words
    importlib.import_module("headrace.cli.profile.diagnose")  # what is not there is found before the script is started
    hooks = importlib.import_module("headrace.profiling.command").HOOKS
    folder = output_path("headrace-")
    if is_first_of_host(folder):
        path = "sys.path.insert(0, {!r}); sys.path.append({!r})".format(package, os.path.join(package, "lacking"))
        program = "import sys; " + path + "; from headrace.cli.main import main; sys.exit(main())"
        if travelled:  # headrace starts processes of its own
            os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
        return [sys.executable, "-P", "-c", program, "diagnose", "--out", folder, "--", *words]
    end_s = time.monotonic() + PATIENCE_S
    while not os.path.exists(os.path.join(folder, "launch.jsonl")) and time.monotonic() < end_s:
        time.sleep(0.05)
    os.environ.update(launch.attached_environment(folder, hooks))
    return words


def main() -> None:
    """Become the script."""
    restore_names()
    words = script_words()
    os.environ[PLAIN_VARIABLE] = output_path("headrace-plain-", ".txt")
    try:
        words = attached(words)
    except Exception as error:  # the script comes first
        kind = "" if type(error) is RuntimeError else type(error).__name__ + ": "
        print(f"headrace: {SCRIPT or COMMAND} runs plain: {kind}{error}", file=sys.stderr, flush=True)
        keep_reason(f"{SCRIPT or COMMAND}: {kind}{error}")
    os.execv(words[0], words)


if __name__ == "__main__":
    main()
else:
    _script = vars(importlib.import_module(module_of(SCRIPT)))
    globals().update({name: value for name, value in _script.items() if not name.startswith("__")})
