"""A diagnosis in formats that other programs read: JSON, Perfetto, OpenMetrics, TensorBoard.

- `json`: The diagnosis as one JSON document with a published schema (`docs/reference/diagnosis.schema.json`).
- `openmetrics`: The diagnosis as OpenMetrics text, for Prometheus' textfile collector or any scraper (OpenMetrics 1.0).
- `perfetto`: The session as a trace for ui.perfetto.dev or chrome://tracing (Trace Event Format, JSON).
- `tensorboard`: The session as scalars for TensorBoard: an event file, written without TensorFlow or the tensorboard
  package.
"""
