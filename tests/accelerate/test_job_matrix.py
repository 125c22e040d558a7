"""Whole jobs under the hook of `headrace run`, beside the same jobs without it: nothing that a script can see differs.

Axes: pairs of loaders and the order in which they are read, generators, start methods and seeds of workers, files that change
or are odd, targets with state or with reducers, the identity of workers, warnings as errors. `make test` runs some of the jobs,
`slow` all others and many more.
"""

from __future__ import annotations

import os
from pathlib import Path

import job_matrix
import pytest
from job_matrix import Job, cases, outcome, started_otherwise
from torch.utils.data import DataLoader

SEED = 31
TORCHS_OWN = DataLoader._get_iterator


def name(job: Job) -> str:
    return "-".join(job)


def require_equal(job: Job, folder: Path, request: pytest.FixtureRequest) -> list[str]:
    """Assert that a job's outcome is plain's. Return the lines of the hook."""
    theirs, ours = folder / "plain" / "images", folder / "run" / "images"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DataLoader, "_get_iterator", TORCHS_OWN)
        plain = outcome(job, theirs)
    lines: list[str] = request.getfixturevalue("taken_over")
    found = outcome(job, ours)
    for one, other in zip(found, plain, strict=True):
        assert repr(one).replace(str(ours), "") == repr(other).replace(str(theirs), "")
    return lines


@pytest.mark.matrix
@pytest.mark.parametrize("job", cases(150, SEED), ids=name)
def test_nothing_differs(job: Job, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    require_equal(job, tmp_path, request)


@pytest.mark.slow
@pytest.mark.parametrize("job", started_otherwise(SEED), ids=name)
def test_nothing_differs_where_workers_are_not_forked(job: Job, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    require_equal(job, tmp_path, request)


@pytest.mark.slow
@pytest.mark.skipif("HEADRACE_TEST_LONG" not in os.environ, reason="takes half an hour: set HEADRACE_TEST_LONG")
@pytest.mark.parametrize("block", range(10))
def test_nothing_differs_in_many_more_jobs(block: int, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    for number, job in enumerate(cases(100, SEED + 1 + block)):
        require_equal(job, tmp_path / str(number), request)


def test_the_matrix_has_loaders_that_are_taken_over_whole(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    job = Job("in turn", "two workers", "default", "folder", "training", "calm", "recorded")
    lines = require_equal(job, tmp_path, request)
    assert any("the same batches, bit for bit" in line for line in lines), lines
    assert job_matrix.COUNT > 6
