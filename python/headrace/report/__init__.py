"""A diagnosis for people and for other programs: terminal, HTML, JSON, Perfetto trace, OpenMetrics text, TensorBoard.

`screen` decides what the first screen holds; `terminal` and `html` draw it, so that the two cannot disagree.
"""
