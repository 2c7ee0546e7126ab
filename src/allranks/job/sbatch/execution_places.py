"""Where the parts of a job script run: in the batch shell, in a task, in a container."""

from __future__ import annotations

from allranks.core.shell import Raw, Word
from allranks.job.environments import apptainer_words
from allranks.job.launchers import LAUNCHERS
from allranks.job.plan import Plan


def uses_agent(plan: Plan) -> bool:
    """Whether allranks does anything on the nodes."""
    return plan.agent and plan.launcher != "python"


def set_up_in_task(plan: Plan) -> bool:
    """Whether every task makes its environment, instead of the batch script once."""
    return plan.job.setup_on == "node" and LAUNCHERS[plan.launcher].through_srun


def is_pyxis(plan: Plan) -> bool:
    """Whether srun itself puts the tasks into the container."""
    return bool(plan.job.container) and plan.job.container_runtime == "pyxis"


def tasks_differ(plan: Plan) -> bool:
    """Whether only a task, not the batch script, has the environment of the ranks."""
    return set_up_in_task(plan) or is_pyxis(plan)


def run_folder(plan: Plan) -> str:
    """The whole run folder, also in a task of an array, whose own folder lies inside it."""
    return "${ALLRANKS_ATTEMPT_DIR%/attempts/*}" if plan.job.array else "$ALLRANKS_RUN_DIR"


def container_words(plan: Plan) -> list[Word]:
    """The words that put a command into the container; none without one, or with pyxis (srun's)."""
    job = plan.job
    if not job.container or is_pyxis(plan):
        return []
    own: list[Word] = [Raw(f'"{run_folder(plan)}"')] if uses_agent(plan) else []
    gpus = plan.shape.gpus_per_node.count > 0
    return apptainer_words(job, plan.gpu_vendor, gpus, own)


def batch_python(plan: Plan) -> Word:
    """A Python of the batch script: the ranks' own, unless only a task has that."""
    return Raw('"$(type -P python3 || type -P python)"') if tasks_differ(plan) else plan.python
