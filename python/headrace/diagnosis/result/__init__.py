"""The result as plain data, the kinds of verdicts, and `--fail-if` on it."""
