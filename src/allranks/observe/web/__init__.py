"""The web page: runs, their plots, logs and attempts, in a browser on this machine."""
