"""The keyword arguments of `pack` that editors and type checkers see are complete and documented."""

from __future__ import annotations

import dataclasses
import inspect
import typing

from headrace.packing import PackOptions, pack
from headrace.packing.planning.options import PackKeywords


def test_pack_declares_every_option_with_its_type() -> None:
    declared = typing.get_type_hints(PackKeywords)
    assert declared == typing.get_type_hints(PackOptions)
    assert list(declared) == [field.name for field in dataclasses.fields(PackOptions)]
    assert typing.get_type_hints(pack)["options"] == typing.Unpack[PackKeywords]


def test_the_docstring_of_pack_names_every_argument() -> None:
    words = inspect.getdoc(pack) or ""
    arguments = [name for name in inspect.signature(pack).parameters if name not in ("src", "dst", "options")]
    for name in (*arguments, *typing.get_type_hints(PackKeywords)):
        assert f"{name}:" in words or f"{name}," in words, name
