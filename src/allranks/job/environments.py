"""The environment of the job as shell lines: modules, conda, venv, uv, scripts, containers.

Outside a container the lines run once in the batch script, whose environment the tasks inherit, or in
every task (``setup_on = "node"``). With a container, modules and scripts stay outside while conda and
venv are activated inside: a command goes in as separate words behind ``bash -c '…; exec "$@"'``, so no
user string is quoted twice.
"""

from __future__ import annotations

from allranks.core.redaction import holds_secret
from allranks.core.shell import Raw, Word, join, quote
from allranks.job.fields import Job
from allranks.job.plan import Plan

MODULE_COMMAND = (
    "# A batch shell is not a login shell: it may not have the module command yet.",
    'for file in "${MODULESHOME-}/init/bash" /etc/profile.d/{modules,lmod,z00_lmod}.sh \\',
    "  /usr/share/{lmod/lmod,modules,Modules}/init/bash; do",
    "  if type -t module >/dev/null; then break; fi",
    '  if [[ -r $file ]]; then source "$file" || true; fi',
    "done",
    "if ! type -t module >/dev/null; then",
    '  echo "No module command on $HOSTNAME: set MODULESHOME to where Modules or Lmod is installed." >&2',
    "  exit 1",
    "fi",
)

PURGE = "module purge || true  # Modules 5 reports sticky modules as an error"

FIND_CONDA = (
    'conda=$(type -P conda || echo "${CONDA_EXE:-conda}")  # a batch shell may not have it in PATH',
    'conda_root=$("$conda" info --base)',
)

CLEANING = frozenset({"--cleanenv", "-e", "--containall", "-C", "--compat"})
"""Options by which a container starts without the variables of the job."""

CARRIED = (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT",
    "OMP_NUM_THREADS", "PYTHONPATH", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ACCELERATE_USE_CPU",
)  # fmt: skip
CARRIED_PREFIXES = ("ALLRANKS_", "SLURM_", "NCCL_", "GLOO_", "HOROVOD_", "PMI")
"""Variables that a rank needs in such a container."""


def setup_lines(job: Job) -> list[str]:
    """Return the lines that set up the environment, outside the container if there is one."""
    lines: list[str] = []
    if job.modules:
        lines += MODULE_COMMAND
        if job.module_purge is not False:
            lines.append(PURGE)
        lines += [join(["module", "load", name]) for name in job.modules]
        lines += [
            f"wanted=({join(job.modules)})",
            'for name in "${wanted[@]}"; do  # Modules 3 always exits with 0',
            '  if [[ ${MODULE_VERSION-} == 3.* && :${LOADEDMODULES-}: != *:"${name%%/*}"[:/]* ]]; then',
            '    echo "module load $name: no such module was loaded." >&2',
            "    exit 1",
            "  fi",
            "done",
        ]
    elif job.module_purge:
        lines += [*MODULE_COMMAND, PURGE]
    lines += [f"source {quote(_file(file))}" for file in job.setup]
    if not job.container:
        lines += activation_lines(job)
    lines += job.setup_commands
    return lines


def activation_lines(job: Job) -> list[str]:
    """Return the lines that activate conda, venv or uv."""
    lines: list[str] = []
    if job.conda:
        root = quote(_file(job.conda_root)) if job.conda_root else '"$conda_root"'
        if not job.conda_root:
            lines += FIND_CONDA
        # || exit: scripts of packages that the activation sources may fail, the activation may not.
        activate = join(["conda", "activate", job.conda])
        lines += [f"source {root}/etc/profile.d/conda.sh", f"{activate} || exit"]
    if job.venv:
        lines.append(f"source {quote(_file(job.venv))}/bin/activate")
    if job.uv:
        lines.append(f"source {quote(_file(job.uv))}/.venv/bin/activate")
    return lines


def variable_lines(job: Job) -> list[str]:
    """Return the lines for the job's variables; a secret is not written but must be set."""
    return [
        f': "${{{name}:?a secret: set it in the shell that submits the job}}"'
        if holds_secret(name, value)
        else f"export {name}={quote(value)}"
        for name, value in job.env.items()
    ]


def open_names(job: Job) -> list[str]:
    """Return the job's variables that are no secrets; PATH stays that of the container."""
    return [
        name for name, value in job.env.items() if name != "PATH" and not holds_secret(name, value)
    ]


def inner_lines(job: Job) -> list[str]:
    """Return the lines that run inside the container before the command."""
    return [*job.container_setup, *activation_lines(job)]


def cleans(job: Job) -> bool:
    """Whether the container is asked to start without the variables outside."""
    asked = bool(CLEANING & set(job.container_args))
    return asked and bool(job.container) and job.container_runtime != "pyxis"


def carry_lines(job: Job) -> list[str]:
    """Return a function that collects the variables to pass into the container, as words of ``env``.

    Not by the runtime's own APPTAINERENV_…, whose values a shell would expand; except for secrets, which
    must not be on a command line.
    """
    mine = open_names(job)
    secrets = [name for name in job.env if name not in (*mine, "PATH")]
    names = dict.fromkeys([*CARRIED, *mine])
    prefixes = " ".join(f'"${{!{prefix}@}}"' for prefix in CARRIED_PREFIXES)
    prefix = f"{(job.container_runtime or 'apptainer').upper()}ENV_"
    return [
        "carry() {  # the container starts without the job's variables: pass those that the ranks need",
        "  local name",
        "  carried=()",
        f"  for name in {join(names)} \\",
        f"    {prefixes}; do",
        '    if [[ -v $name ]]; then carried+=("$name=${!name}"); fi',
        "  done",
        *(
            f'  export {prefix}{name}="${name}"  # a secret: not on a command line'
            for name in secrets
        ),
        "}",
        "export -f carry",
    ]


def apptainer_words(job: Job, vendor: str, gpus: bool, binds: list[Word]) -> list[Word]:
    """Return ``apptainer exec …`` up to the command."""
    words: list[Word] = [job.container_runtime or "apptainer", "exec"]
    if gpus:
        words.append("--rocm" if vendor == "amd" else "--nv")
    for bind in [*binds, *job.binds]:
        words += ["--bind", bind]
    carried = ["env", Raw('"${carried[@]}"')] if cleans(job) else []
    return [*words, *job.container_args, job.container or "", *carried, *inner_words(job)]


def pyxis_options(job: Job, own: Raw) -> list[Word]:
    """Return srun's options of the pyxis plugin; ``own`` are the mounts that every job needs."""
    mounts = [own, *(bind if ":" in bind else f"{bind}:{bind}" for bind in job.binds)]
    return [
        _image_option(job.container or ""),
        Raw("--container-mounts=" + ",".join(quote(mount) for mount in mounts)),
        Raw('--container-workdir="$PWD"'),
        *job.container_args,
    ]


def _image_option(image: str) -> Word:
    """Name a file by its path: pyxis takes other names for images of a registry."""
    file = image.endswith((".sqsh", ".sqfs", ".squashfs")) and not image.startswith(("/", "."))
    return Raw(f'--container-image="$PWD"/{quote(image)}') if file else f"--container-image={image}"


def inner_words(job: Job) -> list[Word]:
    """Return ``bash -c '… exec "$@"' inside`` if something must run inside first, else nothing."""
    lines = inner_lines(job)
    if not lines:
        return []
    return ["bash", "-c", "\n".join(["set -e", *lines, 'exec "$@"']), "inside"]


def _file(path: str) -> str:
    """Return a path for ``source``, which searches PATH for a plain name and takes a dash for an option."""
    return path if "/" in path and not path.startswith("-") else f"./{path}"


def run_folder(plan: Plan) -> str:
    """Return the variable with the whole run folder; a task of an array has its own folder inside it."""
    return "${ALLRANKS_ATTEMPT_DIR%/attempts/*}" if plan.job.array else "$ALLRANKS_RUN_DIR"


def container_words(plan: Plan) -> list[Word]:
    """Return the words that run a command in the container; none without one, or with pyxis."""
    if not plan.job.container or plan.uses_pyxis:
        return []
    own: list[Word] = [Raw(f'"{run_folder(plan)}"')] if plan.uses_agent else []
    gpus = plan.shape.gpus_per_node.count > 0
    return apptainer_words(plan.job, plan.gpu_vendor, gpus, own)


def batch_python(plan: Plan) -> Word:
    """Return a Python of the batch script: the job's own, unless only the tasks have it."""
    if plan.only_tasks_have_environment:
        return Raw('"$(type -P python3 || type -P python)"')
    return plan.python
