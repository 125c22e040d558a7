"""The verbs `diagnose`, `watch`, `run`, `report`, `compare`, `doctor` and `demo`."""
