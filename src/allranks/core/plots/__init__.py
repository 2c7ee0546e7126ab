"""Pictures as SVG text, with the standard library alone: lines, stacked bars, heat maps."""

from allranks.core.plots.bar_chart import bar_plot
from allranks.core.plots.heatmap import heat_plot
from allranks.core.plots.line_chart import LineSeries, line_plot

__all__ = ["LineSeries", "bar_plot", "heat_plot", "line_plot"]
