"""Pictures as SVG text, with the standard library alone: lines, stacked bars, heat maps."""

from allranks.plots.bars import bar_plot
from allranks.plots.heat import heat_plot
from allranks.plots.lines import Line, line_plot

__all__ = ["Line", "bar_plot", "heat_plot", "line_plot"]
