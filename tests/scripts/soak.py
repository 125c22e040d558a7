"""Public training scripts, unmodified, plain and under `headrace run`, twice each: nothing may differ but what the guide names.

    python tests/scripts/soak.py FOLDER [--only TEXT] [--keep] [--work FOLDER] [--results FILE]

FOLDER holds clones of public repositories, FOLDER/OWNER+NAME or FOLDER/OWNER/NAME: git folders (bare or not), or their files
alone. scripts.toml lists repository, commit, command, data. A script runs in a fresh copy of its repository, on generated data,
with stand-ins for a GPU and for what would take minutes (environment/). An entry whose repository or package is absent is
skipped, and a line says so. The guide is docs/guides/run.md.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import inspect
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import zlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "helpers"))

from layouts import LAYOUTS  # noqa: E402 -- after its own helpers are on the path
from outcomes import IGNORED, Outcome, differences, digests, lines  # noqa: E402

TABLE = HERE / "scripts.toml"
LIMIT_S = 400
RUN = ("-m", "headrace", "run", "--")


@dataclass(frozen=True, slots=True)
class Script:
    """An entry of the table.

    - command: arguments of Python. `{data}`, `{out}` and `{repository}` are folders, `{port}` is a port.
    - folder: where it is started, below the repository. path: folders below the repository that it imports from.
    - cuda: it needs to see a GPU. steps: it ends after so many `backward()`, 0: by itself. needs: packages.
    - links: folders of data where the script looks for them. files: the user's own configuration, name -> text.
    - tried: false where nobody has seen the plain script end with exit code 0 yet; left out unless asked for by `--untried`.
    - environment: variables, for the script or for stand_ins.py.
    """

    name: str
    repository: str
    command: tuple[str, ...]
    data: str
    commit: str = ""
    folder: str = "."
    tried: bool = True
    cuda: bool = False
    steps: int = 0
    needs: tuple[str, ...] = ()
    path: tuple[str, ...] = ()
    links: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)


def table() -> list[Script]:
    """Return the entries of scripts.toml."""
    rows = tomllib.loads(TABLE.read_text())["script"]
    turned = [{name: tuple(value) if isinstance(value, list) else value for name, value in row.items()} for row in rows]
    return [Script(**row) for row in turned]


def repository_folder(folder: Path, repository: str) -> Path | None:
    """Return the clone of a repository, None where there is none."""
    candidates = (folder / repository.replace("/", "+"), folder / repository)
    return next((candidate for candidate in candidates if candidate.is_dir()), None)


def copy_repository(source: Path, commit: str, target: Path) -> None:
    """Write the files of a repository at a commit. Files alone are copied as they are."""
    git = next(
        (path for path in (source / ".git", source / "repo" / ".git", source / "repo", source) if (path / "HEAD").is_file()),
        None,
    )
    if git is None:
        shutil.copytree(source, target, symlinks=True)
        return
    target.mkdir(parents=True)
    command = ["git", "--git-dir", str(git), "--work-tree", str(target), "checkout", "-q", "-f", commit, "--", "."]
    environment = os.environ | {"GIT_INDEX_FILE": str(target.parent / "index")}
    subprocess.run(command, env=environment, capture_output=True, check=False)  # a snapshot may lack its largest files


RUNNING: set[int] = set()
"""The process groups of the scripts that run."""


def end_all(*_: object) -> None:
    """End the scripts that run, and this process."""
    for group in list(RUNNING):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
    os._exit(1)


class Soak:
    """The runs of one entry, one after the other, each in the folder `now`: the paths that a script prints are the same."""

    def __init__(self, script: Script, source: Path, work: Path, python: str) -> None:
        self.script, self.source, self.python = script, source, python
        self.port = 20_000 + zlib.crc32(script.name.encode()) % 10_000
        self.root = work / "".join(letter if letter.isalnum() else "-" for letter in script.name)
        self.root.mkdir(parents=True, exist_ok=True)
        for name in ("now", "original", "cache"):
            shutil.rmtree(self.root / name, ignore_errors=True)
        copy_repository(source, script.commit, self.root / "original")

    def plain(self, name: str) -> Outcome:
        """Return a plain run: an earlier one of the same entry and data, if the work folder has one (see `--fresh`)."""
        kept, key = self.root / name, repr((self.script, inspect.getsource(LAYOUTS[self.script.data])))
        if (kept / "entry").is_file() and (kept / "entry").read_text() == key:
            return collect(kept)
        outcome = self.run(name, ())
        if outcome.code == 0:
            (kept / "entry").write_text(key)
        return outcome

    def run(self, name: str, start: Sequence[str], **more: str) -> Outcome:
        """Run the script by `python START COMMAND`, keep its folder as `name`, and return what it left."""
        now = self.root / "now"
        shutil.copytree(self.root / "original", now / "repository", symlinks=True)
        for folder in ("data", "out", "home", "log"):
            (now / folder).mkdir()
        LAYOUTS[self.script.data](now / "data")
        place = now / "repository" / self.script.folder
        places = {f"{{{name}}}": str(now / name) for name in ("data", "out", "repository")} | {"{port}": str(self.port)}
        for path, text in self.script.files.items():
            (place / path).parent.mkdir(parents=True, exist_ok=True)
            (place / path).write_text(_filled(text, places))
        for path, target in self.script.links.items():
            (place / path).parent.mkdir(parents=True, exist_ok=True)
            if (place / path).is_dir() and not (place / path).is_symlink():
                shutil.rmtree(place / path)
            (place / path).unlink(missing_ok=True)
            (place / path).symlink_to(_filled(target, places))
        arguments = [_filled(word, places) for word in self.script.command]
        command = [self.python, *start, self.python, *arguments] if start else [self.python, *arguments]
        before = time.monotonic()
        code = self._wait(command, place, self._environment(now, places) | more)
        (now / "ended").write_text(json.dumps({"code": code, "seconds": time.monotonic() - before}))
        shutil.rmtree(self.root / name, ignore_errors=True)
        now.rename(self.root / name)
        return collect(self.root / name)

    def _environment(self, now: Path, places: Mapping[str, str]) -> dict[str, str]:
        paths = [HERE / "environment", *(now / "repository" / path for path in self.script.path)]
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HEADRACE", "PYTHON", "SOAK"))}
        own = {
            "PYTHONPATH": os.pathsep.join([*map(str, paths), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "PYTHONHASHSEED": "0",
            "PYTHONDONTWRITEBYTECODE": "1",
            "HOME": str(now / "home"),
            "XDG_CACHE_HOME": str(now / "home/.cache"),
            "HEADRACE_CACHE": str(self.root / "cache"),
            "SOAK_LOG": str(now / "log"),
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
            "MKL_CBWR": "COMPATIBLE",
            "CUDA_VISIBLE_DEVICES": "",
            "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1",
            "HF_HUB_OFFLINE": "1",
            "WANDB_MODE": "disabled",
            "NO_ALBUMENTATIONS_UPDATE": "1",
            "YOLO_OFFLINE": "1",
            "MPLBACKEND": "Agg",
            "PATH": os.pathsep.join([str(HERE / "environment/bin"), os.environ["PATH"]]),
            "GLOO_SOCKET_IFNAME": "lo",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self.port),
            "COLUMNS": "200",
        }
        if self.script.cuda:
            own["SOAK_CUDA"] = "1"
        if self.script.steps:
            own["SOAK_STEPS"] = str(self.script.steps)
        return kept | own | {name: _filled(value, places) for name, value in self.script.environment.items()}

    def _wait(self, command: list[str], place: Path, environment: Mapping[str, str]) -> int | None:
        """Return the exit code; a run past the limit is ended with its children, code None. The output goes to two files."""
        now = self.root / "now"
        with (now / "stdout.txt").open("wb") as out, (now / "stderr.txt").open("wb") as err:
            process = subprocess.Popen(
                command, cwd=place, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
            )
            RUNNING.add(process.pid)
            code: int | None
            try:
                code = process.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                code = None
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            RUNNING.discard(process.pid)
        return code


def collect(folder: Path) -> Outcome:
    """Return what a run left in its folder."""
    kept, ours = lines((folder / "stdout.txt").read_text(errors="replace"))
    errors, ours_too = lines((folder / "stderr.txt").read_text(errors="replace"))
    logs = {path.name: path.read_text().splitlines() for path in (folder / "log").iterdir()}
    own = ("log/", "stdout.txt", "stderr.txt", "ended", "entry")
    files = {path: value for path, value in digests(folder).items() if not path.startswith(own)}
    ended = json.loads((folder / "ended").read_text())
    return Outcome(ended["code"], kept, errors, logs, files, ours + ours_too, ended["seconds"])


def _filled(text: str, places: Mapping[str, str]) -> str:
    for name, value in places.items():
        text = text.replace(name, value)
    return text


def missing_packages(script: Script) -> list[str]:
    """Return the packages of an entry that this Python lacks."""
    return [name for name in script.needs if importlib.util.find_spec(name) is None]


def try_script(
    script: Script, source: Path, work: Path, python: str, *, keep: bool, once: bool, runs: int
) -> dict[str, object]:
    """Run an entry plain, and twice under `headrace run`: the second time lazy images pay in any case.

    Where a run differs, a second plain one tells what is the script's own.
    """
    soak = Soak(script, source, work, python)
    plain = [soak.plain("plain-1")]
    if once or plain[0].code:
        error = plain[0].err[-1:] if plain[0].code else ""
        said = f"plain exit {plain[0].code}, {plain[0].seconds:.1f} s, {_agreeing(plain * 2)} model calls {error}"
        return {"name": script.name, "once": said, "differences": {}}
    environments: list[dict[str, str]] = [{}, {"SOAK_LAZY_PAYS": "1"}]
    ours = [soak.run(f"run-{number}", RUN, **more) for number, more in enumerate(environments[:runs], 1)]
    if any(differences(plain * 2, each) for each in ours):  # what differs may be the script's own
        plain.append(soak.plain("plain-2"))
    else:
        plain *= 2
    found = {f"run {number}": differences(plain, each) for number, each in enumerate(ours, 1)}
    result = {
        "name": script.name,
        "codes": [each.code for each in (*plain, *ours)],
        "seconds": [round(each.seconds, 1) for each in (*plain, *ours)],
        "taken": [each.taken for each in ours],
        "model_calls": sum(len(each) for each in plain[0].logs.values()),
        "compared_calls": _agreeing(plain),
        "compared_files": sum(plain[0].files.get(name) == value for name, value in plain[1].files.items()),
        "lines": ours[0].ours,
        "differences": found,
    }
    if not keep and not any(found.values()):
        for number in range(1, runs + 1):
            shutil.rmtree(soak.root / f"run-{number}")
    return result


def _not_run(script: Script, error: BaseException) -> dict[str, object]:
    """The result of an entry that the harness could not run."""
    return {"name": script.name, "once": f"not run: {error!r}", "differences": {"harness": [repr(error)]}}


def _agreeing(plain: Sequence[Outcome]) -> int:
    """How many model calls both plain runs agree in, up to the first that differs in each process."""
    count = 0
    for name in set(plain[0].logs) & set(plain[1].logs):
        for one, two in zip(plain[0].logs[name], plain[1].logs[name], strict=False):
            if one != two:
                break
            count += 1
    return count


def say(result: Mapping[str, object]) -> None:
    """Print one entry's lines."""
    if "once" in result:
        print(f"{result['name']}: {result['once']}", flush=True)
        return
    found = result["differences"]
    assert isinstance(found, dict)
    state = "DIFFERS" if any(found.values()) else "equal"
    print(
        f"{state:8} {result['name']}: exit {result['codes']}, {result['taken']}, {result['compared_calls']} of"
        f" {result['model_calls']} model calls and {result['compared_files']} files compared, {result['seconds']} s",
        flush=True,
    )
    for name, each in found.items():
        for line in each[:12]:
            print(f"         {name}: {line}")
        if len(each) > 12:
            print(f"         {name}: {len(each) - 12} more")


def main() -> int:
    """Run the table. Exit code 1 where a script differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "folder", type=Path, nargs="?", default=os.environ.get("HEADRACE_SCRIPTS"), help="clones (HEADRACE_SCRIPTS)"
    )
    parser.add_argument("--only", action="append", default=[], help="entries whose name contains this text")
    parser.add_argument("--untried", action="store_true", help="only the entries that are not tried yet")
    parser.add_argument("--once", action="store_true", help="only one plain run of each: for new entries")
    parser.add_argument("--runs", type=int, default=2, choices=(1, 2), help="runs under headrace run of each entry")
    parser.add_argument("--fresh", action="store_true", help="run plain again: stand-ins, helpers or packages have changed")
    parser.add_argument("--keep", action="store_true", help="keep the folders of all runs, not only of those that differ")
    parser.add_argument("--ignore", action="append", default=[], help="a pattern of output lines that are not compared")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "headrace-soak")
    parser.add_argument("--results", type=Path, help="write everything as JSON")
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    if arguments.folder is None or not Path(arguments.folder).is_dir():
        print("test-scripts: skipped: no folder of public repositories (HEADRACE_SCRIPTS=FOLDER make test-scripts)")
        return 0
    entries = [script for script in table() if script.tried is not arguments.untried]
    chosen = [script for script in entries if not arguments.only or any(text in script.name for text in arguments.only)]
    IGNORED.extend(map(re.compile, arguments.ignore))
    if arguments.fresh:
        shutil.rmtree(arguments.work, ignore_errors=True)
    ready = []
    for script in chosen:
        source, missing = repository_folder(Path(arguments.folder), script.repository), missing_packages(script)
        if source is None or missing:
            print(f"skipped  {script.name}: no {script.repository if source is None else ', '.join(missing)}")
        else:
            ready.append((script, source))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end_all)
    results = []
    with ThreadPoolExecutor(arguments.jobs) as pool:
        tries = {
            pool.submit(
                try_script, *pair, arguments.work, sys.executable, keep=arguments.keep, once=arguments.once, runs=arguments.runs
            ): pair[0]
            for pair in ready
        }
        for future in as_completed(tries):
            error = future.exception()  # of the harness: the other entries go on
            results.append(future.result() if error is None else _not_run(tries[future], error))
            say(results[-1])
            if arguments.results:
                arguments.results.write_text(json.dumps(results, indent=1))
    different = sum(any(result.get("differences", {}).values()) for result in results)  # type: ignore[attr-defined]
    print(f"test-scripts: {len(results)} scripts, {different} differ, {len(chosen) - len(ready)} skipped")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
