"""`Loader.to_tf_dataset` and `to_keras_dataset` with the real TensorFlow and Keras (`make test-frameworks`)."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import headrace
import numpy as np
import pytest
from headrace.errors import MissingDependencyError, UsageError
from headrace.transforms import Compose, MixUp, Views, imagenet_eval, imagenet_train

MakeFolder = Callable[..., Path]

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(400)]

if importlib.util.find_spec("tensorflow") is None:
    pytest.skip("TensorFlow is not installed (make test-frameworks)", allow_module_level=True)


def loader(root: Path, **options: Any) -> headrace.Loader:
    defaults: dict[str, Any] = {"batch_size": 4, "transform": imagenet_train(16), "output": "numpy", "threads": 2}
    return headrace.Loader(root, **(defaults | options))


def view(tensor: Any) -> np.ndarray[Any, Any]:
    """The tensor's own memory; `tensor.numpy()` would copy it."""
    return np.asarray(memoryview(tensor))


def test_a_tf_dataset_has_the_loaders_batches_shapes_and_types(image_folder: MakeFolder) -> None:
    import tensorflow as tf

    root = image_folder()
    data = loader(root).to_tf_dataset()
    images, labels = data.element_spec
    assert images == tf.TensorSpec((4, 16, 16, 3), tf.uint8) and labels == tf.TensorSpec((4,), tf.int64)
    assert len(data) == 3
    plain = loader(root)
    for _ in range(2):  # epochs
        for ours, theirs in zip(data, plain, strict=True):
            assert np.array_equal(ours[0].numpy(), theirs[0]) and np.array_equal(ours[1].numpy(), theirs[1])
    kept = loader(root, batch_size=5, drop_last=False).to_tf_dataset()
    assert [len(labels) for _, labels in kept] == [5, 5, 2] and kept.element_spec[0].shape[0] is None


def test_tensors_are_the_loaders_memory_and_stay_as_they_are(image_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    handed: list[tuple[int, np.ndarray[Any, Any]]] = []
    own: Callable[[Any], Iterator[Any]] = headrace.Loader.__iter__

    def noted(self: Any) -> Iterator[Any]:
        for images, labels in own(self):
            handed.append((images.ctypes.data, images.copy()))
            yield images, labels

    monkeypatch.setattr(headrace.Loader, "__iter__", noted)
    data = loader(image_folder(per_class=8), prefetch=1).to_tf_dataset()
    tensors = [images for _ in range(3) for images, _ in data]  # more than the ring has buffers
    assert len(tensors) == 18
    for tensor, (address, pixels) in zip(tensors, handed, strict=True):
        assert view(tensor).ctypes.data == address
        assert np.array_equal(view(tensor), pixels)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_floats_and_torch_loaders_give_channels_last(image_folder: MakeFolder, dtype: str) -> None:
    options: dict[str, Any] = {"dtype": dtype, "output": "torch", "transform": imagenet_eval(16, normalize=True)}
    root = image_folder()
    for (ours, labels), (theirs, expected) in zip(
        loader(root, **options).to_tf_dataset(), loader(root, **options), strict=True
    ):
        assert ours.dtype.name == dtype and ours.shape == (4, 16, 16, 3)
        assert np.array_equal(ours.numpy().astype(np.float32), theirs.permute(0, 2, 3, 1).float().numpy())
        assert labels.numpy().tolist() == expected.tolist()


def test_views_mixed_labels_and_masks(image_folder: MakeFolder, tmp_path: Path) -> None:
    from PIL import Image

    root = image_folder()
    (one, two), labels = next(iter(loader(root, transform=Views([imagenet_train(16), imagenet_train(8)])).to_tf_dataset()))
    assert one.shape == (4, 16, 16, 3) and two.shape == (4, 8, 8, 3) and labels.shape == (4,)
    mixed = Compose([imagenet_train(16, normalize=True), MixUp(alpha=0.2)])
    data = loader(root, transform=mixed, dtype="float32", output="torch").to_tf_dataset()
    for images, shares in data:
        assert images.shape == (4, 16, 16, 3) and shares.shape == (4, 3) and shares.dtype.name == "float32"
        assert np.allclose(shares.numpy().sum(1), 1)
    for path in sorted(root.rglob("*.jpg")):
        target = tmp_path / "masks" / path.relative_to(root).with_suffix(".png")
        target.parent.mkdir(parents=True, exist_ok=True)
        Image.open(path).convert("L").point([value // 86 for value in range(256)]).save(target)
    masked = loader(root, mask=tmp_path / "masks")
    images, labels, masks = next(iter(masked.to_tf_dataset()))
    assert masks.shape == (4, 16, 16) and int(masks.numpy().max()) <= 2
    with pytest.raises(UsageError, match="masks"):
        masked.to_keras_dataset()


def test_a_loaded_state_continues_in_mid_epoch(image_folder: MakeFolder) -> None:
    import tensorflow as tf

    root = image_folder()
    expected = [labels.tolist() for _, labels in loader(root)][1:]
    source = loader(root)
    batches = iter(source.to_tf_dataset())
    next(batches)
    state = source.state_dict()
    second = loader(root)
    second.load_state_dict(state)
    data = second.to_tf_dataset()
    assert [labels.numpy().tolist() for _, labels in data] == expected
    late = loader(root)
    data = late.to_tf_dataset()
    late.load_state_dict(state)
    with pytest.raises(tf.errors.OpError, match="call load_state_dict first"):
        list(data)


def test_a_bad_record_reaches_the_caller_with_its_key(image_folder: MakeFolder) -> None:
    import tensorflow as tf

    root = image_folder()
    (root / "class_1" / "image_002.jpg").write_bytes(b"no image")
    with pytest.raises(tf.errors.OpError, match="image_002"):
        list(loader(root).to_tf_dataset())
    assert len(list(loader(root, on_error="skip").to_tf_dataset())) == 3


def test_what_cannot_be_given_is_refused_in_words(image_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    data = loader(image_folder())
    for package, method in (("tensorflow", "to_tf_dataset"), ("keras", "to_keras_dataset"), ("jax", "to_jax")):
        with monkeypatch.context() as patch:
            patch.setitem(__import__("sys").modules, package, None)
            with pytest.raises(MissingDependencyError, match=f"{method} needs {package}") as error:
                getattr(data, method)()
            assert error.value.hint == f"pip install {package}"
        with monkeypatch.context() as patch:
            patch.setattr(data, "options", type("Options", (), {"device": "cuda", "with_json": False}))
            with pytest.raises(UsageError, match="device='cpu'"):
                getattr(data, method)()
            patch.setattr(data, "options", type("Options", (), {"device": "cpu", "with_json": True}))
            with pytest.raises(UsageError, match="with_json"):
                getattr(data, method)()


def network() -> Any:
    import keras

    layers = [keras.Input((16, 16, 3)), keras.layers.Rescaling(1 / 255), keras.layers.Flatten(), keras.layers.Dense(3)]
    model = keras.Sequential(layers)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def test_keras_fit_takes_each_record_once_an_epoch(image_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    root = image_folder()
    passes: list[list[int]] = []
    own: Callable[[Any], Iterator[Any]] = headrace.Loader.__iter__

    def noted(self: Any) -> Iterator[Any]:
        passes.append([])
        for images, labels in own(self):
            passes[-1].append(len(labels))
            yield images, labels

    monkeypatch.setattr(headrace.Loader, "__iter__", noted)
    for make in (headrace.Loader.to_keras_dataset, headrace.Loader.to_tf_dataset):
        passes.clear()
        data, model = loader(root), network()
        held_out = loader(root, transform=imagenet_eval(16), shuffle=False)
        history = model.fit(make(data), epochs=3, verbose=0, validation_data=make(held_out))
        assert len(history.history["val_loss"]) == 3 and int(model.optimizer.iterations.numpy()) == 9
        assert data.epoch == 3 and data.state_dict()["records_done"] == 0
        assert held_out.epoch == 3
        assert passes == [[4, 4, 4]] * 6
        scores = model.predict(make(held_out), verbose=0)
        assert scores.shape == (12, 3)


def test_a_keras_dataset_looked_at_before_fit_loses_no_batch(image_folder: MakeFolder) -> None:
    root = image_folder()
    expected = [labels.tolist() for _, labels in loader(root)]
    data = loader(root)
    batches = data.to_keras_dataset()
    assert len(batches) == 3 and batches[1][1].tolist() == expected[1] and batches[0][1].tolist() == expected[0]
    batches.on_epoch_begin()
    assert [batches[index][1].tolist() for index in (2, 0, 1)] == expected
    batches.on_epoch_end()
    assert [labels.tolist() for _, labels in batches] != expected and data.epoch == 2
    with pytest.raises(IndexError):
        batches[3]


def test_a_keras_dataset_goes_on_after_a_loaded_state(image_folder: MakeFolder) -> None:
    root = image_folder()
    one = loader(root)
    expected = [labels.tolist() for _ in range(2) for _, labels in one]
    source = loader(root)
    next(iter(source))
    resumed = loader(root)
    resumed.load_state_dict(source.state_dict())
    assert [labels.tolist() for _, labels in resumed.to_keras_dataset()] == expected[1:4]
