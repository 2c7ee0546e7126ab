"""Starting jobs from Python."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from allranks.errors import UsageError
from allranks.job.fields import Job
from allranks.schedulers import python_api as launch

RANK = """\
import json, os, sys, time
names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "MINE")
record = {name: os.environ[name] for name in names} | {"args": sys.argv[1:]}
with open(f"rank-{os.environ['RANK']}.json.new", "w") as file:
    json.dump(record, file)
os.rename(file.name, file.name.removesuffix(".new"))
# A rank that fails ends the others: let them write first.
while not os.path.exists("rank-0.json"):
    time.sleep(0.01)
sys.exit(int(os.environ["CODE"]) if os.environ["RANK"] == "1" else 0)
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clean_env: dict[str, str]) -> Path:
    """A folder with a script of the standard library, without an outer job."""
    import os

    for name in set(os.environ) - set(clean_env):
        monkeypatch.delenv(name)
    for name, value in clean_env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(RANK)
    (tmp_path / ".git").mkdir()
    return tmp_path


def test_a_script_without_slurm(here: Path) -> None:
    text = launch.script(Job("train.py", ["--lr", 0.1], nodes=2, gpus_per_node=4, time="2h"))
    assert text.startswith("#!/bin/bash\n# Made by allranks ")
    assert "#SBATCH --time=02:00:00\n" in text
    assert "python train.py --lr 0.1\n" in text
    folder = launch.script(Job("train.py"), run_dir=here / "my run")
    assert f"run_folder='{here}/my run'\n" in folder


def test_the_file_lies_under_the_jobs_own_values(here: Path) -> None:
    (here / "allranks.toml").write_text('qos = "file"\nnodes = 3\n')
    text = launch.script(Job("train.py", nodes=2))
    assert "#SBATCH --nodes=2\n" in text
    assert "#SBATCH --qos=file\n" in text


def test_a_missing_script_is_told(here: Path) -> None:
    with pytest.raises(UsageError, match=r"There is no script nowhere\.py"):
        launch.script(Job("nowhere.py"))


@pytest.mark.parametrize("launcher", ["fork", "srun"])
@pytest.mark.parametrize("code", [0, 3])
def test_a_run_here_returns_its_exit_code(here: Path, launcher: str, code: int) -> None:
    job = Job(
        Path("train.py"),
        ["a b", "$(x)"],
        nprocs=2,
        launcher=launcher,
        env={"MINE": "m", "CODE": str(code)},
    )
    done = launch.run(job)
    assert done.exit_code == code
    ranks = [json.loads((here / f"rank-{rank}.json").read_text()) for rank in range(2)]
    assert [rank["RANK"] for rank in ranks] == ["0", "1"]
    assert all(rank["WORLD_SIZE"] == "2" and rank["args"] == ["a b", "$(x)"] for rank in ranks)
    assert len({(rank["MASTER_ADDR"], rank["MASTER_PORT"]) for rank in ranks}) == 1
    assert done.run.path.parent == here / "runs"
    assert json.loads((done.run.path / "attempts/1/end.json").read_text())["exit_code"] == code
    assert (done.run.path / "job.toml").exists()
