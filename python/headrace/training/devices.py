"""What a model computes on: the CPU, a CUDA GPU, or a simulated GPU, which is a stated rate and a wait.

A simulated device lets the input side of training be measured where there is no GPU: a stand-in model with a real loss
and real gradients takes next to no time, and each step then waits until the GPU would have been done.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from headrace.errors import MissingDependencyError, UsageError

if TYPE_CHECKING:
    import torch

__all__ = ["SIMULATED", "WARM_UP_STEPS", "Device", "StepTimer", "open_device"]

Kind = Literal["cpu", "cuda", "simulated"]

# Name → (images per second, source). ResNet-50 training, mixed precision, one A100-SXM4-80GB, batch 256.
SIMULATED = {"a100": (2470.0, "NVIDIA DeepLearningExamples, PyTorch ResNet-50 v1.5, AMP, container 21.03")}
# Steps before rates are counted: they pay for the first batch, memory allocation and the choice of algorithms.
WARM_UP_STEPS = 10


@dataclass(frozen=True, slots=True)
class Device:
    """`name` is for people and says "simulated" where it is; `torch_name` is where tensors live; `img_s` only if simulated."""

    kind: Kind
    name: str
    torch_name: str
    img_s: float | None = None
    source: str | None = None

    @property
    def torch_type(self) -> str:
        """The kind of `torch_name`: "cpu" or "cuda"."""
        return self.torch_name.partition(":")[0]

    @property
    def simulated(self) -> bool:
        """Whether compute is a timed wait."""
        return self.kind == "simulated"


def open_device(spec: str | None, *, local_rank: int = 0) -> Device:
    """The device that `spec` names: "cpu", "cuda", "sim:a100", "sim:IMAGES_PER_SECOND"; None: CUDA if there is any, else CPU.

    Raises UsageError for another name and for CUDA where torch has none, MissingDependencyError without torch.
    """
    try:
        import torch
    except ImportError as error:
        raise MissingDependencyError("training needs PyTorch", hint="pip install 'headrace[train]'") from error
    if spec is None:
        spec = "cuda" if torch.cuda.is_available() else "cpu"
    if spec == "cpu":
        return Device("cpu", "CPU", "cpu")
    if spec.startswith("sim:"):
        return _simulated(spec.removeprefix("sim:"))
    if spec == "cuda" or spec.startswith("cuda:"):
        if not torch.cuda.is_available():
            raise UsageError(f"--device {spec}: torch finds no CUDA GPU here", hint="headrace doctor says why; --device cpu")
        index = int(spec.partition(":")[2] or local_rank)
        if index >= torch.cuda.device_count():
            raise UsageError(f"--device {spec}: there are {torch.cuda.device_count()} GPUs, numbered from 0")
        return Device("cuda", torch.cuda.get_device_name(index), f"cuda:{index}")
    raise UsageError(f"there is no device {spec!r}", hint="cpu, cuda, sim:a100, or sim:IMAGES_PER_SECOND")


def _simulated(what: str) -> Device:
    if what in SIMULATED:
        rate, source = SIMULATED[what]
        return Device("simulated", f"simulated {what.upper()}", "cpu", rate, source)
    try:
        rate = float(what)
    except ValueError:
        rate = 0.0
    if not 0 < rate < float("inf"):
        known = ", ".join(f"sim:{name}" for name in SIMULATED)
        raise UsageError(f"there is no simulated device {what!r}", hint=f"{known}, or sim:IMAGES_PER_SECOND")
    return Device("simulated", f"simulated GPU ({rate:g} img/s)", "cpu", rate, "given on the command line")


class StepTimer:
    """Times a training loop: images a second, and the share of time in which the device waited for input.

    On CUDA the wait is measured on the GPU's own clock: from the end of one step's last kernel to the moment the next
    step may start (its batch has arrived and is copied). Elsewhere it is the time the loop waited for the batch.
    A share near 0 means that input keeps up, near 1 that the device does little but wait. Reading never blocks the GPU;
    on CUDA, `read` is meant for moments at which the loop synchronises anyway.
    """

    def __init__(self, device: Device, *, warm_up_steps: int = WARM_UP_STEPS) -> None:
        self.device, self.skip = device, warm_up_steps
        self.images, self.elapsed_s, self.wait_s = 0, 0.0, 0.0
        self._asked_s: float | None = None
        self._began_s = 0.0
        self._marks: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._last_end: torch.cuda.Event | None = None

    def ask(self) -> None:
        """The loop asks for the next batch now."""
        self._asked_s = time.perf_counter()

    def begin(self) -> None:
        """The batch is here; the step begins."""
        self._began_s = time.perf_counter()
        if self.device.kind == "cuda" and self._last_end is not None and self.skip <= 0:
            self._marks.append((self._last_end, self._mark()))

    def end(self, images: int) -> None:
        """The step of `images` images is done (on CUDA: launched). A simulated device waits here."""
        if self.device.img_s is not None:
            time.sleep(max(0.0, self._began_s + images / self.device.img_s - time.perf_counter()))
        if self.device.kind == "cuda":
            self._last_end = self._mark()
        now = time.perf_counter()
        if self.skip > 0:
            self.skip -= 1
        elif self._asked_s is not None:
            self.images += images
            self.elapsed_s += now - self._asked_s
            if self.device.kind != "cuda":
                self.wait_s += self._began_s - self._asked_s

    def pause(self) -> None:
        """The loop does something else now (evaluation): what lies between two steps is not waiting."""
        self._last_end = None

    def read(self) -> tuple[float | None, float | None]:
        """(images a second, wait share) so far; None while nothing was measured."""
        if self._marks:
            done = [(end, start) for end, start in self._marks if start.query()]
            self.wait_s += sum(end.elapsed_time(start) for end, start in done) / 1000
            self._marks = [pair for pair in self._marks if pair not in done]
        if self.elapsed_s <= 0 or self.images == 0:
            return None, None
        return self.images / self.elapsed_s, min(1.0, self.wait_s / self.elapsed_s)

    def _mark(self) -> torch.cuda.Event:
        import torch

        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device.torch_name))
        return event


def make_fast(*, tf32: bool = True) -> None:
    """Lets cuDNN try its algorithms once for each shape (training has few), and float32 products use TF32 if wanted."""
    import torch

    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32


def make_deterministic() -> None:
    """Asks torch for the same bits every time (slower; raises at operations that cannot give them)."""
    import torch

    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS needs it, and reads it when it starts
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
