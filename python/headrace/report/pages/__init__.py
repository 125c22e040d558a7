"""HTML pages: reports of sessions, datasets and training runs."""
