"""The verbs of the command line: `diagnose`, `watch`, `run`, `report`, `compare`, `doctor` and `demo`."""
