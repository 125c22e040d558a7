"""Short experiments in the running job: time one worker alone, override loader arguments, repeat the same batch."""
