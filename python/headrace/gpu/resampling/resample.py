"""Crop, antialiased resize and flip of uint8 images on any device, bit for bit as Pillow and the CPU kernel do them.

The weights are Pillow's (`Resample.c`: `precompute_coeffs`, `normalize_coeffs_8bpc`), computed in double precision and rounded
to 22 fraction bits; all that follows is integer arithmetic, so that every device gives the same pixels. A GPU runs one Triton
kernel for the whole batch; the torch twin, which goes image by image, runs anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from headrace.gpu.preparation.triton_present import runs_triton
from headrace.gpu.resampling.decoders import Place
from headrace.gpu.resampling.pixels import AxisWeights, Pixels

if TYPE_CHECKING:
    import torch

__all__ = [
    "FILTERS",
    "axis_weights",
    "filter_refusal",
    "resample",
    "resample_torch",
]

FILTERS = {"bilinear": 1.0, "bicubic": 2.0}
"""The filters that are offered, with half their width in source pixels at scale 1."""

WEIGHT_BITS = 22  # of a weight: 32 bits less 8 for the pixel and 2 for filters that overshoot (Pillow's PRECISION_BITS)


def filter_refusal(filters: frozenset[str]) -> str | None:
    """Return why crops that are resized by these filters cannot be made by `resample`, or None."""
    if len(filters) > 1 or not filters <= set(FILTERS):
        return f"crops are resized by {' or '.join(FILTERS)} there, not by {', '.join(sorted(filters))}"
    return None


def axis_weights(
    edges: Sequence[int],
    sources: Sequence[int],
    grids: Sequence[int],
    firsts: Sequence[int],
    flips: Sequence[bool],
    count: int,
    resample: str,
    device: Any,
) -> AxisWeights:
    """Return the weights of N axes of `count` outputs each.

    edges: first pixel of each box. sources: its length. grids: the length it is resized to. firsts: first computed position of
    the resized grid. flips: whether the outputs run backwards. resample: a name of `FILTERS`.
    """
    import torch

    def column(values: Sequence[Any], dtype: torch.dtype = torch.float64) -> torch.Tensor:
        return torch.tensor(list(values), dtype=dtype).to(device, non_blocking=True)[:, None]

    source, grid, edge = column(sources), column(grids), column(edges)
    scale = source / grid
    stretch = scale.clamp(min=1.0)
    support = FILTERS[resample] * stretch
    ladder = torch.arange(count, dtype=torch.float64, device=device)[None, :]
    position = column(firsts) + torch.where(column(flips, torch.bool), count - 1 - ladder, ladder)
    center = (position + 0.5) * scale
    start = (center - support + 0.5).trunc().clamp(min=0)
    taps = (torch.minimum((center + support + 0.5).trunc(), source) - start).clamp(min=0)
    # The number of taps decides shapes: from the sizes, which the host knows, so that nothing waits for the device.
    most = max(_most_taps(length, wanted, FILTERS[resample]) for length, wanted in zip(sources, grids, strict=True))
    exact, total = [], torch.zeros_like(center)
    for tap in range(most):
        value = _filter(resample, (start + tap - center + 0.5) * (1.0 / stretch))
        exact.append(torch.where(tap < taps, value, 0.0))
        total = total + exact[-1]
    # As Pillow does: divide the weights by their sum, and round halves away from zero. An axis of unchanged length is copied.
    weights = torch.stack(exact, -1) / torch.where(total == 0, 1.0, total)[..., None] * (1 << WEIGHT_BITS)
    fixed = (weights + torch.where(weights < 0, -0.5, 0.5)).trunc().to(torch.int32)
    same = (source == grid)[..., None]
    whole = torch.zeros(most, dtype=torch.int32, device=device)
    whole[0] = 1 << WEIGHT_BITS
    starts = torch.where(source == grid, position, start) + edge
    return AxisWeights(starts.to(torch.int32), torch.where(same, whole, fixed), (edge + source - 1).squeeze(1).to(torch.int32))


def _most_taps(source: int, grid: int, support: float) -> int:
    return 1 if source == grid else min(source, int(support * max(1.0, source / grid)) * 2 + 3)


def _filter(name: str, x: torch.Tensor) -> torch.Tensor:
    import torch

    x = x.abs()
    if name == "bilinear":
        return (1.0 - x).clamp(min=0.0)
    near = (1.5 * x - 2.5) * x * x + 1.0  # cubic convolution with a = -0.5
    far = (((x - 5.0) * x + 8.0) * x - 4.0) * -0.5
    return torch.where(x < 1.0, near, torch.where(x < 2.0, far, 0.0))


def resample(pixels: Pixels, places: Sequence[Place], size: tuple[int, int], resample: str = "bilinear") -> torch.Tensor:
    """Return the crops as uint8 [N, H, W, 3] on the device of `pixels`: with Triton on a GPU, with torch elsewhere.

    pixels: the images. places: one for each. size: height and width of the output. resample: a name of `FILTERS`.
    """
    rows, columns, vertical_first = _axes(pixels, places, size, resample)
    if runs_triton(pixels.flat.device):
        from headrace.gpu.resampling import kernels

        return kernels.resample_triton(pixels, rows, columns, vertical_first, size)
    return resample_torch(pixels, rows, columns, vertical_first, size)


def _axes(
    pixels: Pixels, places: Sequence[Place], size: tuple[int, int], resample: str
) -> tuple[AxisWeights, AxisWeights, list[bool]]:
    device = pixels.flat.device
    axes = []
    for axis, flips in ((1, [place.flip_y for place in places]), (0, [place.flip_x for place in places])):
        axes.append(
            axis_weights(
                [place.box[axis] for place in places],
                [place.box[2 + axis] for place in places],
                [place.size[axis] for place in places],
                [place.window[axis] for place in places],
                flips,
                size[1 - axis],
                resample,
                device,
            )
        )
    return axes[0], axes[1], [_vertical_first(place) for place in places]


def _vertical_first(place: Place) -> bool:
    """Whether the rows are made first, which decides the rounding (Pillow 13's `ImagingResampleInner`)."""
    rows, columns = place.box[3] - place.size[1], place.box[2] - place.size[0]
    return rows > 0 and rows > 2 * columns


def resample_torch(
    pixels: Pixels, rows: AxisWeights, columns: AxisWeights, vertical_first: Sequence[bool], size: tuple[int, int]
) -> torch.Tensor:
    """Return the crops, image by image: the twin of the Triton kernel."""
    import torch

    out = torch.empty((len(vertical_first), *size, 3), dtype=torch.uint8, device=pixels.flat.device)
    for number, row_pass_first in enumerate(vertical_first):
        image = _view(pixels, rows, columns, number)
        passes = [(0, rows), (1, columns)] if row_pass_first else [(1, columns), (0, rows)]
        for axis, weights in passes:
            image = _pass(image, weights, number, axis)
        out[number] = image
    return out


def _view(pixels: Pixels, rows: AxisWeights, columns: AxisWeights, number: int) -> torch.Tensor:
    """Return image `number` up to the end of its box, uint8 [H, W, 3]."""
    height, width = int(rows.last[number]) + 1, int(columns.last[number]) + 1
    strides = (int(pixels.row[number]), pixels.column, int(pixels.channel[number]))
    return pixels.flat.as_strided((height, width, 3), strides, int(pixels.start[number]))


def _pass(image: torch.Tensor, weights: AxisWeights, number: int, axis: int) -> torch.Tensor:
    import torch

    starts, values = weights.starts[number].long(), weights.values[number]
    total: torch.Tensor | None = None
    for tap in range(values.shape[1]):
        line = (starts + tap).clamp(max=image.shape[axis] - 1)
        shape = (-1, 1, 1) if axis == 0 else (1, -1, 1)
        part = image.index_select(axis, line).to(torch.int32) * values[:, tap].view(shape)
        total = part if total is None else total + part
    assert total is not None
    return ((total + (1 << (WEIGHT_BITS - 1))) >> WEIGHT_BITS).clamp(0, 255).to(torch.uint8)
