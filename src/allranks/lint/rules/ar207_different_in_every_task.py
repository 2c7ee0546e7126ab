"""An id or a port that each task draws by itself."""

from __future__ import annotations

import re
from collections.abc import Iterator

from allranks.lint.command_calls import TASK
from allranks.lint.finding import ERROR, WARNING, Finding
from allranks.lint.job_script import JobScript
from allranks.lint.launch_commands import Launch
from allranks.lint.rule import Rule, example
from allranks.lint.shell.model import Part, Substitution, Word, variables_of
from allranks.lint.source_text import Span

_RUN = "torchrun --nnodes=2 --nproc_per_node=4 --rdzv_backend=c10d --rdzv_id={} --rdzv_endpoint=$head:29500 train.py"
RULE = Rule(
    id="AR207",
    name="different-in-every-task",
    title="Each task draws its own id or port",
    why="""All ranks need the same id and the same port. $RANDOM, shuf or the clock, replaced inside
    the task, give every node another one, and the nodes never find each other. Draw it once in the batch
    script, or use the job's id.""",
    severity=ERROR,
    symptoms=("hangs at init", "RendezvousTimeoutError"),
    bad=example("export head\nsrun bash -c '" + _RUN.format("$RANDOM") + "'", "--nodes=2", "--ntasks-per-node=1"),
    good=example("export head\nsrun bash -c '" + _RUN.format("$SLURM_JOB_ID") + "'",
                 "--nodes=2", "--ntasks-per-node=1"),
    clean=(
        example("srun " + _RUN.format("$RANDOM"), "--nodes=2", "--ntasks-per-node=1"),
        example("srun bash -c '" + _RUN.format("$RANDOM") + "'", "--nodes=1"),
        example('srun bash -c "' + _RUN.format("$RANDOM") + '"', "--nodes=2", "--ntasks-per-node=1"),
    ),
)  # fmt: skip
_OPTIONS = ("rdzv-id", "rdzv-endpoint", "master-port", "main-process-port")
_DRAWS = frozenset(
    {"shuf", "date", "uuidgen", "mktemp", "comm", "ss", "netstat", "python", "python3"}
)


def check(job: JobScript) -> Iterator[Finding]:
    """Options and variables of launches over several nodes."""
    for launch in job.launches:
        if launch.step is None or job.shape(launch).nodes == 1:
            continue
        for span, word, name in _words(launch):
            if not any(_drawn(part) for part in word.parts):
                continue
            several = (job.shape(launch).nodes or 0) > 1
            yield RULE.at(
                span,
                f"{name} is drawn in each task by itself, so every node has another one and they do not meet.",
                help="Use $SLURM_JOB_ID, or draw it once in the batch script and export it.",
                severity=ERROR if several and launch.certain else WARNING,
            )


def _words(launch: Launch) -> Iterator[tuple[Span, Word, str]]:
    for name in _OPTIONS:
        option = launch.options.find(name)
        if option is not None and option.value is not None:
            yield option.span, option.value, option.written
    binding = launch.call.env.get("MASTER_PORT")
    if binding is not None and binding.parts is not None and launch.kind == "python":
        yield binding.span, Word(binding.parts, binding.span), "MASTER_PORT"


def _drawn(part: Part) -> bool:
    for variable in variables_of(part):
        if re.match(r"^(RANDOM|EPOCHSECONDS|SECONDS)$", variable.name):
            return variable.shell is not None and variable.shell.kind == TASK
    if isinstance(part, Substitution):
        return any(call.name in _DRAWS and call.shell.kind == TASK for call in part.calls)
    return False
