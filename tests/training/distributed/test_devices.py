"""Devices by name."""

from __future__ import annotations

import pytest
from headrace.training.distributed import devices


def test_open_device_understands_each_name() -> None:
    pytest.importorskip("torch")
    assert devices.open_device("sim:a100").name == "simulated A100"
    assert devices.open_device("sim:1200").name == "simulated GPU (1200 img/s)"
    assert devices.open_device("cpu").kind == "cpu"
