"""HTML and SVG as values, charts, heat map, timeline."""
