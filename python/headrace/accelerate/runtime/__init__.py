"""State that all loaders of a process share: the pool of native threads, JPEG indexes, batch memory, `--data-map`."""
