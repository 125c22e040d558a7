"""A diagnosis for people and for other programs: terminal, HTML, JSON, Perfetto trace, OpenMetrics text, TensorBoard.

Its rooms, ground first:

- `text`: a diagnosis as text: numbers, parts of the step, the first screen.
- `sessions`: session folders: read, written, compared, shared.
- `drawing`: HTML and SVG as values, charts, heat map, timeline.
- `pages`: HTML pages: reports of sessions, datasets and training runs.
- `exports`: JSON, Perfetto, OpenMetrics, TensorBoard.

`screen` decides what the first screen holds; `terminal` and `html` draw it, so that the two cannot disagree.
"""
