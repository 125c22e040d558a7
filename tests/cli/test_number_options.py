"""A word that is no number is refused in plain words, whichever verb and option has it."""

from __future__ import annotations

import pytest
from headrace.cli.main import main


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["diagnose", "--seconds", "abc", "--", "true"], "argument --seconds: 'abc' is not a positive number"),
        (["diagnose", "--seconds", "0", "--", "true"], "argument --seconds: '0' is not a positive number"),
        (["watch", "1", "--every", "nan"], "argument --every: 'nan' is not a positive number"),
        (["cost", "--budget", "much"], "argument --budget: 'much' is not a positive number"),
        (["cost", "--images", "1.5"], "argument --images: '1.5' is not a whole number of 1 or more"),
        (["cost", "--objects", "many"], "argument --objects: 'many' is not a whole number of 1 or more"),
        (["cost", "--img-s", "100,x"], "argument --img-s: 'x' is not a positive number"),
        (["cost", "--spot-discount", "60%"], "argument --spot-discount: '60%' is not a share from 0 to below 1"),
        (["launch", "sagemaker", "--max-hours", "abc"], "argument --max-hours: 'abc' is not a positive number"),
        (["run", "--threads", "abc", "--", "true"], "argument --threads: 'abc' is not a whole number of 1 or more"),
        (["run", "--data-map", "abc", "--", "true"], "argument --data-map: 'abc' is not A=B"),
        (["pack", "a", "b", "--shard-size", "abc"], "argument --shard-size: 'abc' is not a size"),
        (["train", "--steps", "abc"], "argument --steps: 'abc' is not a whole number"),
        (["tune", "--seconds", "abc"], "argument --seconds: 'abc' is not a number"),
    ],
)
def test_a_word_that_is_no_number_is_named_in_plain_words(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert message in capsys.readouterr().err
