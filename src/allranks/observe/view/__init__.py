"""How a run stands and how it went, read from its folder: what top, web, report and the exporters show."""
