"""Error messages in Python, and `repr()` of a dataset, mask the secrets of a URL, as the command line does."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import headrace
import pytest
from headrace.datasets.records.dataset import Dataset
from headrace.errors import HeadraceError, SourceError
from headrace.system.text.foreign_errors import public_cause

PLACES = [
    "https://me:planted@127.0.0.1:9/data",
    "https://127.0.0.1:9/data/train.tar?X-Amz-Signature=planted",
    "s3://me:planted@bucket/data",
    "nosuch://me:planted@host/x",
]


@pytest.mark.parametrize("place", PLACES)
def test_an_error_and_its_traceback_show_no_secret(place: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for action in (headrace.open, headrace.verify):
        try:
            action(place)
        except HeadraceError as error:
            assert "planted" not in str(error) + str(error.hint)
            raised = "".join(traceback.format_exception(error, chain=True))
            own = [line for line in raised.splitlines() if "planted" in line and "action(place)" not in line]
            assert not own
        else:
            raise AssertionError("nothing is there")


def test_every_error_of_ours_masks_urls_in_message_and_hint() -> None:
    error = SourceError("https://me:planted@host/x is gone", hint="try https://host/x?sig=planted")
    assert str(error) == "https://me:***@host/x is gone"
    assert error.hint == "try https://host/x?sig=***"
    assert public_cause(OSError("GET https://me:planted@host/x failed")) is None
    assert public_cause(plain := OSError("no such file")) is plain


def test_the_text_of_a_dataset_shows_no_secret(image_folder: Callable[..., Path]) -> None:
    data: Dataset = replace(headrace.open(image_folder()), root="https://me:planted@host/data?sig=planted")
    with headrace.Loader(data, 1, headrace.transforms.imagenet_eval(8), shuffle=False) as loader:
        of_loader = (repr(loader), loader._repr_html_(), loader.explain())
    for text in (repr(data), str(data), data._repr_html_(), *of_loader):
        assert "planted" not in text
        assert "host/data" in text
