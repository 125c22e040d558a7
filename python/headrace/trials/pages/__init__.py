"""Charts, page and summary."""
