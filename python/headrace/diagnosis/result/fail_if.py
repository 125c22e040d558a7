"""`--fail-if`: a condition on the result of a diagnosis, such as `input_share > 0.1 and steps >= 50`.

A condition names parts of `share_of_step`, `input_share` (the sum of its input parts), fields of the JSON result that hold
one value (`img_s`, `ceiling_img_s`, `wait_share`, `step_s`, `confidence`, `steps`, …), `verdict`, or `end` (its kind). It
consists of comparisons, `and`, `or`, `not`, numbers and quoted words. No code of the condition is executed.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

from headrace.diagnosis.result.model import SHARES, Diagnosis
from headrace.errors import HeadraceError, UsageError

__all__ = ["Condition", "condition_values"]

FIELDS = (
    "verdict", "confidence", "img_s", "ceiling_img_s", "wait_share", "step_s", "step_p95_s", "steps", "ranks",
    "wasted_gpu_hours_per_100", "gpu_scaling", "exit_code", "duration_s",
)  # fmt: skip
OTHERS = ("input_share", "end")

COMPARISONS: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}


def condition_values(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return everything that a condition can name, with its value; None means not measured."""
    named: dict[str, Any] = {name: getattr(diagnosis, name) for name in FIELDS}
    named.update(diagnosis.share_of_step)
    named["input_share"] = sum(share for name, share in diagnosis.share_of_step.items() if name.startswith("input_"))
    named["end"] = diagnosis.end.kind if diagnosis.end is not None else None
    return named


class Condition:
    """A parsed condition, such as `Condition("input_share > 0.1")`. Raises `UsageError` for anything else than comparisons."""

    def __init__(self, text: str) -> None:
        self.text = text
        try:
            self._tree = ast.parse(text, mode="eval").body
        except SyntaxError as error:
            raise UsageError(f"--fail-if: {text!r} is not a condition", hint='for example "input_share>0.1"') from error
        self._check(self._tree)

    def holds(self, diagnosis: Diagnosis) -> bool:
        """Return whether the condition is true. Raises `HeadraceError` when a value that it names was not measured."""
        return bool(self._value(self._tree, condition_values(diagnosis)))

    def _check(self, node: ast.expr) -> None:
        known = {*FIELDS, *SHARES, *OTHERS}
        if isinstance(node, ast.BoolOp):
            for part in node.values:
                self._check(part)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
            self._check(node.operand)
        elif isinstance(node, ast.Compare) and all(type(op) in COMPARISONS for op in node.ops):
            for part in (node.left, *node.comparators):
                self._check(part)
        elif isinstance(node, ast.Name):
            if node.id not in known:
                raise UsageError(f"--fail-if: there is no {node.id!r}", hint="names: " + " ".join(sorted(known)))
        elif not (isinstance(node, ast.Constant) and isinstance(node.value, int | float | str)):
            raise UsageError(f"--fail-if: {ast.unparse(node)!r} is not understood", hint='for example "input_share>0.1"')

    def _value(self, node: ast.expr, named: Mapping[str, Any]) -> Any:
        if isinstance(node, ast.BoolOp):
            each = (bool(self._value(part, named)) for part in node.values)
            return all(each) if isinstance(node.op, ast.And) else any(each)
        if isinstance(node, ast.UnaryOp):
            value = self._value(node.operand, named)
            return not value if isinstance(node.op, ast.Not) else -value
        if isinstance(node, ast.Compare):
            parts = [self._value(part, named) for part in (node.left, *node.comparators)]
            try:
                return all(
                    COMPARISONS[type(op)](left, right) for op, left, right in zip(node.ops, parts, parts[1:], strict=False)
                )
            except TypeError as error:
                raise UsageError(f"--fail-if: {ast.unparse(node)!r} compares a word with a number") from error
        if isinstance(node, ast.Name):
            if named[node.id] is None:
                raise HeadraceError(f"--fail-if: {node.id} was not measured in this run")
            return named[node.id]
        assert isinstance(node, ast.Constant)
        return node.value
