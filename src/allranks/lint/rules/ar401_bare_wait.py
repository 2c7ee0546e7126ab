"""``wait`` without a number forgets what failed."""

from __future__ import annotations

from collections.abc import Iterator

from allranks.lint.command_calls import Shell
from allranks.lint.finding import WARNING, Finding
from allranks.lint.job_script import JobScript
from allranks.lint.launch_commands import Launch
from allranks.lint.rule import Rule, example

RULE = Rule(
    id="AR401",
    name="bare-wait",
    title="A failed training counts as completed",
    why="""wait without an argument returns 0 whatever happened to the processes it waited for. The job ends
    as COMPLETED though the training failed: jobs that depend on it start, and nobody looks.""",
    symptoms=("a failed job is COMPLETED", "a dependent job starts after a failure"),
    bad=example("srun python train.py &\nwait", "--nodes=2"),
    good=example("srun python train.py &\nwait $!", "--nodes=2"),
    clean=(
        example("python monitor.py &\nsrun python train.py\nkill %1\nwait", "--nodes=2"),
        example("srun python train.py &\npid=$!\nwait $pid\ncode=$?\nexit $code", "--nodes=2"),
        example("srun python train.py &\nwait -n", "--nodes=2"),
    ),
)


def check(job: JobScript) -> Iterator[Finding]:
    """A bare ``wait`` in a shell that has a launch in the background."""
    order = {id(call): index for index, call in enumerate(job.calls)}
    if any(not each.call.background for each in job.launches):
        return
    for call in job.named("wait"):
        if call.args or call.inside == "trap" or call.checked or call.function:
            continue
        waited = [
            launch
            for launch in job.launches
            if _same_shell(launch, call.shell.source) and order[id(launch.call)] < order[id(call)]
        ]
        exact = [each for each in job.named("wait") if each.args and each.shell is call.shell]
        if not waited or exact:
            continue
        several = len(waited) > 1 or waited[0].call.loop
        yield RULE.at(
            call.span,
            "wait returns 0 even when the training has failed: the job is then COMPLETED.",
            help='Keep the numbers (pids+=($!)) and wait for each: for p in "${pids[@]}"; do wait "$p" || code=1; done'
            if several
            else "Write wait $! (right after the command), or remove & and wait.",
            severity=WARNING,
        )


def _same_shell(launch: Launch, source: object) -> bool:
    """Whether the launch runs in that shell, or in one that it started."""
    shell: Shell | None = launch.call.shell
    while shell is not None:
        if shell.source is source:
            return True
        shell = shell.parent
    return False
