"""The options of a run: defaults, presets, files, optimizers."""
