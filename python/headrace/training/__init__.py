"""The trainer behind `headrace train`. Start reading at `loop.py`."""
