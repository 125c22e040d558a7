"""From a session to a diagnosis.

- `rules/input`: STORAGE_LATENCY and the other causes of slow input; `rules/` lists the modules of all causes.
- `fixes/`: one record for each fix: when it is offered, its prediction, its command, and how `diagnose --verify` applies it.
  `headrace.profiling.verify_fixes` runs the command again with each fix.
- `measure/`: the quantities of ranks, batches, pauses and the machine.

`diagnose` calls, in this order: `measure` (quantities per rank and machine), `step_model`, `rules` (causes), `fixes` (what to
change, with `prediction`). `kinds` holds the record of each verdict.

- `confidence`: The confidence of a verdict, and the noise of the machine.
- `diagnose`: Diagnose a session: what sets the pace of the step, how sure that is, and what each fix would bring.
- `enough_steps`: How many steps a verdict needs: the one rule for `diagnose`, `watch`, the first verdict and re-runs of
  `--verify`.
- `fail_if`: `--fail-if`: a condition on the result of a diagnosis, such as `input_share > 0.1 and steps >= 50`.
- `gpu_settings`: The rules for settings that cost a job on a GPU speed, whatever its verdict is.
- `hot_functions`: Functions that take the time of making a batch and of the training step, and their flame charts, from
  sampled stacks.
- `job`: The measured job: everything that the rules and the fixes look at.
- `kinds`: The verdict kinds: the closed list of causes, with everything in the package that depends on a kind.
- `model`: The result of a diagnosis as plain data: verdict, findings, fixes, and the series that a report draws.
- `notes`: Notes beside the findings: what a watched run shows that no change of speed would mend.
- `not_measured`: What could not be measured in a session, and why.
- `prediction`: Predict the rate after a fix, with an interval, from the step model.
- `reachable`: What the best fix of a diagnosis reaches, and whether the order of its fixes is known.
- `read_rate`: The highest rate at which storage delivers a job's own files, from the read sweep in a session.
- `sagemaker_rules`: The rules of SageMaker Debugger's ProfilerReport, applied to a session for comparison.
- `series`: Series that a report draws, computed from a session: cores over time, the timeline of steps, stages of the
  workers.
- `startup`: The start-up of a job: the time from the command to the end of the first step, in parts.
- `stats`: Statistics of a series of numbers.
- `step_model`: The step model: which of four resources sets the pace of a step, now and after a change.
- `step_shares`: The parts of a step, as shares that sum to 1.
- `tables`: Tables of a diagnosis: environment, percentiles, ranks.
"""
