"""Turn a session (what a run recorded) into a diagnosis (what limits the run, and what each fix would gain).

Its rooms, ground first:

- `result`: the result as plain data, the kinds of verdicts, and `--fail-if` on it.
- `measure`: quantities of a session, the step model, and predictions from it.
- `rules`: the rules: measured quantities become findings.
- `fixes`: the fixes, each with its offer and its prediction.
- `endings`: how the command ended.
- `findings`: the parts of a diagnosis beside the verdict: confidence, notes, tables, GPU settings.

`diagnose` calls, in this order: `measure` (quantities per rank and machine), `step_model`, `rules` (causes), `fixes` (what to
change, with `prediction`). `kinds` holds the record of each verdict.
"""
