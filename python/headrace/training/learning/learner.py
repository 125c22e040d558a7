"""One training step: the model, the gradients of a batch, the optimizer's update, and the average of the weights."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from headrace.errors import UsageError
from headrace.training.distributed.devices import Device, make_deterministic, make_fast
from headrace.training.distributed.ranks import Ranks
from headrace.training.learning.mixing import mix
from headrace.training.models import factory
from headrace.training.models.pretrained import load_pretrained
from headrace.training.settings.optimization import learning_rate, make_optimizer
from headrace.training.settings.options import Compile, Options, Precision
from headrace.training.weights.weight_average import WeightAverage

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = ["Learner", "autocast_dtype"]


class Learner:
    """Trains a model batch by batch. A step is one batch; an update of the weights comes after every `accumulate` steps.

    `model` is the plain model, whose weights are saved. `average`, where there is one, is saved too, and is evaluated in place
    of `model`. `total_steps` and `warmup_steps` shape the learning rate. `loaded` says which pretrained weights were loaded.
    """

    def __init__(
        self, options: Options, device: Device, ranks: Ranks, *, classes: int, total_steps: int, warmup_steps: int
    ) -> None:
        import torch

        self.options, self.optimization, self.device, self.ranks = options, options.optimization, device, ranks
        self.total_steps, self.warmup_steps = total_steps, warmup_steps
        self.autocast = autocast_dtype(options.precision, device)
        if options.deterministic:
            make_deterministic()
        elif device.kind == "cuda":
            make_fast(tf32=options.tf32)
        torch.manual_seed(options.seed)
        self.model, self.loaded = _build_model(options, device, classes)
        self._wrapped_model = _wrap_model(self.model, ranks, device, compiled=options.compile)
        self.average = WeightAverage(self.model, self.optimization.average) if self.optimization.average else None
        self.optimizer = make_optimizer(self.model, self.optimization, fused=device.kind == "cuda")
        # With --nan-steps and without fp16, a scaler of constant scale 1 is used only to skip updates whose gradients are not
        # finite: it does so without waiting for the device.
        is_fp16 = self.autocast == torch.float16
        self._skips_bad_updates = options.nan_steps > 0 and not is_fp16
        scale = {"init_scale": 1.0} if self._skips_bad_updates else {}
        self.scaler: Any = torch.amp.GradScaler(device.torch_type, enabled=is_fp16 or self._skips_bad_updates, **scale)

    @property
    def evaluated_model(self) -> nn.Module:
        """The model that is evaluated and exported: the average of the weights where there is one."""
        return self.model if self.average is None else self.average.model

    def train_step(self, step: int, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Add the gradients of one batch, update the weights after every `accumulate` batches, return the loss on the device.

        `images`: [N, 3, H, W] on the device (uint8 for a simulated one); `labels`: int64 [N]; `step` counts from 0.
        """
        import torch

        # All random draws of a step follow from (seed, step, rank), so a checkpoint need not hold a generator's state.
        torch.manual_seed((self.options.seed * 1_000_003 + step) * 65_536 + self.ranks.rank)
        is_update = self._is_update(step)
        partners, share = labels, 1.0
        if not self.device.simulated:
            if not self.options.channels_last:
                images = images.contiguous()
            images, partners, share = mix(images, labels, mixup=self.optimization.mixup, cutmix=self.optimization.cutmix)
        statistics_before = self._copy_statistics() if self._skips_bad_updates else []
        # Ranks exchange gradients only in steps that update the weights.
        with nullcontext() if is_update or self.ranks.world_size == 1 else self._wrapped_model.no_sync():
            with torch.autocast(self.device.torch_type, dtype=self.autocast, enabled=self.autocast is not None):
                loss = self._loss(self._wrapped_model(images), labels, partners, share)
            self.scaler.scale(loss / self.optimization.accumulate).backward()
        for statistic, before in statistics_before:  # take back what a batch with a bad loss changed
            statistic.copy_(torch.where(loss.detach().isfinite(), statistic, before))
        if is_update:
            self._update_weights(step)
        return loss.detach()

    def learning_rate(self, step: int) -> float:
        """Return the learning rate at a step. Its peak fits the global batch: all ranks and accumulated batches together."""
        peak = self.optimization.peak_rate(self.options.batch_size * self.ranks.world_size * self.optimization.accumulate)
        steps = {"warmup_steps": self.warmup_steps, "total_steps": self.total_steps}
        return learning_rate(step, peak=peak, schedule=self.optimization.schedule, **steps)

    def highest_learning_rate(self, steps: range) -> float | None:
        """Return the highest learning rate of the updates in these steps; None if the weights are updated in none of them."""
        return max((self.learning_rate(step) for step in steps if self._is_update(step)), default=None)

    def _is_update(self, step: int) -> bool:
        return (step + 1) % self.optimization.accumulate == 0 or step + 1 == self.total_steps

    def scaler_state(self) -> dict[str, Any]:
        """Return the state of the loss scaler; empty if its scale is constant."""
        return {} if self._skips_bad_updates else dict(self.scaler.state_dict())

    def load_scaler_state(self, state: dict[str, Any]) -> None:
        """Restore `scaler_state`. The state of a run in another precision is ignored."""
        if state and not self._skips_bad_updates:
            self.scaler.load_state_dict(state)

    def _copy_statistics(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return the buffers that a forward pass changes (running means and variances), each with a copy."""
        return [(buffer, buffer.clone()) for buffer in self.model.buffers() if buffer.is_floating_point()]

    def _loss(self, scores: torch.Tensor, labels: torch.Tensor, partners: torch.Tensor, share: float) -> torch.Tensor:
        from torch.nn.functional import cross_entropy

        smoothing = self.optimization.label_smoothing
        loss: torch.Tensor = cross_entropy(scores, labels, label_smoothing=smoothing)
        if share < 1:
            loss = share * loss + (1 - share) * cross_entropy(scores, partners, label_smoothing=smoothing)
        return loss

    def _update_weights(self, step: int) -> None:
        """Update the weights with the accumulated gradients, then the average of the weights."""
        import torch

        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate(step) * group["scale"]
        if self.optimization.clip_norm:
            self.scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.optimization.clip_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update(1.0 if self._skips_bad_updates else None)
        self.optimizer.zero_grad(set_to_none=True)
        if self.average is not None:
            self.average.update(self.model, step // self.optimization.accumulate)


def autocast_dtype(precision: Precision, device: Device) -> torch.dtype | None:
    """Return the half precision to compute in, or None for float32. Raise UsageError for fp16 without a GPU."""
    import torch

    if device.simulated or precision == "fp32" or (precision == "auto" and device.kind == "cpu"):
        return None
    if precision == "fp16" and device.kind == "cpu":
        raise UsageError("fp16 needs a GPU", hint="--precision bf16 or fp32")
    if precision == "auto":
        half: torch.dtype = torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
        return half
    return torch.bfloat16 if precision == "bf16" else torch.float16


def _build_model(options: Options, device: Device, classes: int) -> tuple[nn.Module, str | None]:
    """Return the model on its device, and a description of the pretrained weights that were loaded into it, if any."""
    import torch

    # Built on a simulated device too, to check its name: the same command must work on the real device.
    model = factory.build_model(
        options.model, classes=classes, image_size=options.image_size, blurpool=options.optimization.blurpool
    )
    loaded = load_pretrained(model, options.pretrained, name=options.model) if options.pretrained else None
    if device.simulated:
        model, loaded = factory.build_stand_in(classes), None
    elif options.sync_batch_norm:
        model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)
    layout = torch.channels_last if options.channels_last else torch.contiguous_format
    return model.to(device.torch_name, memory_format=layout).train(), loaded


def _wrap_model(model: nn.Module, ranks: Ranks, device: Device, *, compiled: Compile) -> Any:
    """Return the model as a step calls it: compiled if asked for, and averaging gradients over several ranks."""
    import torch

    if compiled != "off" and not device.simulated:
        # One graph for each image size: progressive resizing has few sizes, and fixed shapes are faster.
        mode = "reduce-overhead" if compiled == "graphs" else "default"
        model = torch.compile(model, mode=mode, dynamic=False)
    if ranks.world_size == 1:
        return model
    indices = [int(device.torch_name.partition(":")[2])] if device.kind == "cuda" else None
    return torch.nn.parallel.DistributedDataParallel(model, device_ids=indices, gradient_as_bucket_view=True)
