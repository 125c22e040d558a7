"""Delay the line on a loader with lazy images until its first batches show what is native and whether that is faster."""

from __future__ import annotations

from collections.abc import Callable

from headrace.accelerate.lazy.loader import trial_reason
from headrace.accelerate.lazy.native_work import work_words
from headrace.accelerate.lazy.trial import Trial, TrialState
from headrace.attach.record.log import log_line

__all__ = ["AwaitedLine"]


class AwaitedLine:
    """The line of `headrace run` on one loader, printed once it is measured whether lazy images are faster.

    `taken_over` and `left_alone` report the decision: they are given what is native, or why nothing is.
    """

    def __init__(self, trial: Trial, taken_over: Callable[[str], None], left_alone: Callable[[str], None]) -> None:
        self._trial = trial
        self._taken_over = taken_over
        self._left_alone = left_alone

    def look(self, at_end: bool) -> bool:
        """Print the line if the result is known by now. Return False once there is nothing more to print.

        `at_end`: the pass or the process ends, so that what is known so far must do.
        """
        for line in self._trial.lines():
            log_line(line)
        state, native = self._trial.state, work_words(self._trial.work())
        if state in (TrialState.NOT_FASTER, TrialState.NO_JPEG):
            self._left_alone(trial_reason(self._trial))
            return False
        if native and (state is TrialState.LAZY or at_end):
            self._taken_over(native)
            return state is TrialState.MEASURING
        if at_end:
            self._left_alone("its items have opened no JPEG with Pillow, OpenCV or torchvision.io")
        return True
