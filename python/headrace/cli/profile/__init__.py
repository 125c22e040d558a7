"""`diagnose`, `watch`, `run`, `report`, `compare`, `doctor`, `demo`."""
