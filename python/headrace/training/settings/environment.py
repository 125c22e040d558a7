"""Machine and software of a run, for the first line of metrics.jsonl and the report."""

from __future__ import annotations

import platform

from headrace._native import __version__
from headrace.system.hardware import machine
from headrace.training.distributed.devices import Device

__all__ = ["environment"]


def environment(device: Device) -> dict[str, str]:
    """Return name → value of the machine, device and software versions, for people."""
    import torch

    cores = machine.cores()
    found = {
        "machine": platform.node(),
        "CPU": machine.processor().model or platform.machine(),
        "usable cores": f"{cores.usable:g}",
    }
    if device.kind == "cuda":
        facts = torch.cuda.get_device_properties(device.torch_name)
        count = torch.cuda.device_count()
        found["GPUs here"] = f"{count} × {device.name}, {facts.total_memory / 2**30:.0f} GiB"
        found["CUDA, cuDNN"] = f"{torch.version.cuda}, {torch.backends.cudnn.version()}"
    found |= {"Python": platform.python_version(), "PyTorch": torch.__version__, "headrace": __version__}
    return found | {"kernel": f"{platform.system()} {platform.release()}", "torch threads": str(torch.get_num_threads())}
