"""`headrace.watch` as a callback of a trainer: `headrace.callbacks.lightning` and `headrace.callbacks.transformers`.

- `lightning`: A Lightning callback that records `Trainer.fit` and diagnoses it.
- `transformers`: A callback for Hugging Face's Trainer that records `train()` and diagnoses it.
"""
