"""The command line wins over the file, the file over the site; each value keeps its origin."""

from __future__ import annotations

from pathlib import Path

import pytest

from allranks.cluster.sites.model import Site
from allranks.errors import JobError, UsageError
from allranks.job.config_sources import JobLayer, file_layer, find_file, merge, site_layer
from allranks.job.resolve import resolve

SITE = """
name = "lab"
interface = "ib0"
[variables]
NCCL_DEBUG = "WARN"
LAB = "1"
[environment]
modules = ["cuda"]
[job]
qos = "normal"
time = 30
sbatch = {nice = 1}
[[partitions]]
name = "gpu"
default = true
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a script and a site, away from the user's own files."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("HOME", "/home/me")
    for name in ("ALLRANKS_SITE", "ALLRANKS_SITES", "SLURM_CLUSTER_NAME"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / ".git").mkdir()
    (tmp_path / "train.py").write_text("import torch\n")
    (tmp_path / "lab.toml").write_text(SITE)
    return tmp_path


def test_command_line_over_file_over_site(here: Path) -> None:
    (here / "allranks.toml").write_text('site = "./lab.toml"\nqos = "file"\nnodes = 2\n')
    plan = resolve({"script": "train.py", "nodes": "4"})
    assert (plan.job.nodes, plan.job.qos, plan.job.time, plan.job.interface) == (
        4,
        "file",
        1800,
        "ib0",
    )
    assert plan.job.modules == ("cuda",)
    origins = {name: str(plan.origins[name]) for name in ("nodes", "qos", "time", "modules")}
    assert origins == {
        "nodes": "command line",
        "qos": "allranks.toml",
        "time": "site lab",
        "modules": "site lab",
    }


def test_tables_are_merged_key_by_key(here: Path) -> None:
    (here / "allranks.toml").write_text('site = "./lab.toml"\n[env]\nLAB = "2"\nMINE = "f"\n')
    plan = resolve({"script": "train.py", "env": ("MINE=c",), "sbatch": ("hold", "nice=7")})
    assert plan.job.env == {"NCCL_DEBUG": "WARN", "LAB": "2", "MINE": "c"}
    assert plan.job.sbatch == {"nice": "7", "hold": ""}
    assert str(plan.origins["env"]) == "site lab + allranks.toml + command line"


def test_lists_are_replaced(here: Path) -> None:
    plan = resolve({"script": "train.py", "site": "./lab.toml", "modules": ("rocm",)})
    assert plan.job.modules == ("rocm",)


def test_the_site_on_the_command_line_wins_over_the_file(here: Path) -> None:
    (here / "other.toml").write_text('name = "other"\n')
    (here / "allranks.toml").write_text('site = "./other.toml"\n')
    plan = resolve({"script": "train.py", "site": "./lab.toml"})
    assert plan.site is not None
    assert plan.site.name == "lab"


def test_layers_between_lie_under_the_users_values(here: Path) -> None:
    (here / "allranks.toml").write_text("nodes = 8\n")
    between = (JobLayer("allocation 7", {"nodes": 2, "cpus_per_task": 3}),)
    plan = resolve({"script": "train.py", "cpus_per_task": 5}, between=between)
    assert (plan.job.nodes, plan.job.cpus_per_task) == (2, 5)
    assert str(plan.origins["nodes"]) == "allocation 7"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gpu_per_node = 4", "unknown key 'gpu_per_node'. Did you mean 'gpus_per_node'?"),
        ("tiem = 4", "unknown key 'tiem'. Did you mean 'time'?"),
        ("zzz = 4", "unknown key 'zzz'. See `allranks submit --help`."),
        ("nodes = ", "is not valid TOML"),
        ("nodes = 0", "--nodes: '0' is not a number of at least 1."),
        ('args = "--lr 0.1"', "Write a list"),
    ],
)
def test_a_wrong_file_is_told(here: Path, text: str, message: str) -> None:
    (here / "allranks.toml").write_text(text)
    with pytest.raises(UsageError) as caught:
        resolve({"script": "train.py"})
    assert message in str(caught.value)


def test_a_missing_file_is_told(here: Path) -> None:
    with pytest.raises(UsageError, match=r"Cannot read nowhere\.toml: No such file"):
        resolve({"script": "train.py"}, config="nowhere.toml")


def test_a_file_may_hold_the_script_and_slurms_dashes(here: Path) -> None:
    (here / "allranks.toml").write_text(
        'script = "train.py"\nargs = ["--lr", 0.1]\ngpus-per-node = 2\n'
    )
    plan = resolve({})
    assert (plan.job.script, plan.job.args, str(plan.job.gpus_per_node)) == (
        "train.py",
        ("--lr", "0.1"),
        "2",
    )


def test_the_table_of_a_pyproject(here: Path) -> None:
    (here / "pyproject.toml").write_text('[project]\nname = "x"\n[tool.allranks]\ntime = 15\n')
    plan = resolve({"script": "train.py"})
    assert plan.job.time == 900  # a bare number is minutes, as for Slurm
    assert str(plan.origins["time"]) == "pyproject.toml"


def test_paths_of_a_file_know_home(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROJ", "/data/p")
    (here / "allranks.toml").write_text(
        'venv = "~/env"\npython = "~/env/bin/python"\ncontainer = "$PROJ/a.sif"\n'
        'binds = ["$PROJ", "/x:/y"]\nsetup = "$HOME/s.sh"\ncomment = "~ $HOME"\n'
    )
    job, _ = merge([file_layer(here / "allranks.toml")])
    assert (job.venv, job.python) == ("/home/me/env", "/home/me/env/bin/python")
    assert (job.container, job.binds) == ("/data/p/a.sif", ("/data/p", "/x:/y"))
    assert (job.setup, job.comment) == (("/home/me/s.sh",), "~ $HOME")


def test_the_nearest_file_up_to_the_repository(tmp_path: Path) -> None:
    (tmp_path / "allranks.toml").write_text("")
    project = tmp_path / "repo"
    (project / "a" / "b").mkdir(parents=True)
    assert find_file(project / "a" / "b") == tmp_path / "allranks.toml"
    (project / ".git").mkdir()
    assert find_file(project / "a" / "b") is None
    (project / "a" / "pyproject.toml").write_text("[tool.black]\n")
    assert find_file(project / "a" / "b") is None
    (project / "pyproject.toml").write_text("[tool.allranks]\n")
    assert find_file(project / "a" / "b") == project / "pyproject.toml"


def test_the_jobs_own_variables_win_over_the_sites() -> None:
    site = Site("lab", variables={"A": "site", "B": "site"}, job={"env": {"B": "job"}})
    assert site_layer(site).values["env"] == {"A": "site", "B": "job"}


def test_a_site_with_an_unknown_field_is_told() -> None:
    with pytest.raises(
        UsageError, match=r"site lab: unknown key 'conda_rot'\. Did you mean 'conda_root'"
    ):
        site_layer(Site("lab", environment={"conda_rot": "x"}))


def test_chdir_is_meant_from_here(here: Path) -> None:
    (here / "sub").mkdir()
    (here / "sub" / "inner.py").write_text("")
    assert resolve({"script": "inner.py", "chdir": "sub"}).job.chdir == str(here / "sub")


@pytest.mark.parametrize(
    ("script", "kind", "message"),
    [
        ("nowhere.py", UsageError, "There is no script nowhere.py in"),
        ("./nowhere", UsageError, "There is no script ./nowhere in"),
        ("folder", UsageError, "folder is a directory. Name the training script in it."),
        (
            "job.sh",
            JobError,
            "job.sh is a job script (it has #SBATCH lines).\nSubmit it with: allranks submit",
        ),
    ],
)
def test_a_script_that_cannot_run_is_told(
    here: Path, script: str, kind: type, message: str
) -> None:
    (here / "folder").mkdir()
    (here / "job.sh").write_text("#!/bin/bash\n#SBATCH --nodes=1\n")
    with pytest.raises(kind) as caught:
        resolve({"script": script})
    assert message in str(caught.value)


def test_programs_and_modules_need_no_file(here: Path) -> None:
    assert resolve({"script": "gmx_mpi"}).job.script == "gmx_mpi"
    assert resolve({"script": "pkg.train", "module": True}).job.module is True
