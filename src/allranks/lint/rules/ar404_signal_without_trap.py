"""A signal to the batch shell that nothing there expects."""

from __future__ import annotations

import re
from collections.abc import Iterator

from allranks.lint.finding import NOTE, WARNING, Finding
from allranks.lint.job_script import JobScript
from allranks.lint.rule import Rule, example
from allranks.lint.rules.rule_helpers import sources_unknown

RULE = Rule(
    id="AR404",
    name="signal-without-trap",
    title="Nothing handles the signal",
    why="""--signal=B:USR1@60 sends the signal to the batch shell alone. Without a trap there USR1, like most
    signals, ends the shell, and the training dies with it instead of saving. Without B: the signal goes to
    the steps (srun), and the batch shell with its trap never sees it.""",
    symptoms=("the job is killed before its time limit", "no checkpoint is written at the end"),
    bad=example("srun python train.py", "--signal=B:USR1@120", "--nodes=2"),
    good=example("srun python train.py", "--signal=USR1@120", "--nodes=2"),
    clean=(
        example("trap 'echo soon' USR1\nsrun python train.py &\nwait $!", "--signal=B:USR1@120"),
        example("trap 'echo soon' SIGUSR1\nsrun python train.py &\nwait $!", "--signal=B:10@120"),
        example("exec python train.py", "--signal=B:USR1@120"),
    ),
)
_SIGNAL = re.compile(r"^(?P<who>[RB]{1,2}:)?(?:SIG)?(?P<name>\w+)(?:@(?P<seconds>\d+))?$")
_NUMBERS = {"10": "USR1", "12": "USR2", "15": "TERM", "1": "HUP", "2": "INT"}


def check(job: JobScript) -> Iterator[Finding]:
    """``--signal`` against the traps of the batch shell."""
    option = job.allocation.options.find("signal")
    match = (
        _SIGNAL.match((option.value.text or "").upper())
        if option is not None and option.value
        else None
    )
    if option is None or match is None:
        return
    name = _NUMBERS.get(match["name"], match["name"])
    trapped = _trapped(job)
    to_batch = "B" in (match["who"] or "")
    executed = any(call.first == "exec" and call.program for call in job.calls)
    if to_batch and name not in trapped and not executed and not sources_unknown(job):
        yield RULE.at(
            option.span,
            f"{name} goes to the batch shell, which has no trap for it and is ended by it: the training is killed "
            "without saving.",
            help=f"Remove B: so that the training gets it, or add a trap for {name} and run srun in the background.",
            severity=WARNING,
        )
    elif not to_batch and name in trapped and job.launches:
        yield RULE.at(
            option.span,
            f"Without B: the signal goes to the steps of srun only; the trap for {name} in this script never runs.",
            help=f"Write --signal=B:{name}@{match['seconds'] or 60}.",
            severity=NOTE if _python_handles(job) else WARNING,
        )


def _trapped(job: JobScript) -> set[str]:
    found: set[str] = set()
    for call in job.named("trap"):
        for word in call.args[1:]:
            text = (word.text or "").upper().removeprefix("SIG")
            found.add(_NUMBERS.get(text, text))
    return found


def _python_handles(job: JobScript) -> bool:
    return not any(
        call.function or call.inside == "trap" for call in job.named("scontrol", "sbatch")
    )
