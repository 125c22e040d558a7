"""Hooks that change the running job to measure something: time one worker alone, override loader arguments, repeat a batch."""
