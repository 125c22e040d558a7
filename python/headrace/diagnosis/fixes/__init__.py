"""The fixes: one record per fix id, with its offer, its prediction, its command, and its re-measurement.

| module             | fix ids                                                            |
|--------------------|--------------------------------------------------------------------|
| `workers`          | num_workers=N, prefetch=N, persistent_workers, spread_workers       |
| `images`           | headrace_run, pre_resize, pack, cache                              |
| `gpu_decode`       | gpu_decode                                                         |
| `batches`          | batch_size=N, uint8_batches, pin_memory                            |
| `training_process` | threads=N, remove_sync, async_checkpoint, gc_freeze, remove_gc_collect, less_often |
| `model`            | amp, channels_last, compile, more_gpus, flush_denormal, modes       |
| `tensorflow`       | the same ids in TensorFlow's terms, to_tf_dataset, steps_per_execution=N |
| `native_loader`    | the same ids in the terms of headrace's own loader and `train`      |

`fix_kind` defines the records `FixKind` and `Rerun`. `registry` holds all fixes and chooses those of a finding.
`worker_limits` bounds the number of workers. `take_over` says whether `headrace run` can be applied to the loader.

To add a fix:
1. Write a function `(job, kind) -> Fix | None` in one of these modules, and a `FixKind` record below the function. The record
   also says how `diagnose --verify` applies the fix.
2. Add the record to the tuple `_ALL` in `registry`; `registry.FIXES` is made from it.
3. Add its name to `fixes` of each kind that offers the fix, in `headrace.diagnosis.result.kinds`: `_VERDICTS` for causes,
   `_SETTINGS` for settings of a job on a GPU.
4. If the fix also exists for TensorFlow's pipelines or headrace's own loader, offer it in `tensorflow` or `native_loader`,
   which do not read `FIXES`.

`headrace/profiling/verify_fixes.py` does the re-runs of `diagnose --verify`: `launch_with` applies the `Rerun` of a fix.
"""
