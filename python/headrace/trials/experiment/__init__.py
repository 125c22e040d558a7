"""An experiment before it is run: its cells, data, transforms and device; and the verdict of a cell."""
