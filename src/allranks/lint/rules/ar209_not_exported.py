"""A variable that the training needs and does not get."""

from __future__ import annotations

from collections.abc import Iterator

from allranks.lint.finding import WARNING, Edit, Finding
from allranks.lint.job_script import JobScript
from allranks.lint.launch_commands import PYTHON
from allranks.lint.rule import Rule, example

RULE = Rule(
    id="AR209",
    name="not-exported",
    title="The variable stays in the shell",
    why="""A variable without export belongs to the shell that set it. Programs that it starts, srun and
    python among them, do not get it: the training stops because MASTER_ADDR is not set, or meets at
    the wrong place.""",
    symptoms=("environment variable MASTER_ADDR expected, but not set", "hangs at init"),
    bad=example("MASTER_ADDR=$(hostname)\nMASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))\nsrun python train.py",
                "--nodes=2", "--ntasks-per-node=4"),
    good=example(
        "export MASTER_ADDR=$(hostname)\nexport MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))\nsrun python train.py",
        "--nodes=2", "--ntasks-per-node=4",
    ),
    clean=(
        example("MASTER_ADDR=$(hostname)\nexport MASTER_ADDR\nsrun python train.py", "--nodes=2"),
        example("MASTER_ADDR=$(hostname)\nsrun python train.py --dist-url tcp://$MASTER_ADDR:1", "--nodes=2"),
        example("set -a\nMASTER_ADDR=$(hostname)\nsrun python train.py", "--nodes=2"),
        example("MASTER_ADDR=$(hostname) srun python train.py", "--nodes=2"),
    ),
)  # fmt: skip
_NEEDED = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_DEBUG",
           "OMP_NUM_THREADS")  # fmt: skip


def check(job: JobScript) -> Iterator[Finding]:
    """Variables for the training, set and neither exported nor used in the script."""
    launches = [each for each in job.launches if each.kind == PYTHON and each.step is not None]
    if not launches or _exports_all(job):
        return
    read = {variable.name for _, variable in job.reads()} | _spliced(job)
    reported: set[str] = set()
    for launch in launches[:3]:
        for name in _NEEDED:
            binding = launch.call.env.get(name)
            if binding is None or binding.exported or name in read or name in reported:
                continue
            if binding.span.source is not job.source or any(
                a.name == name for a in launch.call.assignments
            ):
                continue
            reported.add(name)
            yield RULE.at(
                binding.span,
                f"{name} is not exported: the processes that srun starts do not get it.",
                help=f"Write export {name}=…",
                fix=[Edit(job.source.span(binding.span.start, binding.span.start), "export ")],
                severity=WARNING,
            )


def _exports_all(job: JobScript) -> bool:
    return any(
        call.name == "set" and any((word.text or "") in ("-a", "-o") for word in call.args)
        for call in job.calls
    )


def _spliced(job: JobScript) -> set[str]:
    """Names that stand somewhere after a ``$``: their values may have been put in already."""
    import re

    body = "\n".join(
        line for line in job.source.text.split("\n") if not re.match(r"\s*(echo|printf|#)", line)
    )
    return set(re.findall(r"\$\{?(\w+)", body))
