"""What a worker process would have: its random streams, settings, warnings, errors."""
