"""The clock of a training loop: images a second, and how much of the time the device waits for input."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from headrace.training.distributed.devices import Device

if TYPE_CHECKING:
    import torch

__all__ = ["WARM_UP_STEPS", "StepTimer"]

# Steps before rates are counted: they pay for the first batch, memory allocation and the choice of algorithms.
WARM_UP_STEPS = 10


class StepTimer:
    """Measures the rate of a training loop in images a second, and its wait share.

    The wait share (0 to 1) is the part of the time in which the device waits for input. On CUDA it is measured on the GPU's
    own clock: from the end of one step's last kernel until the next step can start, its batch copied. Elsewhere it is the
    time the loop waits for the batch. No method synchronises the GPU. On CUDA, call `rates` where the loop synchronises anyway.

        timer.request_batch(); batch = next(batches); timer.begin_step(); train(batch); timer.end_step(len(batch))
    """

    def __init__(self, device: Device, *, warm_up_steps: int = WARM_UP_STEPS) -> None:
        self.device, self.warm_up_steps_left = device, warm_up_steps
        self.images, self.elapsed_s, self.wait_s = 0, 0.0, 0.0
        self._requested_s: float | None = None
        self._began_s = 0.0
        self._waits: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []  # from the end of a step to the begin of the next
        self._last_end: torch.cuda.Event | None = None

    def request_batch(self) -> None:
        """Record the time at which the loop asks for its next batch."""
        self._requested_s = time.perf_counter()

    def begin_step(self) -> None:
        """Record the time at which the batch has arrived: the wait ends and the step begins."""
        self._began_s = time.perf_counter()
        if self.device.kind == "cuda" and self._last_end is not None and self.warm_up_steps_left <= 0:
            self._waits.append((self._last_end, self._record_event()))

    def end_step(self, images: int) -> None:
        """Record the end of a step of `images` images (on CUDA: its launch). A simulated device waits for its step time."""
        if self.device.img_s is not None:
            time.sleep(max(0.0, self._began_s + images / self.device.img_s - time.perf_counter()))
        if self.device.kind == "cuda":
            self._last_end = self._record_event()
        now = time.perf_counter()
        if self.warm_up_steps_left > 0:
            self.warm_up_steps_left -= 1
        elif self._requested_s is not None:
            self.images += images
            self.elapsed_s += now - self._requested_s
            if self.device.kind != "cuda":
                self.wait_s += self._began_s - self._requested_s

    def pause(self) -> None:
        """Mark the time until the next step as evaluation, not as waiting for input."""
        self._last_end = None

    def rates(self) -> tuple[float | None, float | None]:
        """Return (images/s, share of the time spent waiting for input) so far; (None, None) before the first measured step."""
        if self._waits:
            done = [(end, start) for end, start in self._waits if start.query()]
            self.wait_s += sum(end.elapsed_time(start) for end, start in done) / 1000
            self._waits = [pair for pair in self._waits if pair not in done]
        if self.elapsed_s <= 0 or self.images == 0:
            return None, None
        return self.images / self.elapsed_s, min(1.0, self.wait_s / self.elapsed_s)

    def _record_event(self) -> torch.cuda.Event:
        import torch

        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device.torch_name))
        return event
