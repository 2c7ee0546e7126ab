"""A training in the background that nobody waits for."""

from __future__ import annotations

from collections.abc import Iterator

from allranks.lint.command_calls import Call
from allranks.lint.finding import ERROR, WARNING, Finding
from allranks.lint.job_script import JobScript
from allranks.lint.rule import Rule, example

RULE = Rule(
    id="AR112",
    name="not-waited-for",
    title="The job ends while the training runs",
    why="""A job is over when its batch script is. What the script started with & and did not wait for is
    killed at that moment, mostly seconds after it began.""",
    severity=ERROR,
    symptoms=("the job ends at once", "the training is killed after seconds"),
    bad=example("srun python train.py &\necho started", "--nodes=2"),
    good=example("srun python train.py &\nwait $!", "--nodes=2"),
    clean=(
        example("python server.py &\nsrun python train.py", "--nodes=2"),
        example("for i in 1 2; do\nsrun -n1 python train.py $i &\ndone\nwait", "--nodes=2"),
        example("srun python train.py &\nwhile kill -0 $!; do sleep 60; done", "--nodes=2"),
    ),
)
_STAY = ("wait", "sleep", "tail", "fg", "kill", "read")


def check(job: JobScript) -> Iterator[Finding]:
    """Launches in the background with nothing after them that takes time."""
    if not job.is_batch:
        return
    order = {id(call): index for index, call in enumerate(job.calls)}
    for launch in job.launches:
        call = launch.call
        if not call.background or call.inside == "trap":
            continue
        later = job.calls[order[id(call)] + 1 :]
        if any(_takes_time(each) for each in later) or _loops_back(job, call):
            continue
        yield RULE.at(
            call.span,
            "This runs in the background, and nothing waits for it: the job ends at once and kills it.",
            help="Add as the last lines: wait $!, or remove the &.",
            severity=ERROR if launch.certain else WARNING,
        )
        return


def _takes_time(call: Call) -> bool:
    if call.name in _STAY or call.name == "":
        return bool(call.program)
    if call.background or call.inside == "substitution":
        return False
    return bool(call.layers) or call.name in (
        "python",
        "python3",
        "bash",
        "sh",
        "torchrun",
        "ssh",
        "accelerate",
    )


def _loops_back(job: JobScript, call: Call) -> bool:
    """In a loop or a function what waits may be written above."""
    return (call.loop or bool(call.function)) and any(each.name in _STAY for each in job.calls)
