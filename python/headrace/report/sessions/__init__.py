"""Session folders: read, written, compared, shared."""
