"""The lists of transforms in the reference of the API, the guide of the loader and the page of `headrace run`, from code."""

from __future__ import annotations

import textwrap
from types import ModuleType

WIDTH = 128


def render() -> dict[str, dict[str, str]]:
    """Return the parts of each page by name."""
    from headrace.transforms import colour, composition, geometry, policies, values

    rooms = {"geometry": geometry, "colour": colour, "policies": policies}
    known = [name for module in (*rooms.values(), composition, values) for name in public(module)]
    words = textwrap.fill(" ".join(known), WIDTH - 2, break_on_hyphens=False)
    return {
        "docs/reference/api/transforms.md": {name: reference(public(module)) for name, module in rooms.items()},
        "docs/guides/loader.md": {"transforms": f"`{words}`"},
        "docs/reference/run.md": {"transforms": taken_over()},
    }


def public(module: ModuleType) -> list[str]:
    """Return the public transforms of a module, in the order in which they are defined, without the pipelines for ImageNet."""
    from headrace import transforms

    known = [name for name in vars(module) if name in module.__all__ and name in transforms.__all__]
    return [name for name in known if not name.lower().startswith("imagenet")]


def reference(names: list[str]) -> str:
    """Return the entries of a page that mkdocstrings fills from docstrings."""
    entry = "::: headrace.transforms.{}\n    options: {{ heading_level: 3, show_root_full_path: false }}"
    return "\n\n".join(entry.format(name) for name in names)


def taken_over() -> str:
    """Return the list of torchvision's transforms of Pillow images that `headrace run` takes over."""
    from headrace.accelerate.transforms.translate import COLOURS_WITH_PROBABILITY
    from torchvision.transforms import v2

    colours = [f"`{name}`" for name in COLOURS_WITH_PROBABILITY if hasattr(v2, name)]
    return f"""
- `RandomResizedCrop`, `Resize`, `CenterCrop`, `RandomCrop`, `Pad` (one colour), flips
- `RandomRotation` and `RandomAffine` (nearest, bilinear)
- `ColorJitter`, `Grayscale(3)`
- {", ".join(colours)}
- `GaussianBlur` of images cut to one size; it is compared with torch's own when the script starts
- `RandAugment`, `TrivialAugmentWide`, `AutoAugment`
- `RandomApply` of these
"""
