"""Measure the quantities that decide a diagnosis from a session: per rank, per batch, and for the machine.

Means are taken over steady steps. `step_model` combines these quantities into the time of a step.
"""

from headrace.diagnosis.measure.batch_cost import BatchCost
from headrace.diagnosis.measure.machine import Copying, Machine, measure_machine
from headrace.diagnosis.measure.pauses import EpochGaps, Pauses
from headrace.diagnosis.measure.rank import Rank, exposed_waits_s, has_native_threads, measure_ranks

__all__ = [
    "BatchCost",
    "Copying",
    "EpochGaps",
    "Machine",
    "Pauses",
    "Rank",
    "exposed_waits_s",
    "has_native_threads",
    "measure_machine",
    "measure_ranks",
]
