"""Looking at runs: the run view, top, web, report, export, scaling studies, checks."""
