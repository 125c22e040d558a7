"""What all loaders of the process share: the native engine, JPEG indexes, memory of batches, `--data-map`."""
