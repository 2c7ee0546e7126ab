"""The view of a run, read from its folder: what top, web, report and the exporters show."""
