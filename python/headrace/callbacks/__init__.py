"""`headrace.watch` as a callback of a trainer: `headrace.callbacks.lightning` and `headrace.callbacks.transformers`."""
