"""HTML and SVG as values, what all charts share, charts, heat map, timeline."""
