"""The metrics of a run: metrics.jsonl, copies for other loggers, the timer of the loop."""
