"""A launcher is given a variable that nothing sets."""

from __future__ import annotations

import re
from collections.abc import Iterator

from allranks.errors import nearest
from allranks.lint.finding import NOTE, WARNING, Finding
from allranks.lint.job_script import JobScript
from allranks.lint.launch_commands import Launch
from allranks.lint.rule import Rule, example
from allranks.lint.rules.rule_helpers import is_template, sources_unknown
from allranks.lint.shell.model import Variable

RULE = Rule(
    id="AR210",
    name="never-given",
    title="Nothing in the script gives this variable a value",
    why="""A variable without a value is an empty text: --rdzv_endpoint becomes ":29500", --nnodes takes the
    next option for its number. It may come from the shell you submit from, or from the cluster's own
    set-up; then this script works there and nowhere else.""",
    symptoms=("expected one argument", "hangs at init", "Name or service not known"),
    bad=example("head_node=$(hostname)\nsrun torchrun --nnodes=2 --rdzv_endpoint=$HEAD_NODE:2950 t.py", "--nodes=2"),
    good=example("head_node=$(hostname)\nsrun torchrun --nnodes=2 --rdzv_endpoint=$head_node:2950 t.py", "--nodes=2"),
    clean=(
        example("source env.sh\nsrun torchrun --nnodes=2 --rdzv_endpoint=$HEAD:29500 train.py", "--nodes=2"),
        example("srun torchrun --nnodes=$SLURM_NNODES --rdzv_endpoint=${HEAD:-a}:29500 train.py", "--nodes=2"),
        "#!/bin/bash\ntorchrun --nnodes=$NNODES --rdzv_endpoint=$HEAD:29500 train.py\n",
    ),
)  # fmt: skip
_OPTIONS = (
    "rdzv-endpoint", "master-addr", "master-port", "main-process-ip", "main-process-port", "nnodes", "nproc-per-node",
    "num-machines", "num-processes", "rdzv-id", "np", "hostfile",
)  # fmt: skip
_GIVEN = (
    "SLURM",
    "HOME",
    "USER",
    "TMPDIR",
    "PWD",
    "RANDOM",
    "HOSTNAME",
    "CUDA_VISIBLE",
    "PMI",
    "OMPI",
    "PMIX",
    "SLURMD",
)


def check(job: JobScript) -> Iterator[Finding]:
    """Variables in the options of launchers, in batch scripts that read no other file."""
    if not job.is_batch or sources_unknown(job) or is_template(job):
        return
    names = {item.name for call in job.calls for item in call.assignments}
    names |= set(re.findall(r"\$\{(\w+):?[=?]", job.source.text))
    reported: set[str] = set()
    for launch in job.launches:
        for variable in _unknown(launch):
            if variable.name in names or variable.name in reported:
                continue
            reported.add(variable.name)
            close = nearest(variable.name, names)
            like = close is not None and _alike(close, variable.name)
            yield RULE.at(
                variable.span,
                f"${variable.name} is used here, and nothing in the script sets it.",
                help=f"You may mean ${close}."
                if like
                else f"Set it above, or give it a default: ${{{variable.name}:-…}}",
                severity=WARNING if like else NOTE,
            )


def _unknown(launch: Launch) -> Iterator[Variable]:
    for name in _OPTIONS:
        option = launch.options.find(name)
        for variable in (
            option.value.variables() if option is not None and option.value is not None else ()
        ):
            known = variable.name.startswith(_GIVEN) or not variable.name.isidentifier()
            if (
                not known
                and not variable.operator
                and not variable.choices
                and variable.name not in launch.call.env
            ):
                yield variable


def _alike(one: str, other: str) -> bool:
    plain = [name.lower().replace("_", "") for name in (one, other)]
    return plain[0] in plain[1] or plain[1] in plain[0]
