"""`make fuzz`: every target runs for its time, a finding fails the whole, what is missing is installed. cargo is a stand-in."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
TARGETS = sorted(path.stem for path in (REPOSITORY / "fuzz" / "fuzz_targets").glob("*.rs"))
CARGO = """#!/usr/bin/env bash
echo "$*" >> "$CALLS"
case "$*" in
    "fuzz --version") [ -e "$CALLS.installed" ] ;;
    "install "*) touch "$CALLS.installed" ;;
    "fuzz build") mkdir -p fuzz/target/x86_64-unknown-linux-gnu/release
        printf '#!/bin/sh\\nexit 0\\n' > fuzz/target/x86_64-unknown-linux-gnu/release/seeds
        chmod +x fuzz/target/x86_64-unknown-linux-gnu/release/seeds ;;
    "fuzz run $FAILS "*) exit 77 ;;
esac
"""


def fuzz(
    folder: Path, *words: str, fails: str = "", installed: bool = True
) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Run a copy of the scripts in `folder`; return the result and the calls of cargo."""
    shutil.copytree(REPOSITORY / "fuzz", folder / "fuzz", ignore=shutil.ignore_patterns("target", "corpus", "artifacts"))
    (folder / "bin").mkdir()
    for name, text in (("cargo", CARGO), ("rustc", "#!/bin/sh\necho host: x86_64-unknown-linux-gnu\n")):
        (folder / "bin" / name).write_text(text)
        (folder / "bin" / name).chmod(0o755)
    calls = folder / "calls"
    calls.touch()
    if installed:
        Path(f"{calls}.installed").touch()
    environment = os.environ | {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "CALLS": str(calls), "FAILS": fails}
    command = [str(folder / "fuzz" / "all.sh"), *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=100)
    return done, calls.read_text().splitlines()


def test_every_target_runs_for_its_time(tmp_path: Path) -> None:
    done, calls = fuzz(tmp_path, "7")
    assert done.returncode == 0 and "no findings" in done.stdout, done.stderr
    runs = [call for call in calls if call.startswith("fuzz run")]
    assert [call.split()[2] for call in runs] == TARGETS and len(TARGETS) >= 8
    assert all("-max_total_time=7" in call and "-runs=-1" in call for call in runs)
    assert not any(call.startswith("install") for call in calls)


def test_a_finding_fails_the_whole_but_the_other_targets_run(tmp_path: Path) -> None:
    done, calls = fuzz(tmp_path, fails=TARGETS[0])
    assert done.returncode == 1 and f"findings in {TARGETS[0]};" in done.stderr
    assert sum(call.startswith("fuzz run") for call in calls) == len(TARGETS)
    assert any("-max_total_time=60" in call for call in calls)


def test_cargo_fuzz_is_installed_where_it_is_missing(tmp_path: Path) -> None:
    done, calls = fuzz(tmp_path, "1", installed=False)
    assert done.returncode == 0 and "install --quiet --locked cargo-fuzz" in calls


@pytest.mark.parametrize("wrong", ["0", "-3", "soon", "1.5"])
def test_a_wrong_time_is_refused(tmp_path: Path, wrong: str) -> None:
    done, calls = fuzz(tmp_path, wrong)
    assert done.returncode == 2 and "usage" in done.stderr and not calls


def test_every_target_is_built_and_explained() -> None:
    manifest = (REPOSITORY / "fuzz" / "Cargo.toml").read_text()
    page = (REPOSITORY / "docs" / "fuzzing.md").read_text(encoding="utf-8")
    for target in TARGETS:
        assert f'name = "{target}"' in manifest and f"| `{target}` |" in page
