"""Checks of what a training relies on, made on the very machines: one file each."""

from __future__ import annotations

CHECKS = {
    "signal": "Does the signal before the end of a job reach every rank? A job of one minute.",
}
"""The checks that ``allranks check`` offers, with a line of help."""

KEPT = "check.json"
"""In the run folder of a check: what it found, in all detail and in words."""
