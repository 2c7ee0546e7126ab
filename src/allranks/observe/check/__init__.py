"""Checks of what a training relies on, run on the actual machines."""

from __future__ import annotations

CHECKS = {
    "signal": "Does the signal before the end of a job reach every rank? A job of one minute.",
}
"""The checks that ``allranks check`` offers, with a line of help."""

CHECK_FILE = "check.json"
"""In the run folder of a check: its result in detail, and as text."""
