"""A slow model that records the images of each training step, for `--model recording:make`."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import torch
from tiny import make as make_tiny
from torch import nn

STEP_S = 0.05


class Recording(nn.Module):
    """Appends a line of image digests for each step to $HEADRACE_TEST_RECORD/RANK."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.inner = make_tiny(classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if self.training:
            digests = [hashlib.sha256(image.contiguous().numpy().tobytes()).hexdigest()[:12] for image in images]
            with (Path(os.environ["HEADRACE_TEST_RECORD"]) / os.environ.get("RANK", "0")).open("a") as file:
                file.write(" ".join(digests) + "\n")
            time.sleep(STEP_S)
        return self.inner(images)


def make(num_classes: int) -> nn.Module:
    return Recording(num_classes)
