"""What a Loader shows: pictures of a batch, its facts in a notebook, its statistics as a table."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import headrace
import numpy as np
import pytest
from headrace.errors import DecodeError, MissingDependencyError, SourceError, UsageError
from headrace.system.text.install_hints import extra_hint
from headrace.transforms import CenterCrop, Compose, MixUp, Normalize, Views, imagenet_train
from PIL import Image

MakeFolder = Callable[..., Path]
SIDE = 24


@pytest.fixture
def plot(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """matplotlib's pyplot, without a window; all figures are closed at the end."""
    monkeypatch.setenv("MPLBACKEND", "Agg")
    pyplot = pytest.importorskip("matplotlib.pyplot")
    yield pyplot
    pyplot.close("all")


def make(root: Path, transform: Any = None, **options: Any) -> headrace.Loader[Any]:
    settings: dict[str, Any] = {"batch_size": 6, "threads": 1, "seed": 3, "output": "numpy"} | options
    return headrace.Loader(root, transform=transform or imagenet_train(SIDE), **settings)


def drawn(figure: Any) -> tuple[list[np.ndarray], list[str]]:
    """The pictures that a figure holds, and their titles."""
    places = [place for place in figure.axes if place.images]
    return [np.asarray(place.images[0].get_array()) for place in places], [place.get_title() for place in places]


def test_a_loader_shows_its_next_batch_and_does_not_move(image_folder: MakeFolder, plot: Any) -> None:
    with make(image_folder()) as loader:
        state = loader.state_dict()
        pictures, titles = drawn(headrace.show_batch(loader))
        assert loader.state_dict() == state and loader.stats().batches == 0
        images, labels = next(iter(loader))
    assert len(pictures) == 6 and all(np.array_equal(one, other) for one, other in zip(pictures, images, strict=True))
    assert titles == [loader.classes[label] for label in labels]


def test_showing_in_the_middle_of_a_pass_leaves_the_pass_alone(image_folder: MakeFolder, plot: Any) -> None:
    root = image_folder()
    with make(root) as loader, make(root) as other:
        passes = []
        for images, _ in loader:
            passes.append(images.copy())
            headrace.show_batch(loader, 2)
        assert all(np.array_equal(one, two) for one, (two, _) in zip(passes, other, strict=True))


def test_a_rank_shows_its_own_batch(image_folder: MakeFolder, plot: Any) -> None:
    with make(image_folder(), batch_size=3, rank=1, world_size=2) as loader:
        assert np.array_equal(loader.preview()[0], next(iter(loader))[0])


@pytest.mark.parametrize("dtype", ["uint8", "float32", "bfloat16"])
def test_normalisation_is_undone(image_folder: MakeFolder, plot: Any, dtype: str) -> None:
    if dtype != "uint8":
        pytest.importorskip("torch")
    root = image_folder()
    plain, _ = drawn(headrace.show_batch(make(root)))
    if dtype == "uint8":
        assert all(one.dtype == np.uint8 for one in plain)
        return
    mean, std = (0.4, 0.5, 0.6), (0.2, 0.3, 0.4)
    normalized = make(root, Compose([imagenet_train(SIDE), Normalize(mean, std)]), dtype=dtype, output="torch")
    for figure in (
        headrace.show_batch(normalized),
        headrace.show_batch(next(iter(normalized)), mean=mean, std=std),
    ):
        pictures, _ = drawn(figure)
        for one, expected in zip(pictures, plain, strict=True):
            assert np.abs(one * 255 - expected).max() < (0.01 if dtype == "float32" else 3)
    stretched, _ = drawn(headrace.show_batch(next(iter(normalized))))
    assert min(one.min() for one in stretched) == 0 and max(one.max() for one in stretched) == 1


def test_mixed_labels_name_both_classes(image_folder: MakeFolder, plot: Any) -> None:
    pytest.importorskip("torch")
    loader = make(image_folder(), Compose([imagenet_train(SIDE), MixUp(alpha=5.0)]), output="torch", dtype="float32")
    _, titles = drawn(headrace.show_batch(loader))
    assert all(line.endswith(" %") and line.startswith("class_") for title in titles for line in title.splitlines())
    assert any(len(title.splitlines()) == 2 for title in titles)


def test_views_stand_side_by_side(image_folder: MakeFolder, plot: Any) -> None:
    loader = make(image_folder(), Views([imagenet_train(SIDE), CenterCrop(SIDE), imagenet_train(SIDE)]))
    figure = headrace.show_batch(loader, 2)
    views, _ = loader.preview()
    pictures, _ = drawn(figure)
    assert [picture.tolist() for picture in pictures] == [view[row].tolist() for row in (0, 1) for view in views]
    assert figure.axes[0].get_gridspec().ncols == 3


def test_masks_lie_over_their_images(image_folder: MakeFolder, tmp_path: Path, plot: Any) -> None:
    root = image_folder(classes=1, per_class=2)
    for number, path in enumerate(sorted(root.rglob("*.jpg"))):
        with Image.open(path) as image:
            mask = Image.new("L", image.size, number)
        target = tmp_path / "masks" / path.relative_to(root).with_suffix(".png")
        target.parent.mkdir(parents=True, exist_ok=True)
        mask.save(target)
    loader = make(root, CenterCrop(SIDE), batch_size=2, shuffle=False, mask=tmp_path / "masks")
    axes = headrace.show_batch(loader).axes
    overlays = [np.ma.asarray(place.images[1].get_array()) for place in axes]
    assert overlays[0].mask.all() and not np.any(overlays[1].mask) and (overlays[1] == 1).all()


def test_a_dataset_shows_records_from_all_over(image_folder: MakeFolder, plot: Any) -> None:
    data = headrace.open(image_folder())
    pictures, titles = drawn(headrace.show_batch(data, 3))
    assert titles == ["class_0", "class_1", "class_2"]
    assert np.array_equal(pictures[0], np.asarray(data[0][0])) and np.array_equal(pictures[2], np.asarray(data[11][0]))


def test_names_are_written_as_they_are(image_folder: MakeFolder, plot: Any) -> None:
    with make(image_folder()) as loader:
        batch = next(iter(loader))
    names = ["$x^2$ {", "a very long name of a class", "ok"]
    figure = headrace.show_batch(batch, classes=names)
    assert set(drawn(figure)[1]) <= {"$x^2$ {", "a very long name of a…", "ok"}
    figure.savefig(file := io.BytesIO())  # mathematics that cannot be parsed would raise
    assert file.getvalue().startswith(b"\x89PNG")
    assert set(drawn(headrace.show_batch(batch))[1]) <= {"0", "1", "2"}


@pytest.mark.parametrize(
    "wrong",
    [
        "photos",
        7,
        (np.zeros((2, 3, 4, 4)),),
        (np.zeros((2, 4, 4)), np.zeros(2, np.int64)),
        (np.zeros((2, 4, 4, 3)), np.zeros(3, np.int64)),
        (np.zeros((0, 4, 4, 3)), np.zeros(0, np.int64)),
    ],
    ids=str,
)
def test_what_is_no_batch_is_refused(plot: Any, wrong: Any) -> None:
    with pytest.raises(UsageError):
        headrace.show_batch(wrong)


def test_wrong_numbers_are_refused(image_folder: MakeFolder, plot: Any) -> None:
    loader = make(image_folder())
    for options in ({"count": 0}, {"columns": 0}, {"mean": (0.5, 0.5, 0.5)}):
        with pytest.raises(UsageError):
            headrace.show_batch(loader, **options)  # type: ignore[arg-type]


def test_a_damaged_image_is_an_error_as_in_the_loader(image_folder: MakeFolder, plot: Any) -> None:
    root = image_folder()
    for path in root.rglob("*.jpg"):
        path.write_bytes(path.read_bytes()[:400])
    with pytest.raises(DecodeError):
        headrace.show_batch(make(root))


def test_a_stream_has_no_preview(tmp_path: Path, plot: Any) -> None:
    os.mkfifo(tmp_path / "train_0")
    with make(tmp_path / "train") as loader, pytest.raises(SourceError, match="is a stream"):
        headrace.show_batch(loader)


def test_a_notebook_shows_a_figure_once(image_folder: MakeFolder, plot: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    data = headrace.open(image_folder())
    headrace.show_batch(data, 1)
    assert len(plot.get_fignums()) == 1  # in a script, for plt.show()
    monkeypatch.setattr(plot, "get_backend", lambda: "module://matplotlib_inline.backend_inline")
    headrace.show_batch(data, 1)
    assert len(plot.get_fignums()) == 1


def test_without_matplotlib_one_error_names_the_extra(image_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "matplotlib.pyplot", raising=False)
    with pytest.raises(MissingDependencyError, match="matplotlib") as caught:
        headrace.show_batch(headrace.open(image_folder()))
    assert caught.value.hint == extra_hint("plot")


def test_loading_imports_no_matplotlib(image_folder: MakeFolder) -> None:
    code = (
        "import sys, headrace; loader = headrace.Loader(sys.argv[1], 2, headrace.transforms.CenterCrop(8), output='numpy');"
        "next(iter(loader)); repr(loader), loader._repr_html_(), headrace.show_batch.__name__;"
        "print(sorted(name for name in sys.modules if name.partition('.')[0] == 'matplotlib'))"
    )
    done = subprocess.run([sys.executable, "-c", code, image_folder()], check=True, timeout=100, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


def test_a_loader_in_a_notebook_shows_its_pipeline(image_folder: MakeFolder) -> None:
    with make(image_folder(), drop_last=False, batch_size=5) as loader:
        page = loader._repr_html_()
        assert loader.stats().batches == 0
    assert "3 an epoch, of 5 images" in page and "RandomResizedCrop(24" in page and page.count("<img ") == 8
    assert loader.classes == ("class_0", "class_1", "class_2")


def test_statistics_print_as_a_short_table(image_folder: MakeFolder) -> None:
    with make(image_folder(), drop_last=False) as loader:
        assert "an image" in repr(loader.stats()) and "not measured" in repr(loader.stats())
        for _ in loader:
            pass
        stats = loader.stats()
    lines = repr(stats).splitlines()
    assert str(stats) == repr(stats) and lines[0] == "2 batches, 12 images" and len(lines) <= 12
    for name in ("read", "decode", "resample", "store", "python"):
        assert any(line.strip().startswith(name) and line.endswith(" ms") for line in lines), name
    assert max(map(len, lines)) <= 60
