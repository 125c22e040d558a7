"""What headrace understands of a DataLoader, for one iterator of it.

Each stage runs once, when it is first asked for: planning items, for instance, only where the rules for folders do not hold.
The way that takes the loader over is given what it found. The next iterator has a recognition of its own, because scripts
change their transforms between epochs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cached_property
from typing import Any, TypeVar

from headrace.accelerate.runtime.unsupported import Refusal, Unsupported, attempt, required
from headrace.accelerate.script.quiet_files import require_quiet_files
from headrace.accelerate.script.replaced_functions import require_no_module_hooks
from headrace.accelerate.script_code.hf_datasets import rows_at_once
from headrace.accelerate.script_code.own_transforms import Tracer
from headrace.accelerate.transforms.pointwise import tabulate
from headrace.accelerate.transforms.translate import translate
from headrace.accelerate.whole.first_transform import FirstTransform, first_transform
from headrace.accelerate.whole.folders import (
    CollateKind,
    FolderDataset,
    Locate,
    RecognisedLoader,
    collate_kind,
    locate,
    one_transform,
    require_batches_of_indices,
    require_fixed_size,
    require_native_endings,
    require_native_values,
    require_no_code_of_targets,
    require_no_pixel_limit,
    require_plain_indices,
    require_seeding_only,
    require_settings_of_workers,
    require_unwatched_iterators,
    sampled_paths,
)
from headrace.accelerate.whole.items import RecognisedItems, recognise_items

__all__ = ["Recognition"]

Recognised = RecognisedLoader | RecognisedItems
Result = TypeVar("Result")


class Recognition:
    """What is understood of a loader, stage by stage. A stage that is refused is a `Refusal`; `None`: the rules hold."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self._trace = Tracer()

    @cached_property
    def watchers(self) -> Refusal | None:
        """Whether code of the script or of a package looks inside torch's iterators."""
        return attempt(require_unwatched_iterators)

    @cached_property
    def worker_init(self) -> Refusal | None:
        """Whether the `worker_init_fn` only seeds random generators."""
        return attempt(lambda: require_seeding_only(self.loader))

    @cached_property
    def settings(self) -> Refusal | None:
        """The rules on the loader's own settings, which hold whatever its dataset is."""
        return attempt(self._settings)

    @cached_property
    def located(self) -> tuple[Locate, tuple[FolderDataset, ...]] | Refusal:
        """The folder datasets inside the loader's dataset, and where each index lies in them."""
        return attempt(self._located)

    @cached_property
    def collate(self) -> CollateKind | Refusal:
        """The kind of the collate function."""
        return attempt(lambda: collate_kind(self.loader.collate_fn))

    @cached_property
    def folders(self) -> RecognisedLoader | Refusal:
        """The loader as one over folders of images (`folders`): all rules hold."""
        return attempt(self._folders)

    @cached_property
    def items(self) -> RecognisedItems | Refusal:
        """The loader as one whose items can be planned from their code (`items`)."""
        return attempt(self._items)

    @cached_property
    def first_transforms(self) -> tuple[FirstTransform, ...] | Refusal:
        """The first transform of each folder dataset, which native decode can apply in the script's own workers."""
        return attempt(self._first_transforms)

    def first_that_fits(self, use: Callable[[Recognised], Result]) -> Result | Refusal:
        """Return `use(…)` of the loader as one over folders, or of its items where one of these is refused.

        The code of the dataset is only looked into where the rules of folders do not hold. `use` may raise `Unsupported`. If
        both are refused: a refusal with both reasons.
        """
        folders = _used(self.folders, use)
        if not isinstance(folders, Refusal):
            return folders
        items = _used(self.items, use)
        if isinstance(items, Refusal) and rows_at_once(self.loader.dataset, ()) is None:
            return _both(folders, items)
        return items  # of rows only the code of the items could be understood

    def _settings(self) -> None:
        require_batches_of_indices(self.loader)
        required(self.watchers)
        require_no_pixel_limit()
        required(self.worker_init)

    def _located(self) -> tuple[Locate, tuple[FolderDataset, ...]]:
        folders: list[FolderDataset] = []
        find = locate(self.loader.dataset, folders, kept=self.loader.num_workers > 0)
        return find, tuple(folders)

    def _folders(self) -> RecognisedLoader:
        required(self.settings)
        find, folders = required(self.located)
        require_plain_indices(self.loader.dataset)
        collate: CollateKind = required(self.collate)
        require_no_code_of_targets(folders)
        parts = translate(one_transform(folders), self._trace)
        require_settings_of_workers(self.loader, own_transforms=self._trace.is_used)
        require_fixed_size(parts)
        paths = sampled_paths(folders)
        require_native_endings(paths)
        require_quiet_files(paths)
        values = tabulate(parts.pointwise)
        require_native_values(values, collate)
        return RecognisedLoader(folders, find, parts, values, collate)

    def _items(self) -> RecognisedItems:
        required(self.settings)
        return recognise_items(self.loader, self.collate, self._trace)

    def _first_transforms(self) -> tuple[FirstTransform, ...]:
        if isinstance(self.loader.dataset, sys.modules["torch.utils.data"].IterableDataset):
            raise Unsupported("its dataset is iterable, without indices")
        require_no_module_hooks()
        required(self.watchers)  # the changed copy of the dataset is in the iterator
        required(self.worker_init)
        return tuple(map(first_transform, required(self.located)[1]))


def _used(found: Recognised | Refusal, use: Callable[[Recognised], Result]) -> Result | Refusal:
    return found if isinstance(found, Refusal) else attempt(lambda: use(found))


def _both(folders: Refusal, items: Refusal) -> Refusal:
    """Join two refusals into one: that of a folder dataset, and that of the code of its items.

    The second one is added where the first one only says that code is not known.
    """
    if items.text in folders.text or folders.text in items.text or folders.kind != "code":
        return folders
    return Refusal(f"{folders}, and {items}", folders.remedy or items.remedy)
