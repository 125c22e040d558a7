"""The parts of the trainer: options, state, preparation, metrics. The loop itself is `headrace.training.loop`."""
