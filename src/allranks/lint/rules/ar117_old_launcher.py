"""torch.distributed.launch is on its way out."""

from __future__ import annotations

from collections.abc import Iterator

from allranks.lint.finding import NOTE, Finding
from allranks.lint.job_script import JobScript
from allranks.lint.launch_commands import LAUNCH
from allranks.lint.rule import Rule, example

RULE = Rule(
    id="AR117",
    name="old-launcher",
    title="torch.distributed.launch is deprecated",
    why="""PyTorch has replaced it by torchrun. It passes the script an argument that torchrun does not:
    --local_rank before PyTorch 2.0, --local-rank since. A script that knows only one spelling stops with
    "unrecognized arguments" after an update. torchrun gives LOCAL_RANK in the environment.""",
    severity=NOTE,
    symptoms=(
        "unrecognized arguments: --local-rank",
        "FutureWarning: The module torch.distributed.launch is deprecated",
    ),
    bad=example("python -m torch.distributed.launch --nproc_per_node=4 train.py", "--gres=gpu:4"),
    good=example("torchrun --nproc_per_node=4 train.py", "--gres=gpu:4"),
    clean=(example("python -m torch.distributed.run --nproc_per_node=4 train.py", "--gres=gpu:4"),),
)


def check(job: JobScript) -> Iterator[Finding]:
    """Every use of it."""
    for launch in job.launches:
        if launch.kind == LAUNCH:
            own = launch.options.has("use-env")
            yield RULE.at(
                launch.span,
                "torchrun has replaced this launcher"
                + (
                    "."
                    if own
                    else "; it also gives your script an argument --local-rank (or --local_rank)."
                ),
                help="Write torchrun with the same options"
                + (
                    ", without --use_env." if own else ", and read LOCAL_RANK from the environment."
                ),
            )
