"""The two stages in which a whole loader is recognised: its dataset as folders of images, then the code of its items."""

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
    """Return what `use` makes of the first stage that recognises the loader, and that `use` does not refuse.

    The code of items is planned only where the rules of folders do not hold. Raise `Unsupported` with the reasons of both.
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
    """Return one refusal of two: that of a folder dataset, and that of the code of its items.

    The second one is added where the first one only says that code is not known.
    """
    first, second = str(refusal), str(further)
    if first in second or second in first or not isinstance(refusal, UnknownCode):
        return refusal
    return Unsupported(f"{first}, and {second}", refusal.remedy or further.remedy)
