"""Checkpoints need torch; without it their tests have nothing to say."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
