"""Batches for TensorFlow, Keras and JAX: the memory that the native threads filled, without a copy where the framework allows.

Images are [N, H, W, 3] here, as these frameworks expect them, also of a loader with output="torch".
"""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from headrace.errors import MissingDependencyError, StateError, UnknownLengthError, UsageError
from headrace.loading.feeding.options import LoaderOptions
from headrace.transforms.batch import CutMix, MixUp, RandomChoice
from headrace.transforms.compile import Pipeline
from headrace.transforms.composition import Views

if TYPE_CHECKING:
    import jax
    import keras
    import tensorflow as tf

__all__ = ["FrameworkOutputs", "JaxBatches"]

MOST_PEEKED = 8
"""Keep at most this many batches that Keras reads before an epoch. Keras 3 reads two, to learn shapes and types."""

LONGEST_EXIT_S = 10.0
"""Wait at most this long, as the program ends, for JAX to release the loader's memory."""


class _Source(Protocol):
    """What this module uses of a Loader."""

    options: LoaderOptions
    transform: Any
    classes: tuple[str, ...]
    _resume_step: int | None

    @property
    def pipelines(self) -> tuple[Pipeline, ...]: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Any]: ...


@dataclass(frozen=True, slots=True)
class _ArraySpec:
    """Shape and type of one array of a batch; None: differs from batch to batch."""

    shape: tuple[int | None, ...]
    dtype: str


class FrameworkOutputs:
    """The methods of a Loader that make datasets of other frameworks."""

    def to_tf_dataset(self: Any) -> tf.data.Dataset:
        """Return a `tf.data.Dataset` of this loader's batches: (images, labels), images [N, H, W, 3] of the loader's dtype.

        One iteration over it is one pass of the loader, so `model.fit(dataset, epochs=90)` trains 90 epochs in 90 orders.
        Labels are int64 [N]; with MixUp or CutMix float32 [N, classes]. With `Views`, images are a tuple, and with `mask` masks
        follow. N is fixed with drop_last=True. TensorFlow reads the memory that the loader filled, without a copy, and that
        memory is used again only when TensorFlow has let go of it. `state_dict` counts the batches that TensorFlow has taken,
        prefetched ones included: leave `.prefetch()` away, since the loader decodes ahead. Call it after `load_state_dict`.

        Raises MissingDependencyError without TensorFlow, and UsageError for device="cuda" and with_json=True. An error of the
        loader in a pass reaches the caller as an error of TensorFlow (`tf.errors.UnknownError`), with the loader's text.

            loader = headrace.Loader("data/train", 256, headrace.transforms.imagenet_train(224), output="numpy")
            model.fit(loader.to_tf_dataset(), epochs=90)
        """
        loader: _Source = self
        _check(loader, "to_tf_dataset")
        tensorflow = _imported("tensorflow", "to_tf_dataset", "pip install tensorflow")
        batches = known_length(loader)

        def one_pass() -> Iterator[Any]:
            if batches is not None and loader._resume_step:
                raise StateError(
                    "this pass has fewer batches than the dataset promises: call load_state_dict first, then to_tf_dataset"
                )
            return map(as_numpy, loader)

        def tensor(spec: _ArraySpec) -> Any:
            return tensorflow.TensorSpec(spec.shape, tensorflow.as_dtype(spec.dtype))

        dataset = tensorflow.data.Dataset.from_generator(one_pass, output_signature=_mapped(tensor, signature(loader)))
        dataset._headrace_loader = loader  # `headrace diagnose` knows the pipeline by it
        options = tensorflow.data.Options()
        # A prefetch that TensorFlow adds by itself would run ahead of what `state_dict` counts.
        options.experimental_optimization.inject_prefetch = False
        dataset = dataset.with_options(options)
        if batches is None:
            return dataset
        return dataset.apply(tensorflow.data.experimental.assert_cardinality(batches))

    def to_keras_dataset(self: Any) -> keras.utils.PyDataset:
        """Return a `keras.utils.PyDataset` of this loader's batches, for Keras on TensorFlow, JAX or PyTorch.

        An epoch of Keras is `len(loader)` batches, (images, labels) as in `to_tf_dataset`, as NumPy arrays. The loader
        shuffles: batches come in its order, whatever `shuffle` says in `fit`. After `load_state_dict` the first epoch of Keras
        begins where the state was saved, and runs on into the loader's next one.

        Raises MissingDependencyError without Keras 3, UnknownLengthError for a stream of unknown length, and UsageError for
        device="cuda", with_json=True and `mask` (Keras takes a third element for weights: map `to_tf_dataset` instead).

            loader = headrace.Loader("data/train", 256, headrace.transforms.imagenet_train(224), output="numpy")
            model.fit(loader.to_keras_dataset(), epochs=90)
        """
        loader: _Source = self
        _check(loader, "to_keras_dataset")
        if loader.options.mask is not None:
            raise UsageError(
                "Keras takes the third element of a batch for weights, and here it is the masks",
                hint="loader.to_tf_dataset().map(lambda images, labels, masks: (images, masks))",
            )
        _imported("keras", "to_keras_dataset", "pip install keras")
        return _keras_dataset(loader, len(loader))

    def to_jax(self: Any, device: jax.Device | jax.sharding.Sharding | None = None) -> JaxBatches:
        """Return an iterable of this loader's batches as JAX arrays: (images, labels) as in `to_tf_dataset`, labels int32.

        One iteration over it is one pass of the loader. On the CPU a JAX array uses the memory that the loader filled, by
        DLPack and without a copy; that memory is used again only when the array is gone. Else `jax.device_put` copies it.

        device (None): a JAX device or sharding; None: JAX's default device.

        Raises MissingDependencyError without JAX, and UsageError for device="cuda" in the Loader and with_json=True.

            for images, labels in loader.to_jax():
                state = train_step(state, images, labels)
        """
        loader: _Source = self
        _check(loader, "to_jax")
        _imported("jax", "to_jax", "pip install jax")
        return JaxBatches(loader, device)


class JaxBatches:
    """The batches of a loader as JAX arrays. One iteration is one pass; `len()` is the number of batches of an epoch.

    loader: the loader. device: where the arrays go; None: JAX's default device.
    """

    def __init__(self, loader: Any, device: Any = None) -> None:
        self._loader, self._device = loader, device

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        import jax

        device = self._device
        if device is None and jax.devices()[0].platform != "cpu":
            device = jax.devices()[0]

        def array(values: np.ndarray[Any, Any]) -> Any:
            if values.dtype == np.int64:
                values = values.astype(np.int32)  # JAX's integers, unless jax_enable_x64 is set
            if device is not None:
                return jax.device_put(values, device)
            values = values.view()  # of its own: it lives as long as JAX uses it
            if values.dtype.name == "bfloat16":  # NumPy's DLPack does not know it
                values = values.view(np.uint16)
                lent = _note(values, jax.dlpack.from_dlpack(values))
                return jax.lax.bitcast_convert_type(lent, jax.numpy.bfloat16)
            return _note(values, jax.dlpack.from_dlpack(values))

        atexit.unregister(_finish)  # once, however many passes
        atexit.register(_finish, jax)
        for batch in self._loader:
            yield _mapped(array, as_numpy(batch))


_lent: dict[int, weakref.ref[Any]] = {}
"""The JAX arrays over the loader's memory, by the id of the NumPy array that JAX keeps until it has let go of that memory."""


def _note(values: np.ndarray[Any, Any], array: Any) -> Any:
    """Return `array`, which uses the memory of `values`, and note it until that memory is free."""
    _lent[id(values)] = weakref.ref(array)
    weakref.finalize(values, _lent.pop, id(values), None).atexit = False
    return array


def _finish(jax: Any) -> None:
    """Wait, as the program ends, for computations that still read the loader's memory.

    JAX frees that memory in a thread of its own, through NumPy, which ends the process if the interpreter is gone by then.
    """
    atexit.unregister(_finish)
    with suppress(Exception):
        jax.block_until_ready(jax.live_arrays())
    end_s = time.monotonic() + LONGEST_EXIT_S
    while any(array() is None for array in list(_lent.values())) and time.monotonic() < end_s:
        time.sleep(0.005)


def _keras_dataset(loader: _Source, batches: int) -> Any:
    import keras

    class LoaderDataset(keras.utils.PyDataset):
        """The endless sequence of the loader's batches, cut into epochs of `batches`."""

        def __init__(self) -> None:
            super().__init__(workers=1, use_multiprocessing=False)
            self._headrace_loader = loader  # `headrace diagnose` knows the pipeline by it
            self._lock = threading.Lock()
            self._peeked: deque[Any] = deque()
            self._in_epoch = False
            self._pass: Iterator[Any] = iter(())

        @property
        def num_batches(self) -> int:
            return batches

        def __len__(self) -> int:
            return batches

        def __iter__(self) -> Iterator[Any]:
            return (self._next() for _ in range(batches))

        def __getitem__(self, index: int) -> Any:
            if not 0 <= index < batches:
                raise IndexError(f"there is no batch {index}: an epoch has {batches}")
            with self._lock:
                if self._in_epoch:
                    return self._next()
                if index >= MOST_PEEKED:
                    raise UsageError(
                        f"batch {index} was asked for outside of fit, but batches are made one after the other",
                        hint="iterate over the dataset, or over the loader",
                    )
                while len(self._peeked) <= index:
                    self._peeked.append(self._made())
                return self._peeked[index]

        def _next(self) -> Any:
            return self._peeked.popleft() if self._peeked else self._made()

        def _made(self) -> Any:
            for _ in range(2):  # the rest of this pass, or the next pass
                for batch in self._pass:
                    return as_numpy(batch)
                self._pass = iter(loader)
            raise StateError("a pass over the loader gave no batch")

        def on_epoch_begin(self) -> None:
            self._in_epoch = True

        def on_epoch_end(self) -> None:
            self._in_epoch = False

    return LoaderDataset()


def as_numpy(batch: Any) -> Any:
    """Return a batch of a Loader as NumPy arrays over the same memory, images and masks with their channels last."""
    if isinstance(batch, tuple):
        return tuple(map(as_numpy, batch))
    if isinstance(batch, np.ndarray):
        return batch
    if batch.ndim == 4:  # images of output="torch": [N, 3, H, W] over memory with the channels last
        batch = batch.permute(0, 2, 3, 1)
    batch = batch.contiguous()
    if str(batch.dtype) == "torch.bfloat16":  # NumPy has none: TensorFlow's and JAX's package adds it
        import torch
        from ml_dtypes import bfloat16

        return batch.view(torch.uint16).numpy().view(bfloat16)
    return batch.numpy()


def signature(loader: _Source) -> Any:
    """Return shapes and dtypes (`_ArraySpec`) of a batch's arrays, nested as the loader's batches are."""
    options, several = loader.options, isinstance(loader.transform, Views)
    count = options.batch_size if options.drop_last and options.sampler is None else None
    sizes = [(pipeline.height, pipeline.width) for pipeline in loader.pipelines]
    images = tuple(_ArraySpec((count, *size, 3), options.dtype) for size in sizes)
    masks = tuple(_ArraySpec((count, *size), "uint8") for size in sizes)
    mixing = [step for step in loader.pipelines[0].batch if isinstance(step, MixUp | CutMix | RandomChoice)]
    labels = _ArraySpec((count, None), "float32") if mixing else _ArraySpec((count,), "int64")
    batch = (images if several else images[0], labels)
    return batch if options.mask is None else (*batch, masks if several else masks[0])


def known_length(loader: _Source) -> int | None:
    """Return the number of batches of the next pass, or None if it is not known (a stream, or a loaded state)."""
    if loader._resume_step:
        return None
    try:
        return len(loader)
    except UnknownLengthError:
        return None


def _mapped(function: Any, value: Any) -> Any:
    return tuple(_mapped(function, one) for one in value) if isinstance(value, tuple) else function(value)


def _check(loader: _Source, method: str) -> None:
    """Raise UsageError for a loader whose batches another framework cannot take."""
    if loader.options.device != "cpu":
        raise UsageError(
            f"{method} needs a loader with device='cpu': the framework copies batches to its own device",
            hint="leave out device=",
        )
    for name in ("with_json", "with_index", "with_key"):
        if getattr(loader.options, name):
            raise UsageError(
                f"{method} gives images, labels and masks, without what {name}=True adds", hint=f"leave out {name}"
            )


def _imported(package: str, method: str, install: str) -> Any:
    import importlib

    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise MissingDependencyError(f"{method} needs {package}", hint=install) from error
