"""An experiment before it is run: its cells (single measurements), data, transforms and device; and a cell's verdict."""
