"""RANK and LOCAL_RANK of the batch shell are 0 for every process."""

from __future__ import annotations

import re
from collections.abc import Iterator

from allranks.lint.finding import ERROR, WARNING, Finding, Severity
from allranks.lint.job_script import JobScript
from allranks.lint.launch_commands import PYTHON, Launch
from allranks.lint.rule import Rule, example
from allranks.lint.rules.rule_helpers import launches_under, ranks_of_batch
from allranks.lint.shell.model import Word

RULE = Rule(
    id="AR109",
    name="rank-exported-once",
    title="Every process gets rank 0",
    why="""The batch script runs once, and there SLURM_PROCID and SLURM_LOCALID are 0. RANK=$SLURM_PROCID in
    the batch script, or --local_rank $SLURM_LOCALID on the srun line, is therefore 0 in all processes:
    each believes to be the first, and they never meet. Set them where each task runs.""",
    severity=ERROR,
    symptoms=("all ranks are rank 0", "hangs at init", "Address already in use"),
    bad=example(
        "export RANK=$SLURM_PROCID\nexport LOCAL_RANK=$SLURM_LOCALID\nexport WORLD_SIZE=$SLURM_NTASKS\n"
        "srun python train.py",
        "--nodes=2", "--ntasks-per-node=4", "--gres=gpu:4",
    ),
    good=example(
        "export WORLD_SIZE=$SLURM_NTASKS\n"
        "srun bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID python train.py'",
        "--nodes=2", "--ntasks-per-node=4", "--gres=gpu:4",
    ),
    clean=(
        example("export RANK=$SLURM_PROCID\nsrun python train.py", "--ntasks=1"),
        example("export NODE_RANK=$SLURM_NODEID\nsrun python train.py", "--nodes=2", "--ntasks-per-node=4"),
        example("export RANK=$SLURM_PROCID\npython train.py", "--ntasks=4"),
    ),
)  # fmt: skip
_VARIABLES = ("RANK", "LOCAL_RANK")
_OPTION = re.compile(r"^--?(global|local|node|dist|machine|world)?[-_]?rank(?:=|$)", re.I)


def check(job: JobScript) -> Iterator[Finding]:
    """Python in several tasks, with ranks of the batch shell in its environment or arguments."""
    for launch in launches_under(job, "srun"):
        tasks = job.shape(launch).tasks
        if launch.kind != PYTHON or tasks == 1:
            continue
        severity = ERROR if launch.certain and (tasks or 0) > 1 else WARNING
        for name in _VARIABLES:
            binding = launch.call.env.get(name)
            if binding is None or not binding.exported or binding.parts is None:
                continue
            for variable in ranks_of_batch(Word(binding.parts, binding.span)):
                yield RULE.at(
                    binding.span,
                    f"${variable.name} is 0 in the batch shell, so {name} is 0 in all "
                    f"{tasks or 'tasks of'} {'processes' if tasks else 'the step'}.",
                    help=f"Set it in each task: srun bash -c '{name}=${variable.name} python …'",
                    severity=severity if name == "RANK" else WARNING,
                )
                break
        yield from _arguments(launch, severity)


def _arguments(launch: Launch, severity: Severity) -> Iterator[Finding]:
    for index, word in enumerate(launch.args):
        match = _OPTION.match(word.start)
        if match is None:
            continue
        value = (
            word
            if "=" in word.start
            else launch.args[index + 1]
            if index + 1 < len(launch.args)
            else None
        )
        for variable in ranks_of_batch(value):
            yield RULE.at(
                word.span if value is word or value is None else word.span.to(value.span),
                f"${variable.name} is replaced once, in the batch shell, where it is 0: every process gets 0.",
                help="Read it in the program (os.environ), or let each task replace it: srun bash -c '…'",
                severity=severity,
            )
            break
