"""What several rules ask."""

from __future__ import annotations

import re
from collections.abc import Iterator

from allranks.lint.command_calls import BATCH, TASK, Call
from allranks.lint.command_wrappers import LEFT_ALONE
from allranks.lint.job_script import JobScript
from allranks.lint.launch_commands import ACCELERATE, DEEPSPEED, LAUNCH, TORCHRUN, Launch
from allranks.lint.shell.model import Variable, Word
from allranks.lint.word_values import RANKS

RANK_OPTIONS = {
    TORCHRUN: "node-rank", LAUNCH: "node-rank", ACCELERATE: "machine-rank", DEEPSPEED: "node-rank",
}  # fmt: skip
_TEMPLATE = re.compile(r"\{\{|\{%|<%|^#SBATCH[^\n#]*(?<!\$)\{\w+\}", re.M)


def ranks_of_batch(word: Word | None) -> Iterator[Variable]:
    """Slurm's rank variables that the batch shell itself replaces."""
    for variable in word.variables() if word is not None else ():
        if variable.name in RANKS and variable.shell is not None and variable.shell.kind == BATCH:
            yield variable


def per_task(variable: Variable) -> bool:
    """Whether each task replaces it by itself."""
    return variable.shell is not None and variable.shell.kind == TASK


def meets_by_c10d(launch: Launch) -> bool:
    """Whether the nodes find their numbers by themselves."""
    backend = launch.options.text("rdzv-backend") or ""
    return backend.startswith(("c10d", "etcd")) and not launch.options.has("same-network")


def starts_elsewhere(job: JobScript) -> bool:
    """Whether something in the script may start processes on other nodes that we do not follow."""
    if any(not call.inside and _unfollowed(call) for call in job.calls):
        return True
    return any(
        layer.kind in ("remote", "unknown") for call in job.calls for layer in call.all_layers
    )


def _unfollowed(call: Call) -> bool:
    if call.name in LEFT_ALONE or call.name in (
        "ray",
        "dask",
        "flux",
        "sbatch",
        "singularity",
        "submitit",
    ):
        return True
    if call.step is not None and not call.nested and call.name in ("bash", "sh", "zsh"):
        return True
    return call.name == "" and bool(call.program)


def counted(number: int, word: str) -> str:
    """``1 node``, ``2 nodes``."""
    return f"{number} {word}" + ("" if number == 1 else "s")


def is_template(job: JobScript) -> bool:
    """Whether the text is filled in by another program before it is a script."""
    return bool(_TEMPLATE.search(job.source.text))


def launches_under(job: JobScript, *starters: str) -> Iterator[Launch]:
    """Launches that a step of one of these kinds starts."""
    for launch in job.launches:
        if launch.step is not None and launch.step.kind in starters:
            yield launch


def alone(job: JobScript, launch: Launch) -> bool:
    """Whether no other launch and no loop could be a part of the same training."""
    return not launch.call.loop and not launch.call.background and len(job.launches) == 1


def processes(number: int | None) -> str:
    """``1 process``, ``8 processes``."""
    return "1 process" if number == 1 else f"{number} processes"


def told_elsewhere(launch: Launch) -> bool:
    """Variables that set torchrun's options, a configuration, or options in a variable."""
    if any(name.startswith(("PET_", "ACCELERATE_")) for name in launch.call.env):
        return True
    if launch.options.has("config-file", "deepspeed-hostfile"):
        return True
    return any(not word.start and word.text is None for word in launch.call.program[1:4])


_HARMLESS = re.compile(
    r"(activate|conda\.sh|\.bashrc|bash_profile|\.profile|setup-env\.sh|/etc/profile.*|bash|modules?\.sh)$"
)


def sources_unknown(job: JobScript) -> bool:
    """Whether the batch shell reads a file of its author that is not here: it may set anything."""
    unread = {id(word) for word in job.trace.unread}
    for call in job.calls:
        if call.name not in ("source", ".") or call.shell is not job.shell:
            continue
        if any(id(word) in unread and not _HARMLESS.search(word.shown) for word in call.args[:1]):
            return True
    return False


def slurm_version(job: JobScript) -> tuple[int, int] | None:
    """The version of the site, where that is known."""
    words = (job.site.slurm_version or "").split(".") if job.site is not None else []
    if len(words) < 2 or not (words[0].isdecimal() and words[1].isdecimal()):
        return None
    return int(words[0]), int(words[1])
