"""Recognise a loader that can be taken over as a whole: first as folders of images, then by the code of its dataset."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from headrace.accelerate.runtime.unsupported import UnknownCode, Unsupported
from headrace.accelerate.script_code.hf_datasets import rows_at_once
from headrace.accelerate.whole.folders import RecognisedLoader, recognise
from headrace.accelerate.whole.items import RecognisedItems, recognise_items

__all__ = ["first_that_fits"]

Result = TypeVar("Result")


def first_that_fits(loader: Any, use: Callable[[RecognisedLoader | RecognisedItems], Result]) -> Result:
    """Return `use(recognised loader)` for the first of the two recognisers that accepts it and for which `use` does not refuse.

    The code of the dataset is only looked into where the rules of folders do not hold. Raise `Unsupported` with both reasons.
    """
    try:
        return use(recognise(loader))
    except Unsupported as refusal:
        try:
            return use(recognise_items(loader))
        except Unsupported as further:
            if rows_at_once(loader.dataset, ()) is not None:  # only the code of its items could be understood
                raise
            raise _both(refusal, further) from further


def _both(refusal: Unsupported, further: Unsupported) -> Unsupported:
    """Join two refusals into one: that of a folder dataset, and that of the code of its items.

    The second one is added where the first one only says that code is not known.
    """
    first, second = str(refusal), str(further)
    if first in second or second in first or not isinstance(refusal, UnknownCode):
        return refusal
    return Unsupported(f"{first}, and {second}", refusal.remedy or further.remedy)
