"""Sessions: what a run recorded, as data. `model` defines and stores them, `kineto` reads them from profiler traces.

- `kineto`: Read a session from a trace of PyTorch's profiler (`export_chrome_trace`, Kineto's JSON).
- `machine`: The machine of a session: its facts, and the samples of its counters, as plain data.
- `merge_loaders`: Merge the loaders of a script that creates its DataLoader again in each epoch: one loader with several
  epochs.
- `model`: The session: what a run recorded, as plain data.
- `typed_json`: JSON values of a session or a diagnosis, converted to the types of their dataclasses, or refused.
"""
