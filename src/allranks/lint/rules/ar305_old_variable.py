"""Variables that were renamed."""

from __future__ import annotations

from collections.abc import Iterator

from allranks.lint.finding import NOTE, Edit, Finding
from allranks.lint.job_script import JobScript
from allranks.lint.rule import Rule, example

RULE = Rule(
    id="AR305",
    name="old-variable",
    title="The variable has a new name",
    why="""PyTorch moved the variables of its own NCCL backend to the prefix TORCH_NCCL_. The old names give a
    warning in 2.2 and later, and will be dropped; then the setting has no effect.""",
    severity=NOTE,
    symptoms=("Environment variable NCCL_ASYNC_ERROR_HANDLING is deprecated",),
    bad=example("export NCCL_ASYNC_ERROR_HANDLING=1\nsrun python train.py", "--nodes=2"),
    good=example("export TORCH_NCCL_ASYNC_ERROR_HANDLING=1\nsrun python train.py", "--nodes=2"),
    clean=(
        example("export NCCL_DEBUG=INFO NCCL_SOCKET_IFNAME=ib0\nsrun python train.py", "--nodes=2"),
    ),
)
_NEW = {
    "NCCL_ASYNC_ERROR_HANDLING": "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "NCCL_BLOCKING_WAIT": "TORCH_NCCL_BLOCKING_WAIT",
    "NCCL_DESYNC_DEBUG": "TORCH_NCCL_DESYNC_DEBUG",
    "PYTORCH_CUDA_ALLOC_CONF_": "PYTORCH_ALLOC_CONF",
    "TRANSFORMERS_CACHE": "HF_HOME",
    "PYTORCH_TRANSFORMERS_CACHE": "HF_HOME",
}


def check(job: JobScript) -> Iterator[Finding]:
    """Assignments to the old names."""
    reported: set[str] = set()
    for _, item in job.assigned(*_NEW):
        if item.name in reported or item.span.source is not job.source:
            continue
        reported.add(item.name)
        new = _NEW[item.name]
        renamed = new.endswith(item.name)
        place = job.source.span(item.span.start, item.span.start + len(item.name))
        yield RULE.at(
            item.span,
            f"{item.name} is called {new} today.",
            help=f"Write {new}=…",
            fix=[Edit(place, new)] if renamed and place.text == item.name else [],
        )
