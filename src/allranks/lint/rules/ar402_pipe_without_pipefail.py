"""The exit code of a pipe is that of its last command."""

from __future__ import annotations

from collections.abc import Iterator

from allranks.lint.command_calls import Call
from allranks.lint.finding import WARNING, Finding
from allranks.lint.job_script import JobScript
from allranks.lint.rule import Rule, example

RULE = Rule(
    id="AR402",
    name="pipe-without-pipefail",
    title="A failed training counts as completed, because of the pipe",
    why="""A pipe ends with the exit code of its last command, and tee always succeeds. The job ends as
    COMPLETED though the training failed, and --requeue or dependencies do the wrong thing.""",
    symptoms=("a failed job is COMPLETED", "a dependent job starts after a failure"),
    bad=example("srun python train.py 2>&1 | tee train.log", "--nodes=2"),
    good=example("set -o pipefail\nsrun python train.py 2>&1 | tee train.log", "--nodes=2"),
    clean=(
        example("set -euo pipefail\nsrun python train.py | tee train.log", "--nodes=2"),
        example("srun python train.py | tee train.log\nexit ${PIPESTATUS[0]}", "--nodes=2"),
        example("srun hostname | tee hosts\nsrun python train.py", "--nodes=2"),
        example("srun python train.py > >(tee train.log)", "--nodes=2"),
        example("srun python train.py | tee train.log &\nwait", "--nodes=2"),
    ),
)


def check(job: JobScript) -> Iterator[Finding]:
    """Launches that are piped on, in a shell without pipefail."""
    if "PIPESTATUS" in job.source.text or any(_pipefail(call) for call in job.calls):
        return
    for launch in job.launches:
        call = launch.call
        if not call.piped_to or call.inside == "substitution" or call.background:
            continue  # what is in the background ends with its wait, which has rules of its own
        last = call.piped_to[-1]
        yield RULE.at(
            last.span,
            f"The job's result is that of {last.name or 'the last command'}: a failed training goes unnoticed.",
            help="Write set -o pipefail at the top of the script.",
            severity=WARNING,
        )
        return


def _pipefail(call: Call) -> bool:
    if call.name != "set" and call.name != "shopt":
        return call.name in ("bash", "sh") and any("pipefail" in word.shown for word in call.args)
    return any("pipefail" in word.shown for word in call.args)
