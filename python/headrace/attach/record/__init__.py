"""What writes the session: hooks on imports, counters, stacks, the log."""
