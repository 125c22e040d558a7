"""Names of files and classes as text: printable on a terminal, valid UTF-8 in files, and back again."""

from __future__ import annotations

import os

import pytest
from headrace.report.drawing.markup import embedded_json, tag
from headrace.system.text.printable import printable, printable_lines
from headrace.system.text.utf8 import name_from_utf8, utf8_name, utf8_text

ACTIVE = ["\x1b[2J", "\r", "\x9b31m", "\u202e", "\x7f", "\x00", "\u2066", "\u200f", "\u2028", "\udcff", "\x85"]


@pytest.mark.parametrize("active", ACTIVE)
def test_active_characters_become_escapes(active: str) -> None:
    for shown in (printable(f"a{active}b"), printable_lines(f"a{active}b"), tag("p", f"a{active}b", title=active)):
        assert shown.isprintable() and active[0] not in shown and "\\" in shown
        shown.encode()


def test_ordinary_text_stays() -> None:
    text = "naïve 日本語 \t 😀 C:\\x"
    assert printable(text) == printable_lines(text) == text
    assert printable("a\nb") == "a\\nb"
    assert printable_lines("a\nb") == "a\nb"


def test_embedded_json_has_no_active_characters() -> None:
    import json

    value = {"name": "a\u202e\x1b[2J\r\\u202e\\\\x\n\udce9é"}
    assert json.loads(embedded_json(value))["name"] == "a\\u202e\\u001b[2J\\r\\u202e\\\\x\n\\udce9é"


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"caf\xe9", "caf%E9"),
        (b"100%", "100%"),
        (b"50%41", "50%41"),
        (b"%E9", "%25E9"),
        (b"%25", "%2525"),
        (b"%\xe9%", "%%E9%"),
        (b"%2\xff5", "%2%FF5"),
        ("ü".encode(), "ü"),
    ],
)
def test_bytes_that_are_not_utf8_come_back(raw: bytes, text: str) -> None:
    name = os.fsdecode(raw)
    assert utf8_name(name) == text
    assert name_from_utf8(text) == name


def test_names_in_utf8_form_are_all_different_and_valid() -> None:
    pieces = [b"%", b"2", b"5", b"E", b"9", b"\xe9", b"F"]
    names = {os.fsdecode(a + b + c + d) for a in pieces for b in pieces for c in pieces for d in pieces}
    forms = {utf8_name(name) for name in names}
    assert len(forms) == len(names)
    assert {name_from_utf8(form) for form in forms} == names
    "".join(forms).encode()


def test_texts_without_such_bytes_stay() -> None:
    assert utf8_text("s3://bucket/%E4%B8.jpg") == "s3://bucket/%E4%B8.jpg"
    assert utf8_text("a\udcff%E4") == "a%FF%25E4"
    assert utf8_text("\ud83d") == "%ED%A0%BD"
