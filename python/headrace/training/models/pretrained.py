"""Pretrained weights: from a file, or those of torchvision and timm. Nothing but tensors is unpickled."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

from headrace.errors import MissingDependencyError, StateError, UsageError
from headrace.system.files.regular_file import check_regular
from headrace.system.hardware import machine
from headrace.system.text.size_limits import larger_than

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = ["classifier", "load_pretrained"]

_SAFE_TORCH = (2, 6)
_WRAPPERS = ("state_dict_ema", "model_ema", "state_dict", "model_state_dict", "model")
_OF_DAMAGE = (ValueError, EOFError, LookupError, TypeError, AttributeError, AssertionError, MemoryError)
_PREFIXES = ("module.", "_orig_mod.")  # cut off names of tensors: DistributedDataParallel and torch.compile add these


def load_pretrained(model: nn.Module, source: str, *, name: str) -> str:
    """Load the weights of `source` (a file, or "auto": torchvision's or timm's for `name`) and return a line about them.

    All weights must fit, except those of the last layer, which stays random if its shape differs. Raises StateError naming
    the first that does not fit.
    """
    tensors = _download(name) if source == "auto" else _read(Path(source))
    where = f"the weights that {name} is offered with" if source == "auto" else source
    own = model.state_dict()
    fitting = {key: value for key, value in tensors.items() if key in own and own[key].shape == value.shape}
    head = classifier(model)
    missing = [key for key in own if key not in fitting and not key.endswith("num_batches_tracked")]
    wrong = [key for key in missing if not (head and key.startswith(f"{head}."))]
    if wrong:
        first, shape = wrong[0], "absent"
        if first in tensors:
            shape = f"{tuple(tensors[first].shape)} where {tuple(own[first].shape)} is needed"
        hint = "give weights of the same model; images of up to 64 pixels get another first layer: --image-size 96 or more"
        raise StateError(f"{where} does not fit {name}: {len(wrong)} tensors differ, the first is {first}: {shape}", hint=hint)
    model.load_state_dict(fitting, strict=False)
    random_layer = f"; the last layer, {head}, stays random" if missing and head else ""
    return f"{len(fitting)} of {len(own)} tensors from {where}{random_layer}"


def classifier(model: nn.Module) -> str:
    """Return the name of the model's classifier: its last layer with a weight of two or more dimensions; "" without one."""
    names = [name for name, module in model.named_modules() if any(one.ndim > 1 for one in module.parameters(recurse=False))]
    return names[-1] if names else ""


def _read(path: Path) -> dict[str, torch.Tensor]:
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    hint = "a .safetensors file, or a state_dict saved by torch.save"
    try:
        if path.is_dir():
            raise UsageError(f"--pretrained {path} is a folder", hint=f"{hint}; in a finished run: final.safetensors")
        size = check_regular(path).st_size
        if path.suffix == ".safetensors":
            tensors: dict[str, torch.Tensor] = load_file(path)
            return tensors
        _check_safe_loading(torch.__version__, path)
        _check_unpacked(path, size)
        found: Any = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise UsageError(f"cannot read --pretrained {path}: {error.strerror or error}", hint=hint) from error
    except (SafetensorError, UnpicklingError, RuntimeError, ArithmeticError, *_OF_DAMAGE) as error:
        # torch's own message is left out: it advises to load the file unsafely.
        raise StateError(f"{path} holds no weights that can be read safely ({type(error).__name__})", hint=hint) from error
    for wrapper in _WRAPPERS:
        if isinstance(found, dict) and isinstance(found.get(wrapper), dict):
            found = found[wrapper]
    if not isinstance(found, dict) or not all(torch.is_tensor(value) for value in found.values()):
        raise StateError(f"{path} holds a {type(found).__name__}, not a state_dict", hint=hint)
    return {_plain(str(key)): value for key, value in found.items()}


def _check_safe_loading(version: str, path: Path) -> None:
    """Raise MissingDependencyError where torch's safe loading of pickled tensors can be made to run code (CVE-2025-32434)."""
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if numbers < _SAFE_TORCH:
        raise MissingDependencyError(
            f"{path} is a pickle, which torch {version} cannot read safely: 2.6 is the first that can",
            hint="pip install 'torch>=2.6', or give a .safetensors file",
        )


def _check_unpacked(path: Path, size: int) -> None:
    """Raise StateError for weights that take more memory than the file has bytes, or than there is.

    torch.save stores its entries as they are, but torch.load unpacks compressed ones, too: 100 MB may hold 100 GB.
    """
    if size > (limit := machine.memory().free_bytes):
        raise StateError(f"{path} {larger_than(size, limit)}", hint="a machine with more memory reads it")
    if not zipfile.is_zipfile(path):
        return
    try:
        with zipfile.ZipFile(path) as packed:
            entries = packed.infolist()
    except zipfile.BadZipFile as error:
        raise StateError(f"{path} is no whole archive of torch.save: {error}", hint="fetch it again") from error
    if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries) or sum(one.file_size for one in entries) > size:
        raise StateError(f"{path} is compressed, as torch.save never does it", hint="load it yourself, and save it again")


def _plain(key: str) -> str:
    for prefix in _PREFIXES:
        key = key.removeprefix(prefix)
    return key


def _download(name: str) -> dict[str, torch.Tensor]:
    """Return torchvision's default weights of the model, else timm's. Raise StateError if they cannot be downloaded."""
    try:
        from torchvision import models

        if name in models.list_models(module=models):
            return dict(models.get_model(name, weights="DEFAULT", progress=False).state_dict())
        import timm

        return dict(timm.create_model(name, pretrained=True).state_dict())
    except ImportError as error:
        raise MissingDependencyError(
            f"the pretrained weights of {name} need a package: {error}", hint="pip install timm torchvision"
        ) from error
    except (OSError, RuntimeError) as error:  # urllib's and huggingface_hub's errors are OSErrors
        what = f"the weights of {name} could not be downloaded: {error}"
        raise StateError(what, hint="--pretrained FILE takes weights that are already here") from error
