"""`headrace.watch` as a callback: `headrace.callbacks.lightning` and `headrace.callbacks.transformers`."""
