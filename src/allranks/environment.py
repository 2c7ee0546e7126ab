"""The environment of the job as shell lines: modules, conda, venv, uv, scripts, containers.

Outside a container the lines run once in the batch script, whose environment the tasks inherit, or in
every task (``setup_on = "node"``). With a container, modules and scripts stay outside while conda and
venv are activated inside: a command goes in as separate words behind ``bash -c '…; exec "$@"'``, so no
user string is quoted twice.
"""

from __future__ import annotations

from allranks.job.fields import Job
from allranks.redact import holds_secret
from allranks.shell import Raw, Word, join, quote

MODULE_COMMAND = (
    "if ! type -t module >/dev/null; then  # batch shells are no login shells",
    "  for file in /etc/profile.d/{modules,lmod,z00_lmod}.sh; do",
    '    if [[ -r $file ]]; then source "$file"; break; fi',
    "  done",
    "fi",
)


def setup_lines(job: Job) -> list[str]:
    """The lines that make the environment, outside the container if there is one."""
    lines: list[str] = []
    if job.modules:
        lines += MODULE_COMMAND
        if job.module_purge is not False:
            lines.append("module purge")
        lines += [join(["module", "load", name]) for name in job.modules]
    elif job.module_purge:
        lines += [*MODULE_COMMAND, "module purge"]
    lines += [f"source {quote(_file(file))}" for file in job.setup]
    if not job.container:
        lines += activation_lines(job)
    lines += job.setup_commands
    return lines


def activation_lines(job: Job) -> list[str]:
    """Conda, venv and uv: where Python comes from."""
    lines: list[str] = []
    if job.conda:
        root = quote(_file(job.conda_root)) if job.conda_root else '"$conda_root"'
        if not job.conda_root:
            lines.append("conda_root=$(conda info --base)")  # a line of its own: it ends the job
        lines += [f"source {root}/etc/profile.d/conda.sh", join(["conda", "activate", job.conda])]
    if job.venv:
        lines.append(f"source {quote(_file(job.venv))}/bin/activate")
    if job.uv:
        lines.append(f"source {quote(_file(job.uv))}/.venv/bin/activate")
    return lines


def variable_lines(job: Job) -> list[str]:
    """The job's own environment variables. Secrets are not written down but must be there."""
    return [
        f': "${{{name}:?a secret: set it where the job is submitted}}"'
        if holds_secret(name, value)
        else f"export {name}={quote(value)}"
        for name, value in job.env.items()
    ]


def inner_lines(job: Job) -> list[str]:
    """What runs inside the container before the command."""
    return [*job.container_setup, *activation_lines(job)]


def apptainer_words(job: Job, vendor: str, gpus: bool, binds: list[Word]) -> list[Word]:
    """``apptainer exec …`` up to the command."""
    words: list[Word] = [job.container_runtime or "apptainer", "exec"]
    if gpus:
        words.append("--rocm" if vendor == "amd" else "--nv")
    for bind in [*binds, *job.binds]:
        words += ["--bind", bind]
    return [*words, *job.container_args, job.container or "", *inner_words(job)]


def pyxis_options(job: Job, own: Raw) -> list[Word]:
    """srun's options of the pyxis plug-in; ``own`` are the mounts that every job needs."""
    mounts = [own, *(bind if ":" in bind else f"{bind}:{bind}" for bind in job.binds)]
    return [
        f"--container-image={job.container}",
        Raw("--container-mounts=" + ",".join(quote(mount) for mount in mounts)),
        Raw('--container-workdir="$PWD"'),
        *job.container_args,
    ]


def inner_words(job: Job) -> list[Word]:
    """``bash -c '… exec "$@"' inside`` when something must run inside first, else nothing."""
    lines = inner_lines(job)
    if not lines:
        return []
    return ["bash", "-c", "\n".join(["set -e", *lines, 'exec "$@"']), "inside"]


def _file(path: str) -> str:
    """``source`` looks a plain name up in PATH and takes a dash for an option; a user means a file."""
    return path if "/" in path and not path.startswith("-") else f"./{path}"
