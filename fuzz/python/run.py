"""Run one fuzz target of `targets.py`: `run.py TARGET --seconds 60`, or `--executions 300` for a number of inputs.

Inputs are guided by coverage if atheris is installed, as `fuzz/python.sh` does; with `--plain`, or without atheris, they are
seeded mutations of the seeds, the same on every machine. An input that fails stays in fuzz/artifacts, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
LONGEST = 6000  # bytes of an input
LIMIT_S = 10  # one input may take so long; they take milliseconds
LIMIT_BYTES = 1 << 30  # and so much memory above what the process has when it begins
NUMBERS = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 0x7FFFFFFFFFFFFFFF, 0xFFFFFFFFFFFFFFFF)


def mutated(data: bytes, seeds: Sequence[bytes], words: Sequence[bytes], rng: random.Random) -> bytes:
    """Return a changed copy: bytes flipped, pieces removed, doubled or taken from another seed, numbers and words put in."""
    made = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        at = rng.randrange(len(made) + 1)
        end = min(len(made), at + rng.choice((1, 1, 2, 4, 8, 32, 128)))
        way = rng.randrange(9)
        if way <= 1 and at < len(made):
            made[at] = rng.randrange(256) if way else made[at] ^ 1 << rng.randrange(8)
        elif way == 2:
            del made[at:end]
        elif way == 3:
            made[at:at] = made[at:end]
        elif way == 4:
            other = rng.choice(seeds)
            begin = rng.randrange(len(other) + 1)
            made[at:end] = other[begin : begin + rng.choice((4, 16, 64, 512))]
        elif way == 5:
            number = rng.choice(NUMBERS).to_bytes(8, rng.choice(("little", "big")))
            width = rng.choice((1, 2, 4, 8))
            made[at : at + width] = number[:width]
        elif way == 6 and words:
            made[at : rng.choice((at, end))] = rng.choice(words)
        elif way == 7:
            made[at:end] = str(rng.choice((*NUMBERS, -1, 10**19, 10**400))).encode()
        else:
            del made[at:]
    return bytes(made[:LONGEST])


class SlowInputError(Exception):
    """An input took longer than LIMIT_S seconds."""


def _too_slow(number: int, frame: FrameType | None) -> None:
    raise SlowInputError(f"the input took more than {LIMIT_S} s")


def _target(name: str) -> Any:
    """Return a target, with all that it imports: that may take longer than an input."""
    target = importlib.import_module("targets").TARGETS[name]
    for module in target.modules:
        importlib.import_module(module)
    return target


def run_plain(name: str, *, executions: int | None = None, seconds: float | None = None, seed: int = 0) -> int:
    """Run mutated seeds; return the number of inputs. Raises what the target raises; its input is then in fuzz/artifacts."""
    target = _target(name)
    seeds, rng, count = target.seeds(), random.Random(f"{name} {seed}"), 0
    deadline_s = None if seconds is None else time.monotonic() + seconds
    before, timer = signal.signal(signal.SIGALRM, _too_slow), signal.getitimer(signal.ITIMER_REAL)
    with tempfile.TemporaryDirectory() as folder:
        try:
            while (executions is None or count < executions) and (deadline_s is None or time.monotonic() < deadline_s):
                data = seeds[count] if count < len(seeds) else mutated(rng.choice(seeds), seeds, target.words, rng)
                signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
                try:
                    target.run(data, Path(folder))
                except BaseException:
                    _keep(name, data)
                    raise
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
                count += 1
        finally:
            signal.signal(signal.SIGALRM, before)
            signal.setitimer(signal.ITIMER_REAL, *timer)
    return count


def _keep(name: str, data: bytes) -> None:
    artifacts = REPOSITORY / "fuzz" / "artifacts" / "python"
    artifacts.mkdir(parents=True, exist_ok=True)
    path = artifacts / f"{name}-{abs(hash(data)):016x}"
    path.write_bytes(data)
    print(f"fuzz: {name}: the input is in {path}", file=sys.stderr)


def run_guided(name: str, seconds: float | None, executions: int | None) -> None:
    """Run inputs that atheris finds by coverage; never returns."""
    import atheris

    with atheris.instrument_imports(include=["headrace", "targets", "json", "tomllib", "csv"]):
        target = _target(name)
    corpus, artifacts = REPOSITORY / "fuzz/corpus/python" / name, REPOSITORY / "fuzz/artifacts/python"
    corpus.mkdir(parents=True, exist_ok=True)
    artifacts.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(target.seeds()):
        (corpus / f"seed-{number}").write_bytes(data)
    scratch = Path(tempfile.mkdtemp(prefix="headrace-fuzz-"))
    words = scratch / "words"
    words.write_text("".join(_dictionary_line(word[:64]) for word in target.words))
    options = [
        f"-max_len={LONGEST}",
        f"-timeout={LIMIT_S}",
        "-rss_limit_mb=2560",
        f"-artifact_prefix={artifacts}/{name}-",
        *([f"-dict={words}"] if target.words else []),
        "-print_final_stats=1",
        *([f"-max_total_time={seconds:.0f}"] if seconds is not None else []),
        *([f"-atheris_runs={executions}"] if executions is not None else []),
    ]
    atheris.Setup([sys.argv[0], *options, str(corpus)], lambda data: target.run(data, scratch))
    atheris.Fuzz()


def _dictionary_line(word: bytes) -> str:
    """Return an entry of a dictionary of libFuzzer."""
    digits = "".join(f"\\x{byte:02x}" for byte in word)
    return f'"{digits}"\n'


def _limit_memory() -> None:
    """Bound the address space: it counts what is mapped, so what the process has now stands outside the limit."""
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (mapped + LIMIT_BYTES, resource.RLIM_INFINITY))


def main(words: Sequence[str]) -> int:
    """Run the command line. Return 1 after a finding."""
    sys.path[:0] = [str(HERE), str(REPOSITORY / "tests" / "helpers")]
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("target", nargs="?")
    parser.add_argument("--list", action="store_true", help="print the names of all targets")
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--executions", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--input", type=Path, help="run this input only: replays a finding")
    given = parser.parse_args(words)
    if given.list or given.target is None:
        print("\n".join(importlib.import_module("targets").TARGETS))
        return 0
    if given.input is not None:
        with tempfile.TemporaryDirectory() as folder:
            importlib.import_module("targets").TARGETS[given.target].run(given.input.read_bytes(), Path(folder))
        return 0
    if not given.plain and importlib.util.find_spec("atheris") is not None:
        run_guided(given.target, given.seconds, given.executions)
    _target(given.target)
    _limit_memory()
    began_s = time.monotonic()
    try:
        count = run_plain(given.target, executions=given.executions, seconds=given.seconds, seed=given.seed)
    except BaseException:
        traceback.print_exc()
        return 1
    print(f"fuzz: {given.target}: {count:,} executions in {time.monotonic() - began_s:.0f} s, no finding")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
