"""What computes in a trial: a real GPU, the CPU, or a simulated GPU whose steps are timed waits at a published rate.

The rates of simulated GPUs come from publications that have nothing to do with the experiments that they are used in. A
simulated step first takes the CPU time of its host share, then waits until the GPU would have been done.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from headrace.errors import UsageError

__all__ = [
    "FORWARD_SHARE",
    "ON_CPU",
    "SIMULATED_GPUS",
    "Accelerator",
    "SimulatedAccelerator",
    "TorchAccelerator",
    "busy_shares",
    "rate_of",
]

SIMULATED_GPUS: dict[str, dict[str, tuple[float, str]]] = {
    "v100": {
        "fp32": (367.0, "published: NVIDIA DeepLearningExamples, PyTorch 21.03, FP32, 1 × V100-16"),
        "amp": (1200.0, "published: NVIDIA DeepLearningExamples, PyTorch 21.03, AMP, 1 × V100-16"),
    },
    "a100": {
        "fp32": (938.0, "published: NVIDIA DeepLearningExamples, PyTorch 21.03, TF32, 1 × A100-80"),
        "amp": (2470.0, "published: NVIDIA DeepLearningExamples, PyTorch 21.03, AMP, 1 × A100-80"),
    },
    "h100": {"amp": (7150.0, "published: MLPerf Training 4.0, 8 × H100-SXM, an eighth; tuned far beyond a plain script")},
    "h200": {"amp": (7960.0, "published: MLPerf Training 4.0, 8 × H200-SXM, an eighth; tuned far beyond a plain script")},
}
"""GPU → precision → (ResNet-50 training, 224 pixels, images/s of one GPU; source)."""

GFLOPS = {"resnet18": 1.82, "resnet34": 3.67, "resnet50": 4.09, "resnet101": 7.83, "resnet152": 11.56}
"""Multiplications and additions of one forward pass at 224 pixels, in 10⁹ (torchvision's model pages)."""

FORWARD_SHARE = 1 / 3
"""A validation image costs this share of a training image: a backward pass is about two forward passes (estimated)."""

DISPATCHED = {"resnet18": 480, "resnet34": 830, "resnet50": 1218, "resnet101": 2380, "resnet152": 3530}
"""Operations that PyTorch dispatches in one training step with SGD, counted with TorchDispatchMode on torch 2.15."""

HOST_S_PER_OPERATION = 6e-6
"""CPU time of the host for each operation of `DISPATCHED`: Python, autograd, dispatcher and kernel launch (estimated)."""

ON_CPU = "measured on the CPU"
"""Text that names the source of a real model's rate on a machine without a GPU."""

SPIN_S = 0.5e-3
"""Seconds at the end of a simulated step to wait without sleeping. A thread that synchronizes with a GPU spins by default
(cudaDeviceScheduleAuto, CUDA Runtime API), so it goes on at once; waking from a sleep took 0.5 to 6 ms on a busy machine."""


def rate_of(gpu: str, model: str, precision: str) -> tuple[float, str]:
    """Return the images/s of a simulated GPU that never waits, and where the figure comes from.

    Models other than ResNet-50 are estimated by their ratio of operations. Raises `UsageError` for an unknown GPU, model or
    precision.
    """
    if gpu not in SIMULATED_GPUS:
        raise UsageError(f"there is no simulated GPU {gpu!r}", hint=f"known: {', '.join(SIMULATED_GPUS)}")
    if precision not in SIMULATED_GPUS[gpu]:
        known = ", ".join(SIMULATED_GPUS[gpu])
        raise UsageError(f"no published rate of {gpu} in {precision} is known", hint=f"--precision {known}")
    if model not in GFLOPS:
        raise UsageError(f"neither the rate nor the GFLOPs of {model!r} are known", hint=f"known: {', '.join(GFLOPS)}")
    rate, source = SIMULATED_GPUS[gpu][precision]
    if model == "resnet50":
        return rate, source
    ratio = GFLOPS["resnet50"] / GFLOPS[model]
    return rate * ratio, f"estimated: {ratio:.2f} × ResNet-50 by operations; ResNet-50 {source}"


class Accelerator(Protocol):
    """The device that trains in a trial. `train` and `evaluate` return when the step is done, as if its loss were read."""

    simulated: bool
    source: str
    busy: list[tuple[float, float]]
    device: str

    def arrive(self, images: Any, labels: Any) -> None:
        """Wait until the batch is on the device. Compute nothing: for measuring the input alone."""
        ...

    def host_only(self, images: Any, labels: Any) -> None:
        """Wait until the batch is on the device, then use as much CPU time as the host needs in a training step."""
        ...

    def train(self, images: Any, labels: Any) -> None: ...
    def evaluate(self, images: Any, labels: Any) -> None: ...


@dataclass
class SimulatedAccelerator:
    """A simulated GPU: each step is a timed wait at a stated rate. busy: (begin, end) of each step, in monotonic seconds."""

    model: str
    img_s: float
    source: str
    simulated: bool = True
    device: str = "cpu"
    busy: list[tuple[float, float]] = field(default_factory=list)

    @property
    def host_s(self) -> float:
        """Estimated CPU seconds that the host needs in a training step."""
        return DISPATCHED.get(self.model, DISPATCHED["resnet50"]) * HOST_S_PER_OPERATION

    def arrive(self, images: Any, labels: Any) -> None:
        """Do nothing: the simulated GPU computes with batches in the host's memory."""

    def host_only(self, images: Any, labels: Any) -> None:
        """Use the CPU for as long as the host's share of a training step takes."""
        _use_cpu(self.host_s)

    def train(self, images: Any, labels: Any) -> None:
        """Wait for as long as a training step takes."""
        self._step(len(labels) / self.img_s, self.host_s)

    def evaluate(self, images: Any, labels: Any) -> None:
        """Wait for as long as a validation step takes."""
        self._step(FORWARD_SHARE * len(labels) / self.img_s, FORWARD_SHARE * self.host_s)

    def _step(self, gpu_s: float, host_s: float) -> None:
        begin = time.monotonic()
        _use_cpu(host_s)  # launches run ahead of the GPU, so they are part of its time and not added to it
        left = begin + gpu_s - time.monotonic()
        if left > SPIN_S:
            time.sleep(left - SPIN_S)
        while time.monotonic() < begin + gpu_s:
            pass
        self.busy.append((begin, begin + gpu_s))


def _use_cpu(seconds: float) -> None:
    """Use the CPU for `seconds` of this thread's CPU time. Like the real launches this holds Python's lock."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


class TorchAccelerator:
    """A real model on a torch device, trained with SGD. As in the article's script, each step reads its loss."""

    def __init__(self, model: str, device: str, *, precision: str, classes: int = 1000) -> None:
        import torch
        import torchvision

        self._torch, self._device, self.device = torch, torch.device(device), device
        self._precision = precision
        torch.manual_seed(42)
        self.network = torchvision.models.get_model(model, weights=None, num_classes=classes).to(self._device)
        self._optimizer = torch.optim.SGD(self.network.parameters(), lr=0.001, momentum=0.5)
        self._criterion = torch.nn.CrossEntropyLoss()
        self.simulated = False
        self.source = ON_CPU
        if self._device.type == "cuda":
            tf32 = precision == "fp32" and torch.backends.cudnn.allow_tf32 and torch.cuda.get_device_capability(device)[0] >= 8
            words = ", with PyTorch's default of TF32 in convolutions" if tf32 else ""
            self.source = f"measured on {torch.cuda.get_device_name(self._device)}{words}"
        self.busy: list[tuple[float, float]] = []
        self.losses: list[float] = []

    def arrive(self, images: Any, labels: Any) -> None:
        """Wait until the device has finished its work on the batch, such as copies."""
        if self._device.type == "cuda":
            event = self._torch.cuda.Event(blocking=True)  # waits without a core: the input's CPU time is measured meanwhile
            event.record()
            event.synchronize()

    def host_only(self, images: Any, labels: Any) -> None:
        """Wait until the batch is on the device. No CPU time is added: a real step includes the host's work."""
        self.arrive(images, labels)

    def train(self, images: Any, labels: Any) -> None:
        """Train one step, and wait for its loss."""
        self.network.train()
        begin = time.monotonic()
        loss = self._loss(images, labels)
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        self.losses.append(loss.item())
        self.busy.append((begin, time.monotonic()))

    def evaluate(self, images: Any, labels: Any) -> None:
        """Compute the loss of one validation batch, and wait for it."""
        self.network.eval()
        begin = time.monotonic()
        with self._torch.no_grad():
            self._loss(images, labels).item()
        self.busy.append((begin, time.monotonic()))

    def _loss(self, images: Any, labels: Any) -> Any:
        torch = self._torch
        images, labels = torch.as_tensor(images).to(self._device), torch.as_tensor(labels).to(self._device).long()
        if images.dtype == torch.uint8:
            images = images.float().div_(255)
        images = images.contiguous()  # the same kernels for all loaders, whatever the order of their images' memory
        low = torch.bfloat16 if self._device.type == "cpu" or torch.cuda.is_bf16_supported() else torch.float16
        with torch.autocast(self._device.type, dtype=low, enabled=self._precision == "amp"):
            return self._criterion(self.network(images), labels)


def busy_shares(busy: Sequence[tuple[float, float]], begin: float, end: float, *, window_s: float = 0.5) -> list[float]:
    """Return the busy share (0 to 1) of each window from `begin` to `end`; 0.5 s is the window of SageMaker's profiler."""
    count = max(1, int((end - begin) / window_s))
    shares = []
    for number in range(count):
        low = begin + number * (end - begin) / count
        high = begin + (number + 1) * (end - begin) / count
        taken = sum(max(0.0, min(high, stop) - max(low, start)) for start, stop in busy)
        shares.append(min(1.0, taken / (high - low)))
    return shares
