"""Session folders: read and write a diagnosis, compare two sessions, remove private facts before sharing."""
