"""A last command that hides how the training ended."""

from __future__ import annotations

from collections.abc import Iterator

from allranks.lint.command_calls import Call
from allranks.lint.finding import NOTE, Finding
from allranks.lint.job_script import JobScript
from allranks.lint.rule import Rule, example

RULE = Rule(
    id="AR403",
    name="command-after-launch",
    title="The last command decides how the job ended",
    why="""A job's result is the exit code of the last command of its script. After the training comes
    another one, mostly echo, which always succeeds: a failed training is COMPLETED.""",
    severity=NOTE,
    symptoms=("a failed job is COMPLETED",),
    bad=example("srun python train.py\necho finished at $(date)", "--nodes=2"),
    good=example(
        "srun python train.py\ncode=$?\necho finished at $(date)\nexit $code", "--nodes=2"
    ),
    clean=(
        example("set -e\nsrun python train.py\necho finished", "--nodes=2"),
        example("srun python train.py || exit 1\necho finished", "--nodes=2"),
        example("srun python train.py", "--nodes=2"),
        example("srun python train.py\nif [ $? -ne 0 ]; then exit 1; fi\nexit 0", "--nodes=2"),
        example("set -e\nsrun python train.py\nexit 0", "--nodes=2"),
        example("srun python train.py\nsrun python evaluate.py", "--nodes=2"),
    ),
)
_CONTENT = frozenset(
    {"echo", "date", "printf", "sleep", "cp", "rm", "mv", "rsync", "conda", "deactivate", "module", "sacct", "seff",
     "nvidia-smi", "cd", "ls", "unset", "sstat", "squeue", "tar", "mkdir", "touch", "cat", "ml", "scontrol", "kill"}
)  # fmt: skip


def check(job: JobScript) -> Iterator[Finding]:
    """The end of the batch script, where nothing looks at the training's exit code."""
    if not job.is_batch or not job.launches or any(_stops_on_error(call) for call in job.calls):
        return
    own = [
        call
        for call in job.calls
        if call.shell is job.shell and call.inside == "" and not call.function
    ]
    launched = {id(launch.call) for launch in job.launches} | {
        id(call)
        for call in own
        if any(id(each) in {id(x.call) for x in job.launches} for each in call.nested)
    }
    last_launch = next((call for call in reversed(own) if id(call) in launched), None)
    if last_launch is None or last_launch.checked or last_launch.background or not own:
        return
    last = own[-1]
    rest = own[own.index(last_launch) + 1 :]
    if last is last_launch or any(_looks(call) for call in rest):
        return
    if last.name not in _CONTENT and not _succeeds(last):
        return
    if last in last_launch.piped_to:
        return
    yield RULE.at(
        last.span,
        f"The job ends with the exit code of {last.name}, not with that of the training.",
        help="Put set -e at the top, or keep the code: code=$? right after it, and exit $code at the end.",
    )


def _stops_on_error(call: Call) -> bool:
    return call.name == "set" and any(
        ((word.text or "").startswith("-") and "e" in (word.text or "").partition("o")[0])
        or word.text == "errexit"
        for word in call.args
    )


def _succeeds(call: Call) -> bool:
    """``exit 0``, whatever was before it."""
    return call.name == "exit" and [word.text for word in call.args] == ["0"] and call.certain


def _looks(call: Call) -> bool:
    words = [*call.words, *(item.value for item in call.assignments if item.value is not None)]
    return (call.name in ("exit", "wait") and not _succeeds(call)) or any(
        v.name == "?" for word in words for v in word.variables()
    )
