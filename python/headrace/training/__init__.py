"""The trainer behind `headrace train`. Start reading at `loop.py`.

- `checkpoint`: Checkpoints: tensors in safetensors, everything else in JSON, both with SHA-256.
- `data`: The training and validation datasets of a run.
- `devices`: Where a model computes: on the CPU, on a CUDA GPU, or on a simulated GPU.
- `dry_run`: The dry run: what a training run would take (steps, sizes, time, memory, money), from short measurements.
- `enlarging`: Images much smaller than the training size: enlarging them costs compute and adds no information.
- `environment`: Machine and software of a run, for the first line of metrics.jsonl and the report.
- `evaluation`: Evaluation: top-1 and top-5 accuracy on a validation set, every image counted exactly once.
- `export`: Export of trained weights to other formats. Each file is loaded again and its scores are compared with the
  model's.
- `inference`: Prediction: the most probable classes of images in files, folders or datasets. A bad image does not end it.
- `input`: The input of a run: loaders for training and evaluation, with their transforms and image sizes.
- `learner`: One training step: the model, the gradients of a batch, the optimizer's update, and the average of the weights.
- `loggers`: Loggers: copies of the metrics for TensorBoard, MLflow, and Weights & Biases.
- `loop`: The training loop, written to be read from top to bottom.
- `metrics`: metrics.jsonl: the metrics of a training run, one JSON object a line.
- `mixing`: MixUp and CutMix in training: draws of share and rectangle. The arithmetic is `headrace.loading.mixing`'s.
- `nonfinite_loss`: Losses that are not finite: report the step and its records; skip its update, or end the run.
- `optimization`: Optimization: learning rate schedule, optimizer, parameter groups. Numbers carry their source.
- `options`: The options of a training run.
- `options_file`: Options of a training run as a TOML file: read for `--config`, written as config.toml into the run's
  folder.
- `preflight`: Checks before the first step that need the model or the output folder.
- `prepare`: Everything before the first step: data, model, optimizer, output folder, and the checkpoint to continue from.
- `presets`: Presets (`--recipe NAME`): options that belong together, with their source. Options on the command line come on
  top.
- `resolve_options`: Resolve the options of a run: defaults, then a preset, then a TOML file, then the command line; the last
  one wins.
- `resume`: Resuming: which checkpoint a run continues from, and where in the data it continues.
- `saved_state`: The state of a checkpoint, read field by field: a file may come from anybody, and its JSON may hold anything.
- `sharded_data`: Data of which each host holds only its own shards: the hosts agree on the classes and count their
  images.
- `state`: The state of a training run: in memory, in a checkpoint, and back.
- `step_timer`: The clock of a training loop: images a second, and how much of the time the device waits for input.
- `stop_signal`: Requests to stop: SIGTERM (spot machines, SageMaker), SIGUSR1 (Slurm) and Ctrl-C set a flag that the loop
  reads.
- `tensorboard_events`: Scalars in the event files that TensorBoard reads, written without TensorFlow or the tensorboard
  package.
- `uploads`: Checkpoints in an object store: uploaded in the background, read back and compared, and loaded from there.
- `weight_average`: The exponential moving average of a model's weights, which often scores better than the weights
  themselves.
"""
