"""Whole scripts, compared with files: every launcher in every environment, and the odd cases.

Write the files anew with: UPDATE_GOLDEN=1 pytest tests/job/sbatch/test_script_golden.py
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from script_rig import plan_of

from allranks._version import __version__
from allranks.cluster.sites.site_lookup import load_site
from allranks.job.launchers import LAUNCHERS
from allranks.job.plan import Plan
from allranks.job.sbatch import render

GOLDEN = Path(__file__).parent / "golden"
BASE: dict[str, Any] = {
    "args": ["--lr", "0.1", "--title", "it's $HOME"],
    "nodes": 2,
    "gpus_per_node": 4,
    "cpus_per_task": 8,
    "time": "2h",
}
ENVIRONMENTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "modules-conda": {
        "modules": ["gcc/12", "cuda/12.4"],
        "conda": "torch",
        "env": {"DATA": "/my data"},
    },
    "venv": {"venv": "/home/me/env", "setup": ["setup.sh"], "setup_commands": ["ulimit -n 65536"]},
    "apptainer": {
        "container": "/images/torch 2.sif",
        "binds": ["/data", "/scratch:/mnt/scratch:ro"],
        "venv": "/opt/my venv",
        "container_setup": ["export CXX=g++-12  # for kernels"],
    },
    "pyxis": {
        "container": "nvcr.io#nvidia/pytorch:24.10",
        "container_runtime": "pyxis",
        "binds": ["/data"],
    },
}
ODD: dict[str, dict[str, Any]] = {
    "one-node": {"nodes": 1},
    "one-rank": {"nodes": 1, "gpus_per_node": 1},
    "no-gpus": {"gpus_per_node": None, "nprocs": 8},
    "head-block": {"head": "n2", "interface": "ib0", "port": 29500},
    "head-cyclic": {"head": "n2", "distribution": "cyclic"},
    "gpus-per-task": {"gpus_per_node": None, "gpus_per_task": "A100:1", "tasks_per_node": 4},
    "signal-requeue": {"signal": "B:USR1@120", "requeue": True},
    "requeue-array": {"requeue": True, "array": "0-9", "exclude": "n9", "container": "i.sif"},
    "restarts": {"nodes": 1, "restarts": 2},
    "requeue-restarts": {
        "requeue": True, "restarts": 2, "max_attempts": 20, "max_no_progress": 5, "launcher": "torchrun",
    },
    "requeue-no-agent": {"nodes": 1, "requeue": True, "agent": False},
    "setup-on-node": {"modules": ["cuda"], "setup_on": "node"},
    "run-dir": {"chdir": "/my project"},
    "torchrun-static": {"launcher": "torchrun", "rendezvous": "static"},
    "torchrun-no-agent": {"launcher": "torchrun", "agent": False},
    "srun-no-agent": {"launcher": "srun", "agent": False},
    "mpirun-no-agent": {"launcher": "mpirun", "agent": False},
    "mpirun-intel": {"launcher": "mpirun", "mpi": "intel"},
    "program": {"script": "gmx_mpi", "launcher": "torchrun"},
    "module": {"script": "pkg.train", "module": True, "launcher": "launch"},
    "tensorflow": {"framework": "tensorflow"},
    "cleaned": {
        "launcher": "torchrun", "container": "i.sif", "container_args": ["--cleanenv"],
        "env": {"DATA": "/my data", "MY_KEY": "s"}, "venv": "/env",
    },
    "every-directive": {
        "name": "a job", "partition": "gpu", "account": "p1", "qos": "high", "constraint": "a100&ib",
        "reservation": "r", "exclusive": True, "nodelist": "n[1-2]", "exclude": "n9", "array": "0-9%2",
        "dependency": "afterok:1", "comment": "say \"hi\" # not \\ a comment", "mail_type": "END",
        "mail_user": "me@x.org", "wait_all_nodes": True, "signal": "USR1@60", "requeue": False,
        "output": "%x.out", "error": "%x.err", "memory": "0", "sbatch": {"hold": "", "nice": "5"},
    },
}  # fmt: skip
GRID = [(launcher, place) for launcher in LAUNCHERS for place in ENVIRONMENTS]
IMPOSSIBLE = {("mpirun", "pyxis")}
CASES: dict[str, dict[str, Any]] = {
    f"{launcher}.{place}": {**BASE, "launcher": launcher, **ENVIRONMENTS[place]}
    for launcher, place in GRID
    if (launcher, place) not in IMPOSSIBLE
} | {f"odd.{name}": {**BASE, **fields} for name, fields in ODD.items()}
LUMI = {
    **BASE,
    "gpus_per_node": 8,
    "cpus_per_task": None,
    "account": "p1",
    "container": "torch.sif",
}
for _launcher in ("srun", "fork", "torchrun"):
    CASES[f"lumi.{_launcher}"] = {**LUMI, "launcher": _launcher}


def case_plan(case: str) -> Plan:
    fields = CASES[case]
    site = load_site("lumi", env={}) if case.startswith("lumi.") else None
    if site is not None:
        fields = {**site.environment, **fields, "env": dict(site.variables)}
    return plan_of(site, **fields)


def rendered(case: str, plan: Plan) -> str:
    run_dir = "/runs/train 1" if case == "odd.run-dir" else None
    text = render(plan, made_by="allranks script train.py", run_dir=run_dir)
    return text.replace(f"allranks {__version__}", "allranks VERSION")


def text_of(case: str) -> str:
    return rendered(case, case_plan(case))


@pytest.mark.parametrize("case", CASES)
def test_the_script_is_as_it_was(case: str) -> None:
    file, text = GOLDEN / f"{case}.sh", text_of(case)
    if os.environ.get("UPDATE_GOLDEN"):
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")


def test_no_file_is_left_over() -> None:
    assert {path.stem for path in GOLDEN.glob("*.sh")} == set(CASES)


@pytest.mark.parametrize("case", CASES)
def test_bash_reads_it(case: str) -> None:
    done = subprocess.run(["bash", "-n"], input=text_of(case), capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="shellcheck is not installed")
def test_shellcheck_finds_nothing(tmp_path: Path) -> None:
    for case in CASES:
        (tmp_path / f"{case}.sh").write_text(text_of(case))
    files = [path.name for path in sorted(tmp_path.iterdir())]
    done = subprocess.run(["shellcheck", *files], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == ""


@pytest.mark.parametrize("case", CASES)
def test_directives_stand_first_and_alone(case: str) -> None:
    lines = text_of(case).splitlines()
    first = next(i for i, line in enumerate(lines) if line and not line.startswith("#"))
    directives = [line for line in lines if line.startswith("#SBATCH")]
    assert directives == [line for line in lines[:first] if line.startswith("#SBATCH")]
    names = [line.split()[1].partition("=")[0] for line in directives]
    assert len(names) == len(set(names))
    assert all(name.startswith("--") for name in names)


@pytest.mark.parametrize("case", [case for case in CASES if "no-agent" in case])
def test_without_the_agent_only_comments_name_allranks(case: str) -> None:
    code = [line for line in text_of(case).splitlines() if not line.startswith("#")]
    assert not [line for line in code if "allranks" in line.lower()]


@contextmanager
def recorded_reads() -> Iterator[list[str]]:
    """What is opened, listed or looked at meanwhile; stat and os.environ have no audit event."""
    seen: list[str] = []
    watching = [True]

    def hook(event: str, words: tuple[Any, ...]) -> None:
        if watching[0] and event.partition(".")[0] in (
            "open",
            "os",
            "subprocess",
            "glob",
            "pathlib",
        ):
            seen.append(f"{event} {words}")

    def look(path: object, *_: object, **__: object) -> Any:
        seen.append(f"stat {path}")
        raise FileNotFoundError(path)

    sys.addaudithook(hook)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("stat", "lstat", "access", "getcwd"):
            patch.setattr(os, name, look)
        patch.setattr(os, "environ", NoEnvironment(seen))
        try:
            yield seen
        finally:
            watching[0] = False


class NoEnvironment(dict[str, str]):
    """An environment that takes note of being read."""

    def __init__(self, seen: list[str]) -> None:
        self.seen = seen

    def __getitem__(self, name: str) -> str:
        self.seen.append(f"environ {name}")
        raise KeyError(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.seen.append(f"environ {name}")
        return default


def test_rendering_reads_neither_the_disk_nor_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plans = {case: case_plan(case) for case in CASES}
    texts = {case: rendered(case, plan) for case, plan in plans.items()}  # all is imported now
    (tmp_path / "gmx_mpi").touch()
    monkeypatch.chdir(tmp_path)
    with recorded_reads() as reads:
        again = {case: rendered(case, plan) for case, plan in plans.items()}
    assert (again, reads) == (texts, [])


def test_a_program_of_the_jobs_folder_is_found_when_the_plan_is_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    elsewhere = plan_of(script="solve").command
    (tmp_path / "solve").touch()
    monkeypatch.chdir(tmp_path)
    assert (elsewhere, plan_of(script="solve").command) == (["solve"], ["./solve"])


MASKS = "--cpu-bind=mask_cpu:" + ",".join(
    hex(sum(1 << cpu for cpu in range(first, first + 7)))
    for first in (49, 57, 17, 25, 1, 9, 33, 41)
)
LISTS = "'49-55;57-63;17-23;25-31;1-7;9-15;33-39;41-47'"


def test_lumi_binds_each_rank_near_its_gpu() -> None:
    assert f" {MASKS} " in text_of("lumi.srun")
    assert "ALLRANKS_BIND=none" in text_of("lumi.srun")
    for launcher in ("fork", "torchrun"):
        assert f"ALLRANKS_BIND={LISTS}" in text_of(f"lumi.{launcher}")
        assert "--cpu-bind" not in text_of(f"lumi.{launcher}")


def test_lumi_gpus_are_amds() -> None:
    assert "singularity exec --rocm " in text_of("lumi.srun")
    assert "--nv" not in text_of("lumi.srun")
    assert "apptainer exec --nv " in text_of("srun.apptainer")


@pytest.mark.parametrize(
    ("fields", "option", "agent"),
    [
        ({"bind": "none"}, "--cpu-bind=none", "none"),
        ({"bind": "0-1;2,4"}, "--cpu-bind=mask_cpu:0x3,0x14", "none"),
        ({"bind": "0-1;2,4", "launcher": "fork"}, None, "'0-1;2,4'"),
        ({"bind": "none", "launcher": "fork"}, "--cpu-bind=none", "none"),
        ({}, None, "auto"),
    ],
)
def test_binding_by_hand(fields: dict[str, Any], option: str | None, agent: str) -> None:
    text = render(plan_of(gpus_per_node=2, cpus_per_task=2, **fields))
    assert f"ALLRANKS_BIND={agent}\n" in text
    assert (option or "--cpu-bind") in text or option is None
    assert ("--cpu-bind" in text) is bool(option)


def test_a_part_of_a_node_is_bound_by_slurm() -> None:
    site = load_site("lumi", env={})
    text = render(plan_of(site, gpus_per_node=2, partition="small-g", account="p1"))
    assert "--cpu-bind" not in text
    assert "ALLRANKS_BIND=auto" in text
