"""Transforms as native operations: what the native module declares holds on both sides."""

from __future__ import annotations

import dataclasses
from typing import Any

import headrace.transforms as t
import pytest
from headrace._native import Program
from headrace.errors import UsageError
from headrace.images.interpolation import INTERPOLATIONS
from headrace.transforms import colour
from headrace.transforms.base import Field, native_schema
from headrace.transforms.native_operations import NATIVE_TRANSFORMS, native_operations

CROP = ("center_crop", {"size": (8, 8)})
EXAMPLES: tuple[t.Transform, ...] = (
    t.RandomResizedCrop(8, interpolation=["bilinear", "bicubic"]),
    t.Resize(9, max_size=12),
    t.Resize((9, 8)),
    t.CenterCrop(8),
    t.RandomCrop(8, padding=2),
    t.Pad(2, fill=9),
    t.RandomHorizontalFlip(),
    t.RandomVerticalFlip(),
    t.RandomRotation(9),
    t.RandomAffine(9, translate=(0.1, 0.2), shear=4),
    t.ColorJitter(0.4, hue=0.1),
    t.RandomGrayscale(),
    t.GaussianBlur(3),
    colour.TorchBlur((3, 3), (0.1, 2.0), 1),
    t.PillowBlur(2),
    t.RandomInvert(),
    t.RandomPosterize(3),
    t.RandomSolarize(100),
    t.RandomAutocontrast(),
    t.RandomEqualize(),
    t.RandomAdjustSharpness(2),
    t.Dilation(),
    t.Erosion(5),
    t.RandAugment(),
    t.TrivialAugmentWide(),
    t.AutoAugment("svhn"),
    t.RandomApply([], 0.5),
)
VALUES = {name: values for example in EXAMPLES for name, values in native_operations(example)}
FIELDS = [(name, field) for name, operation in native_schema().items() for field in operation.fields]


def compiled(name: str, values: dict[str, Any]) -> Program:
    return Program([(name, values), CROP])


def test_each_operation_is_made_by_a_transform_and_takes_its_values() -> None:
    assert set(VALUES) == set(native_schema())
    for name, values in VALUES.items():
        assert list(values) == [field.name for field in native_schema()[name].fields]
        assert compiled(name, values).out == (8, 8)


def test_each_native_transform_names_its_operation() -> None:
    assert all(kind.operation in native_schema() for kind in NATIVE_TRANSFORMS.values())


def refusals(field: Field) -> list[Any]:
    """Values that a field must refuse: of another kind, out of its range, too many or too few of them."""
    many = (lambda value: value) if field.count == 1 else (lambda value: (value,) * field.count)
    found: list[Any] = ["none", object(), [], (1,) * (field.count + 1), float("nan") if field.count > 1 else b"x"]
    if field.range is not None:
        step = 1 if field.kind == "integer" else 1e-3
        least, most = field.range
        found += [many(least - step), many(float("nan"))]
        found += [many(most + step)] if most < 1e30 else []
    if field.kind == "integer":
        found += [many(1.5), many(2**70)]
    return found if field.is_optional else [*found, None]


@pytest.mark.parametrize(("name", "field"), FIELDS, ids=[f"{name}.{field.name}" for name, field in FIELDS])
def test_a_value_that_does_not_fit_its_field_is_refused_by_name(name: str, field: Field) -> None:
    for value in refusals(field):
        with pytest.raises(ValueError, match=f"^{name}: {field.name} must be "):
            compiled(name, VALUES[name] | {field.name: value})
    with pytest.raises(ValueError, match=f"^{name}: {field.name} is missing$"):
        compiled(name, {key: value for key, value in VALUES[name].items() if key != field.name})


@pytest.mark.parametrize(("name", "field"), [(name, field) for name, field in FIELDS if field.choices or field.is_optional])
def test_every_choice_and_none_are_taken(name: str, field: Field) -> None:
    values: list[Any] = [(choice,) if field.kind == "filters" else choice for choice in field.choices]
    for value in [*values, *([None] if field.is_optional else [])]:
        compiled(name, VALUES[name] | {field.name: value})


def test_what_is_no_operation_and_no_field_is_refused() -> None:
    with pytest.raises(ValueError, match=r'^no operation "none"$'):
        Program([("none", {})])
    with pytest.raises(ValueError, match=r"^posterize: there are only p, bits$"):
        compiled("posterize", {"p": 0.5, "bits": 3, "level": 1})


@pytest.mark.parametrize("name", [name for name, kind in NATIVE_TRANSFORMS.items() if "__post_init__" not in vars(kind)])
def test_a_transform_without_own_checks_has_those_of_its_operation(name: str) -> None:
    example = next(one for one in EXAMPLES if type(one).__name__ == name)
    assert {one.name for one in dataclasses.fields(example)} == {one.name for one in native_schema()[example.operation].fields}
    for field in native_schema()[example.operation].fields:
        assert field.range is not None
        for value in (field.range[0] - 1, field.range[1] * 2 + 1, float("nan")):
            with pytest.raises(UsageError, match=f"^{name}: {field.name} must be .*, not "):
                dataclasses.replace(example, **{field.name: value})
        assert getattr(dataclasses.replace(example, **{field.name: field.range[0]}), field.name) == field.range[0]


def test_limits_in_python_are_those_of_the_native_operations() -> None:
    fields = {f"{name}.{field.name}": field for name, field in FIELDS}
    assert fields["random_resized_crop.interpolation"].choices == fields["resize_short.interpolation"].choices == INTERPOLATIONS
    assert fields["blur.kernel_size"].range == fields["torch_blur.kernel_size"].range == (1, colour._MAX_KERNEL)
    assert fields["dilate.radius"].range == fields["erode.radius"].range == (1, colour._MAX_KERNEL // 2)
    assert fields["pillow_blur.radius"].range == (0, colour._MAX_RADIUS)
    assert fields["solarize.threshold"].range == (0, 256)
