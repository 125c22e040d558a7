"""Random streams: the numbers that a worker or the main process draws from the generators of torch, Python and NumPy.

torch seeds worker w of a loader with the base seed + w, NumPy's generator with numbers made of both, and calls the
`worker_init_fn`. Batch k of a pass is made by worker k modulo their number. So the numbers that each image draws are known, and
a `RandomStream` gives them to the native engine. Where the script itself makes an item, its generators are set to that place.
"""

from __future__ import annotations

import contextlib
import functools
import random
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data._utils import worker as torch_worker

from headrace._native import Stream
from headrace.accelerate.runtime.unsupported import Unsupported
from headrace.accelerate.workers.forked_child import ForkedChildFailed, in_forked_child
from headrace.accelerate.workers.one_at_a_time import one_at_a_time
from headrace.accelerate.workers.one_thread import one_thread

__all__ = ["GeneratorStates", "RandomStream", "next_seed", "require_replayable", "worker_states"]

WORDS = 624
"""Number of 32-bit words in the state of a Mersenne Twister."""

TORCH_STATE_BYTES = 5056
"""Size in bytes of the state of torch's CPU generator (`CPUGeneratorImplState`).

8 bytes of the seed, then `left` and `seeded`, 4 bytes each, `next` and the words, 8 bytes each, and what its normal
distribution keeps."""

COMPARED_VALUES = 512
"""Check with this many values that torch's exponential is the same for single values as for a vector."""

WORDS_AHEAD = 4096
"""Let torch compute exponentials for this many random words (32 bits) more than a batch needs, for later batches."""


class GeneratorStates(NamedTuple):
    """The states of the default generators of torch (CPU), Python and NumPy."""

    torch: torch.Tensor
    python: tuple[Any, ...]
    numpy: tuple[Any, ...]

    @classmethod
    def now(cls) -> GeneratorStates:
        """Return the states of the random generators of torch (CPU), Python and NumPy in this process."""
        numpy: Any = np.random.get_state(legacy=False)  # the older form gives a warning for other generators
        if numpy["bit_generator"] != "MT19937":
            raise Unsupported("numpy.random has another generator than MT19937", "NumPy's own")
        key = numpy["state"]["key"], numpy["state"]["pos"]
        return cls(torch.get_rng_state(), random.getstate(), ("MT19937", *key, numpy["has_gauss"], numpy["gauss"]))

    def restore(self, before: GeneratorStates | None = None) -> None:
        """Set the random generators of torch (CPU), Python and NumPy in this process to these states.

        `before`: the states from which `after` has made these. A generator from which nothing was drawn stays as it is: another
        thread of the script may draw from it.
        """
        if before is None or self.torch is not before.torch:
            torch.set_rng_state(self.torch)
        if before is None or self.python is not before.python:
            random.setstate(self.python)
        if before is None or self.numpy is not before.numpy:
            np.random.set_state(self.numpy)

    def equals(self, other: GeneratorStates) -> bool:
        """Return whether two sets of generator states are equal."""
        same = torch.equal(self.torch, other.torch) and self.python == other.python
        return same and all(np.array_equal(one, two) for one, two in zip(self.numpy, other.numpy, strict=True))

    def to_bytes(self) -> bytes:
        """Return the three generator states as bytes for `headrace._native.Stream`."""
        return self._torch_words() + _words(self.python[1][:WORDS], self.python[1][WORDS]) + _words(*self.numpy[1:3])

    def _torch_words(self) -> bytes:
        state = self.torch.numpy()
        left, taken = int(state[8:12].view(np.int32)[0]), int(state[16:24].view(np.uint64)[0])
        return _words(state[24 : 24 + 8 * WORDS].view(np.uint64), WORDS if left == 1 else taken)

    def after(self, state: bytes) -> GeneratorStates:
        """Return the generator states after the draws that led to `state`, given as bytes (`Stream`)."""
        numbers = np.frombuffer(state, dtype=np.uint32).reshape(3, WORDS + 1)
        before = np.frombuffer(self.to_bytes(), dtype=np.uint32).reshape(3, WORDS + 1)
        changed = (numbers != before).any(axis=1)
        found = self
        if changed[0]:
            tensor = self.torch.clone()
            bytes_ = tensor.numpy()
            taken = int(numbers[0, WORDS])
            bytes_[8:12].view(np.int32)[0] = WORDS + 1 - taken
            bytes_[16:24].view(np.uint64)[0] = taken
            bytes_[24 : 24 + 8 * WORDS].view(np.uint64)[:] = numbers[0, :WORDS]
            found = found._replace(torch=tensor)
        if changed[1]:
            version, _, normal = self.python
            found = found._replace(python=(version, tuple(numbers[1].tolist()), normal))
        if changed[2]:
            name, _, _, *normal = self.numpy
            found = found._replace(numpy=(name, numbers[2, :WORDS].copy(), int(numbers[2, WORDS]), *normal))
        return found


def _words(words: Any, taken: int) -> bytes:
    return np.asarray(words, dtype=np.uint32).tobytes() + np.uint32(taken).tobytes()


def require_replayable() -> None:
    """Raise `Unsupported` if the generators of this process, or torch's exponential, do not work as headrace expects."""
    if torch.get_rng_state().numel() != TORCH_STATE_BYTES:
        raise Unsupported(f"torch {torch.__version__} keeps the state of its generator in a form that headrace does not know")
    GeneratorStates.now()
    if not _exponentials_are_alike():
        raise Unsupported("torch's exponential of one value differs from that of many here")


@functools.cache
def _exponentials_are_alike() -> bool:
    values = torch.linspace(-4.0, 4.0, COMPARED_VALUES)
    with one_thread():
        singly = torch.cat([torch.exp(value.reshape(1)) for value in values])
        return bool(torch.equal(torch.exp(values), singly))


class RandomStream:
    """The random numbers that one process of the script draws, starting from given generator states.

    `ranges`: bounds of the logarithms (of aspect ratios) that the draw plans draw (`CompiledView.draw_plan`).
    """

    def __init__(self, states: GeneratorStates, ranges: Sequence[tuple[float, float]]) -> None:
        self._states = states
        self.native = Stream(states.to_bytes(), list(ranges))

    def prepare(self, words: int) -> None:
        """Let torch compute the exponentials that native code needs while it draws the next `words` words of torch's stream."""
        arguments = self.native.arguments(words, WORDS_AHEAD)
        if arguments is None:
            return
        with torch.inference_mode(), one_thread():
            found = torch.exp(torch.frombuffer(bytearray(arguments), dtype=torch.float32))
        self.native.extend(found.numpy().tobytes())

    def states_at(self, state: bytes) -> GeneratorStates:
        """Return the states of the three generators where the native stream has the state `state` (bytes)."""
        return self._states.after(state)

    def lead(self, state: bytes) -> GeneratorStates:
        """Set the generators of this process to their states where the native stream has the state `state`. Return them."""
        found = self.states_at(state)
        found.restore(self._states)
        return found

    def restart(self, states: GeneratorStates) -> None:
        """Continue the stream from these generator states."""
        self._states = states
        self.native.restart(states.to_bytes())

    @contextlib.contextmanager
    def in_this_process(self, state: bytes, *, stays: bool = False) -> Iterator[None]:
        """Context manager: this process draws from the stream, starting at `state`. Its draws advance the stream.

        `stays`: leave the random generators of this process there, too. Otherwise they are restored.
        """
        with one_at_a_time():
            own = GeneratorStates.now()
            self.states_at(state).restore()
            try:
                yield
            finally:
                self.restart(GeneratorStates.now())
                if not stays:
                    own.restore()


def next_seed(generator: torch.Generator | None) -> int:
    """Return the base seed that the loader's next iterator will draw from `generator`, without changing the generator."""
    own = torch.default_generator if generator is None else generator
    copied = torch.Generator().set_state(own.get_state())
    return int(torch.empty((), dtype=torch.int64).random_(generator=copied).item())


def worker_states(iterator: Any, worker_init_fn: Any) -> list[GeneratorStates]:
    """Return the states of the generators of each worker of a loader, before it makes its first item.

    `iterator`: torch's base iterator. `worker_init_fn` is called in a forked child, once for each worker. Raise `Unsupported`
    if it fails.
    """
    count, base_seed = int(iterator._num_workers), int(iterator._base_seed)
    if worker_init_fn is None:
        return [_seeded(base_seed, number) for number in range(count)]

    def states() -> list[tuple[Any, ...]]:
        found = []
        for number in range(count):
            _seeded(base_seed, number).restore()
            torch_worker._worker_info = torch_worker.WorkerInfo(
                id=number, num_workers=count, seed=base_seed + number, dataset=iterator._dataset
            )
            worker_init_fn(number)
            now = GeneratorStates.now()
            found.append((now.torch.numpy(), now.python, now.numpy))
        return found

    try:
        made = in_forked_child(states)
    except ForkedChildFailed as error:
        raise Unsupported("its worker_init_fn fails outside of a worker") from error
    return [GeneratorStates(torch.from_numpy(state), python, numpy) for state, python, numpy in made]


def _seeded(base_seed: int, worker: int) -> GeneratorStates:
    """Return the states that torch gives the generators of a worker."""
    return GeneratorStates(
        torch.Generator().manual_seed(base_seed + worker).get_state(),
        random.Random(base_seed + worker).getstate(),
        np.random.RandomState(torch_worker._generate_state(base_seed, worker)).get_state(),  # type: ignore[arg-type]
    )
