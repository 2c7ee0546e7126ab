"""A plan and an environment are read with tolerance: both may be torn, or of another user."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from allranks.runs.run_records import environment, plan_rows, plan_time, plan_values

PLAN = {
    "values": [{"name": "time", "value": "2h", "origin": "site"}, 7, {"name": "x", "value": None}]
}


def test_values_of_a_plan() -> None:
    assert plan_rows(PLAN) == [("time", "2h", "site"), ("x", "None", "")]
    assert plan_values(PLAN) == {"time": "2h", "x": "None"}
    assert plan_time(PLAN) == 7200


@pytest.mark.parametrize(
    "plan", [{}, {"values": 3}, {"values": [{"name": "time", "value": "soon"}]}]
)
def test_a_plan_without_a_time(plan: dict[str, Any]) -> None:
    assert plan_time(plan) is None


def test_an_environment(tmp_path: Path) -> None:
    assert environment(tmp_path) == {}
    path = tmp_path / "environment.txt"
    path.write_bytes(b"A=1\nB=x=y\nno pair\nC=\xff\n")
    assert environment(tmp_path) == {"A": "1", "B": "x=y", "C": "\ufffd"}
    (tmp_path / "mine").write_text("SECRET=1\n")
    path.unlink()
    path.symlink_to("mine")
    assert environment(tmp_path) == {}
    path.unlink()
    os.mkfifo(path)
    assert environment(tmp_path) == {}
