"""A diagnosis for people and for other programs: terminal, HTML, JSON, Perfetto trace, OpenMetrics text.

`screen` says what the first screen shows; `text` and `html` draw that same screen, so the two cannot disagree.
"""
