"""The job files of the examples render, on their sites, to scripts that bash can read."""

from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path

import pytest
from allranks.job.resolve import resolve
from allranks.script import render

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "examples" / "documents").glob("*.toml"))
