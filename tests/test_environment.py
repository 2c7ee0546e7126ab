"""The environment of a job as shell lines: what stands in the batch script and what in the container."""

from __future__ import annotations

from allranks.environment import (
    MODULE_COMMAND,
    apptainer_words,
    inner_lines,
    inner_words,
    pyxis_options,
    setup_lines,
    variable_lines,
)
from allranks.job.fields import Job
from allranks.shell import Raw, join

HEAD = list(MODULE_COMMAND)


def test_nothing_asked_nothing_done() -> None:
    job = Job()
    assert (setup_lines(job), variable_lines(job), inner_lines(job), inner_words(job)) == (
        [],
        [],
        [],
        [],
    )


def test_modules_are_purged_first_unless_told_otherwise() -> None:
    loads = ["module load gcc/12", "module load cuda"]
    modules = ["gcc/12", "cuda"]
    assert setup_lines(Job(modules=modules)) == [*HEAD, "module purge", *loads]
    assert setup_lines(Job(modules=modules, module_purge=False)) == [*HEAD, *loads]
    assert setup_lines(Job(module_purge=True)) == [*HEAD, "module purge"]


def test_the_order_is_modules_scripts_python_own_lines() -> None:
    job = Job(
        modules=["cuda"], setup=["a.sh", "/b/c.sh"], venv="/e", setup_commands=["ulimit -n 9"]
    )
    assert setup_lines(job)[len(HEAD) + 1 :] == [
        "module load cuda",
        "source ./a.sh",
        "source /b/c.sh",
        "source /e/bin/activate",
        "ulimit -n 9",
    ]


def test_where_python_comes_from() -> None:
    assert setup_lines(Job(conda="torch")) == [
        "conda_root=$(conda info --base)",
        'source "$conda_root"/etc/profile.d/conda.sh',
        "conda activate torch",
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
    assert setup_lines(job) == [*HEAD, "module purge", "module load apptainer"]
    assert inner_lines(job) == ["export A=1  # b", "source /e/bin/activate"]
    assert inner_words(job) == [
        "bash", "-c", 'set -e\nexport A=1  # b\nsource /e/bin/activate\nexec "$@"', "inside",
    ]  # fmt: skip


def test_apptainer() -> None:
    job = Job(container="i.sif", binds=["/a:/b:ro"], container_args=["--cleanenv"])
    own = [Raw('"$X"')]
    assert join(apptainer_words(job, "nvidia", True, own)) == (
        'apptainer exec --nv --bind "$X" --bind /a:/b:ro --cleanenv i.sif'
    )
    assert "--rocm" in apptainer_words(job, "amd", True, [])
    assert not {"--rocm", "--nv"} & set(apptainer_words(job, "amd", False, []))
    assert apptainer_words(
        Job(container="i", container_runtime="singularity"), "nvidia", False, []
    )[0] == ("singularity")


def test_pyxis() -> None:
    job = Job(
        container="img#x", binds=["/a", "/b:/c:ro"], container_args=["--no-container-mount-home"]
    )
    assert join(pyxis_options(job, Raw('"$PWD:$PWD"'))) == (
        "'--container-image=img#x' --container-mounts=\"$PWD:$PWD\",/a:/a,/b:/c:ro "
        '--container-workdir="$PWD" --no-container-mount-home'
    )
