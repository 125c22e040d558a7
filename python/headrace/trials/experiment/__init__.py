"""One experiment: its cells, source, transforms, device."""
