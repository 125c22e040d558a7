"""The trainer behind `headrace train`. Start reading at `loop.py`.

Its rooms, ground first:

- `distributed`: several processes of one run: launcher, ranks, devices.
- `models`: models by name, and pretrained weights.
- `settings`: the options of a run: defaults, presets, files, optimizers.
- `weights`: weights on disk: checkpoints, resume, uploads, export, evaluation.
- `logs`: metrics and loggers.
- `learning`: one training step: forward, backward, optimizer.
- `inputs`: the data of a run: datasets and loaders.
- `tune`: short measurements that choose the settings of a run.
"""
