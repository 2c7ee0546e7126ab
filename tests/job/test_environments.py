"""The environment of a job as shell lines: what stands in the batch script and what in the container."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from allranks.core.shell import Raw, join
from allranks.errors import JobError
from allranks.job.defaults import derive
from allranks.job.environments import (
    FIND_CONDA,
    MODULE_COMMAND,
    PURGE,
    apptainer_words,
    carry_lines,
    cleans,
    inner_lines,
    inner_words,
    pyxis_options,
    setup_lines,
    variable_lines,
)
from allranks.job.fields import Job
from allranks.job.sbatch import render
from conda_standin import make_conda

HEAD = list(MODULE_COMMAND)


def check(names: str) -> list[str]:
    return [
        f"wanted=({names})",
        'for name in "${wanted[@]}"; do  # Modules 3 always exits with 0',
        '  if [[ ${MODULE_VERSION-} == 3.* && :${LOADEDMODULES-}: != *:"${name%%/*}"[:/]* ]]; then',
        '    echo "module load $name: no such module was loaded." >&2',
        "    exit 1",
        "  fi",
        "done",
    ]


def test_nothing_asked_nothing_done() -> None:
    job = Job()
    assert (setup_lines(job), variable_lines(job), inner_lines(job), inner_words(job)) == (
        [],
        [],
        [],
        [],
    )


def test_modules_are_purged_first_unless_told_otherwise() -> None:
    modules = ["gcc/12", "cuda"]
    loads = ["module load gcc/12", "module load cuda", *check("gcc/12 cuda")]
    assert setup_lines(Job(modules=modules)) == [*HEAD, PURGE, *loads]
    assert setup_lines(Job(modules=modules, module_purge=False)) == [*HEAD, *loads]
    assert setup_lines(Job(module_purge=True)) == [*HEAD, PURGE]


def test_the_order_is_modules_scripts_python_own_lines() -> None:
    job = Job(
        modules=["cuda"], setup=["a.sh", "/b/c.sh"], venv="/e", setup_commands=["ulimit -n 9"]
    )
    assert setup_lines(job)[len(HEAD) + 1 :] == [
        "module load cuda",
        *check("cuda"),
        "source ./a.sh",
        "source /b/c.sh",
        "source /e/bin/activate",
        "ulimit -n 9",
    ]


def test_where_python_comes_from() -> None:
    assert setup_lines(Job(conda="torch")) == [
        *FIND_CONDA,
        'source "$conda_root"/etc/profile.d/conda.sh',
        "conda activate torch || exit",
    ]
    assert (
        setup_lines(Job(conda="torch", conda_root="/opt/c"))[0]
        == "source /opt/c/etc/profile.d/conda.sh"
    )
    assert setup_lines(Job(uv="/my project")) == ["source '/my project'/.venv/bin/activate"]
    assert setup_lines(Job(venv="-odd")) == ["source ./-odd/bin/activate"]


def test_variables() -> None:
    assert variable_lines(Job(env={"A": "1", "B": "it's"})) == [
        "export A=1",
        "export B='it'\"'\"'s'",
    ]


def test_with_a_container_modules_stay_outside_and_python_goes_in() -> None:
    job = Job(
        modules=["apptainer"], venv="/e", container="i.sif", container_setup=["export A=1  # b"]
    )
    assert setup_lines(job)[: len(HEAD) + 2] == [*HEAD, PURGE, "module load apptainer"]
    assert not any("/e/bin" in line for line in setup_lines(job))
    assert inner_lines(job) == ["export A=1  # b", "source /e/bin/activate"]
    assert inner_words(job) == [
        "bash", "-c", 'set -e\nexport A=1  # b\nsource /e/bin/activate\nexec "$@"', "inside",
    ]  # fmt: skip


def test_apptainer() -> None:
    job = Job(container="i.sif", binds=["/a:/b:ro"], container_args=["--writable-tmpfs"])
    own = [Raw('"$X"')]
    assert join(apptainer_words(job, "nvidia", True, own)) == (
        'apptainer exec --nv --bind "$X" --bind /a:/b:ro --writable-tmpfs i.sif'
    )
    assert "--rocm" in apptainer_words(job, "amd", True, [])
    assert not {"--rocm", "--nv"} & set(apptainer_words(job, "amd", False, []))
    assert apptainer_words(
        Job(container="i", container_runtime="singularity"), "nvidia", False, []
    )[0] == ("singularity")


def test_a_cleaned_container_is_given_what_the_ranks_need() -> None:
    env = {"A": "$(b)", "PATH": "/x", "MY_KEY": "s"}
    job = Job(container="i.sif", container_args=["-C"], env=env, venv="/e")
    assert join(apptainer_words(job, "nvidia", False, [])).startswith(
        'apptainer exec -C i.sif env "${carried[@]}" bash -c '
    )
    tell = 'MASTER_ADDR=h SLURM_JOB_ID=7 A="a b" MY_KEY=s OTHER=o; carry'
    printed = bash([*carry_lines(job), tell, 'printf "%s\\n" "${carried[@]}"', "env"]).stdout
    lines = printed.splitlines()
    assert lines[:3] == ["MASTER_ADDR=h", "A=a b", "SLURM_JOB_ID=7"]
    assert "APPTAINERENV_MY_KEY=s" in lines
    assert not any(line.startswith("APPTAINERENV_A") for line in lines)
    assert not cleans(Job(container_args=["-C"]))
    assert not cleans(Job(container="i", container_args=["-C"], container_runtime="pyxis"))


def test_mpirun_and_a_cleaned_container_do_not_go_together() -> None:
    job = Job(script="t.py", launcher="mpirun", container="i", container_args=["--cleanenv"])
    with pytest.raises(JobError, match="--cleanenv with --launcher mpirun"):
        render(derive(job, {}))


def bash(lines: list[str], **env: str) -> subprocess.CompletedProcess[str]:
    text = "\n".join(["set -eo pipefail", *lines])
    variables = {"PATH": "/usr/bin:/bin", "HOSTNAME": "n1", **env}
    return subprocess.run(["bash", "-c", text], env=variables, capture_output=True, text=True)


def test_the_module_command_is_looked_for_where_it_usually_is(tmp_path: Path) -> None:
    """In a shell that has none; the file that defines it may end with a command that fails."""
    lines = [
        line.replace("/etc/", f"{tmp_path}/").replace("/usr/", f"{tmp_path}/") for line in HEAD
    ]
    lines += ["module load x"]
    none = bash(lines)
    assert none.returncode == 1
    assert none.stderr.startswith("No module command on n1: set MODULESHOME")
    for file in ("share/modules/init/bash", "profile.d/lmod.sh", "mine/init/bash"):
        path = tmp_path / file
        path.parent.mkdir(parents=True)
        path.write_text(f"module() {{ echo {file} $*; }}\nfalse\n")
        done = bash(lines, **({"MODULESHOME": f"{tmp_path}/mine"} if "mine" in file else {}))
        assert (done.stdout, done.returncode) == (f"{file} load x\n", 0)


def test_an_old_module_command_that_hides_its_failure() -> None:
    old = (
        'module() { if [ "${2-}" != no ]; then LOADEDMODULES=${2-}/1; fi; }; MODULE_VERSION=3.2.10'
    )
    assert bash([old, *setup_lines(Job(modules=["gcc"])), "echo on"]).stdout == "on\n"
    for names in (["no"], ["gcc", "no"]):
        done = bash([old, *setup_lines(Job(modules=names)), "echo on"])
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == "module load no: no such module was loaded.\n"
    symbolic = "module() { LOADEDMODULES=gcc/12.2.0; }; MODULE_VERSION=3.2.10"
    assert bash([symbolic, *setup_lines(Job(modules=["gcc/12"])), "echo on"]).stdout == "on\n"


def test_a_sticky_module_ends_no_job() -> None:
    sticky = 'module() { [ "$1" != purge ]; }'  # what Modules 5 answers then
    assert bash([sticky, *setup_lines(Job(modules=["gcc"])), "echo on"]).stdout == "on\n"


def test_conda_is_activated_or_the_job_ends(tmp_path: Path) -> None:
    """The scripts of its packages may use what nobody set, and fail."""
    root = make_conda(tmp_path / "a conda", "torch", python=False)
    tell = 'echo "$CONDA_PREFIX $FLAVOUR $CONDA_SHLVL $(type -P python)"'
    for job, env in (
        (Job(conda="torch", conda_root=str(root)), {}),
        (Job(conda="torch"), {"PATH": f"{root}/condabin:/usr/bin:/bin"}),
        (Job(conda="torch"), {"CONDA_EXE": f"{root}/bin/conda"}),
    ):
        done = bash([*setup_lines(job), tell], **env)
        prefix = f"{root}/envs/torch"
        assert done.stdout == f"{prefix} conda torch 1 {prefix}/bin/python\n", done.stderr
    missing = bash([*setup_lines(Job(conda="no", conda_root=str(root))), tell])
    assert (missing.returncode, missing.stdout) == (1, "")
    assert "EnvironmentNameNotFound" in missing.stderr
    none = bash([*setup_lines(Job(conda="torch")), tell])
    assert (none.returncode, none.stdout) == (127, "")
    assert "conda: command not found" in none.stderr


def test_pyxis() -> None:
    job = Job(
        container="img#x", binds=["/a", "/b:/c:ro"], container_args=["--no-container-mount-home"]
    )
    assert join(pyxis_options(job, Raw('"$PWD:$PWD"'))) == (
        "'--container-image=img#x' --container-mounts=\"$PWD:$PWD\",/a:/a,/b:/c:ro "
        '--container-workdir="$PWD" --no-container-mount-home'
    )
    file = pyxis_options(Job(container="my image.sqsh"), Raw(""))[0]
    assert file == """--container-image="$PWD"/'my image.sqsh'"""
    assert pyxis_options(Job(container="./a.sqsh"), Raw(""))[0] == "--container-image=./a.sqsh"
