"""The model and all that moves its weights: gradients of a batch, the optimizer's step, the average of the weights."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from headrace.errors import UsageError
from headrace.training.devices import Device, make_deterministic, make_fast
from headrace.training.distributed.ranks import Ranks
from headrace.training.mixing import mix
from headrace.training.models import factory
from headrace.training.models.pretrained import load_pretrained
from headrace.training.optimization import learning_rate, make_optimizer
from headrace.training.options import Compile, Options, Precision
from headrace.training.weight_average import WeightAverage

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = ["Learner", "autocast_dtype"]


class Learner:
    """Trains `model`, batch by batch. `total_steps` and `warmup_steps` shape the learning rate; a step is one batch.

    `model` is the plain one, whose weights are saved; `average` is evaluated and saved in its place where there is one.
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
        self.model, self.loaded = _build(options, device, classes)
        self._step_model = _wrapped(self.model, ranks, device, compiled=options.compile)
        self.average = WeightAverage(self.model, self.optimization.average) if self.optimization.average else None
        self.optimizer = make_optimizer(self.model, self.optimization, fused=device.kind == "cuda")
        half = self.autocast == torch.float16
        # The scaler leaves out updates with gradients that are not finite, without waiting for the device: with a scale of 1
        # it does that alone.
        self._guarded = options.nan_steps > 0 and not half
        scale = {"init_scale": 1.0} if self._guarded else {}
        self.scaler: Any = torch.amp.GradScaler(device.torch_type, enabled=half or self._guarded, **scale)

    @property
    def judged(self) -> nn.Module:
        """The model that is evaluated and kept: the average, if there is one."""
        return self.model if self.average is None else self.average.model

    def learn(self, step: int, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """One batch's gradients and, when enough have been added up, a step of the optimizer; the loss, on the device."""
        import torch

        # All randomness of a step comes from (seed, step, rank): nothing of it needs to be saved.
        torch.manual_seed((self.options.seed * 1_000_003 + step) * 65_536 + self.ranks.rank)
        moves = (step + 1) % self.optimization.accumulate == 0 or step + 1 == self.total_steps
        partners, share = labels, 1.0
        if not self.device.simulated:
            if not self.options.channels_last:
                images = images.contiguous()
            images, partners, share = mix(images, labels, mixup=self.optimization.mixup, cutmix=self.optimization.cutmix)
        statistics = self._statistics() if self._guarded else []
        # Between updates, ranks need not exchange gradients.
        with nullcontext() if moves or self.ranks.world_size == 1 else self._step_model.no_sync():
            with torch.autocast(self.device.torch_type, dtype=self.autocast, enabled=self.autocast is not None):
                loss = self._loss(self._step_model(images), labels, partners, share)
            self.scaler.scale(loss / self.optimization.accumulate).backward()
        for statistic, before in statistics:  # a batch that is not finite must not leave its trace there
            statistic.copy_(torch.where(loss.detach().isfinite(), statistic, before))
        if moves:
            self._move(step)
        return loss.detach()

    def _statistics(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """What a forward pass changes (running means and variances), each with a copy of it."""
        return [(one, one.clone()) for one in self.model.buffers() if one.is_floating_point()]

    def scaler_state(self) -> dict[str, Any]:
        """What the loss scaler has learnt; nothing where it only guards."""
        return {} if self._guarded else dict(self.scaler.state_dict())

    def load_scaler_state(self, state: dict[str, Any]) -> None:
        """Continues with `scaler_state`; of a run in another precision, the scaler begins anew."""
        if state and not self._guarded:
            self.scaler.load_state_dict(state)

    def _loss(self, answers: torch.Tensor, labels: torch.Tensor, partners: torch.Tensor, share: float) -> torch.Tensor:
        from torch.nn.functional import cross_entropy

        smoothing = self.optimization.label_smoothing
        loss: torch.Tensor = cross_entropy(answers, labels, label_smoothing=smoothing)
        if share < 1:
            loss = share * loss + (1 - share) * cross_entropy(answers, partners, label_smoothing=smoothing)
        return loss

    def _move(self, step: int) -> None:
        """One step of the optimizer with the gradients that have been added up."""
        import torch

        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate(step) * group["scale"]
        if self.optimization.clip_norm:
            self.scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.optimization.clip_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update(1.0 if self._guarded else None)
        self.optimizer.zero_grad(set_to_none=True)
        if self.average is not None:
            self.average.update(self.model, step // self.optimization.accumulate)

    def learning_rate(self, step: int) -> float:
        """The rate at a step; its peak is the recipe's for what all ranks and accumulated batches together hold."""
        peak = self.optimization.peak_rate(self.options.batch_size * self.ranks.world_size * self.optimization.accumulate)
        steps = {"warmup_steps": self.warmup_steps, "total_steps": self.total_steps}
        return learning_rate(step, peak=peak, schedule=self.optimization.schedule, **steps)


def autocast_dtype(precision: Precision, device: Device) -> torch.dtype | None:
    """The half precision to compute in, or None for float32. Raises UsageError for fp16 without a GPU."""
    import torch

    if device.simulated or precision == "fp32" or (precision == "auto" and device.kind == "cpu"):
        return None
    if precision == "fp16" and device.kind == "cpu":
        raise UsageError("fp16 needs a GPU", hint="--precision bf16 or fp32")
    if precision == "auto":
        half: torch.dtype = torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
        return half
    return torch.bfloat16 if precision == "bf16" else torch.float16


def _build(options: Options, device: Device, classes: int) -> tuple[nn.Module, str | None]:
    """The model, and what was loaded into it."""
    import torch

    # The name is checked on a simulated device too: the same command must work on the real one.
    model = factory.build_model(
        options.model,
        classes=classes,
        image_size=options.image_size,
        blurpool=options.optimization.blurpool,
    )
    loaded = load_pretrained(model, options.pretrained, name=options.model) if options.pretrained else None
    if device.simulated:
        model, loaded = factory.build_stand_in(classes), None
    elif options.sync_batch_norm:
        model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)
    layout = torch.channels_last if options.channels_last else torch.contiguous_format
    return model.to(device.torch_name, memory_format=layout).train(), loaded


def _wrapped(model: nn.Module, ranks: Ranks, device: Device, *, compiled: Compile) -> Any:
    """The model as the step calls it: compiled if asked, and averaging gradients over the ranks if there are several."""
    import torch

    if compiled != "off" and not device.simulated:
        # One graph for each image size: progressive resizing has few, and fixed shapes are faster.
        mode = "reduce-overhead" if compiled == "graphs" else "default"
        model = torch.compile(model, mode=mode, dynamic=False)
    if ranks.world_size == 1:
        return model
    indices = [int(device.torch_name.partition(":")[2])] if device.kind == "cuda" else None
    return torch.nn.parallel.DistributedDataParallel(model, device_ids=indices, gradient_as_bucket_view=True)
