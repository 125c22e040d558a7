"""Draw the charts of HTML pages: building HTML and SVG, scales and axes, step bars, heat map, timeline."""
