"""job.toml reads back to the same plan, and plan.json tells what was decided."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import given as given_values
from hypothesis import strategies as st

from allranks.job.fields import LAUNCHER_NAMES, Job
from allranks.job.plan_record import job_toml, plan_record
from allranks.job.resolve import resolve
from allranks.job.sbatch import render


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("ALLRANKS_SITE", raising=False)
    (tmp_path / ".git").mkdir()
    (tmp_path / "train.py").write_text("import torch\n")
    return tmp_path


JOBS: dict[str, dict[str, Any]] = {
    "small": {},
    "large": {"nodes": 2, "gpus_per_node": "A100:4", "time": "1d12h", "memory": "65000M", "nprocs": 4},
    "per task": {"gpus_per_task": 1, "tasks_per_node": 2, "nodes": 2},
    "whole nodes": {"site": "lumi", "account": "p", "gpus_per_node": 8, "exclusive": True},
    "derived": {"site": "lumi", "account": "p", "gpus_per_node": 2, "partition": "small-g"},
    "environment": {
        "modules": ["a/1", "b"], "module_purge": False, "env": {"A": "x\ny", "B": "'"}, "venv": "/e v",
        "setup_commands": ["a\nb # c"], "container": "i.sif", "binds": ["/a:/b:ro"], "sbatch": {"hold": ""},
    },
    "switches": {"requeue": False, "agent": False, "snapshot": "off", "launcher": "torchrun"},
    "awkward": {"comment": "\"it's\" \\ # $(x)", "args": ["", "-n", "ü\n\t"], "account": "007"},
}  # fmt: skip


@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize("launcher", ["auto", "torchrun", "python"])
def test_job_toml_reads_back_to_the_same_plan(name: str, launcher: str, here: Path) -> None:
    fields = {"launcher": launcher, **JOBS[name]}
    if "tasks_per_node" in fields:
        fields["launcher"] = "srun"
    plan = resolve(Job("train.py", **fields))
    check(plan, here)


def check(plan: Any, here: Path) -> None:
    (here / "job.toml").write_text(job_toml(plan), encoding="utf-8")
    again = resolve({}, config="job.toml")
    assert (again.shape, again.launcher, again.framework) == (
        plan.shape,
        plan.launcher,
        plan.framework,
    )
    assert render(again) == render(plan)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given_values(
    nodes=st.integers(1, 4),
    ranks=st.none() | st.integers(1, 8),
    gpus=st.none() | st.integers(1, 8),
    memory=st.none() | st.integers(0, 10**7),
    time=st.none() | st.integers(1, 10**6),
    launcher=st.sampled_from(LAUNCHER_NAMES),
    args=st.lists(
        st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), max_size=3
    ),
)
def test_any_job_reads_back(
    here: Path, nodes: int, ranks: int | None, gpus: int | None, **more: Any
) -> None:
    nprocs = ranks * nodes if ranks else None
    check(resolve(Job("train.py", nodes=nodes, nprocs=nprocs, gpus_per_node=gpus, **more)), here)


def test_plan_record_is_json_with_origins(here: Path) -> None:
    plan = resolve(Job("train.py", nodes=2, gpus_per_node="A100:4", time="2h"), source="Python")
    record = json.loads(json.dumps(plan_record(plan)))
    assert record["shape"] == {
        "nodes": 2, "ranks_per_node": 4, "world_size": 8, "tasks_per_node": 4,
        "gpus_per_node": "A100:4", "cpus_per_task": None, "memory_mib": None,
    }  # fmt: skip
    assert {"name": "time", "value": "02:00:00", "origin": "Python"} in record["values"]
    assert (record["launcher"], record["framework"], record["site"]) == ("srun", "torch", None)
    assert record["notes"] == list(plan.notes)
