"""A trap that waits for the command in the foreground."""

from __future__ import annotations

from collections.abc import Iterator

from allranks.lint.finding import WARNING, Finding
from allranks.lint.job_script import JobScript
from allranks.lint.rule import Rule, example

RULE = Rule(
    id="AR405",
    name="trap-too-late",
    title="The trap runs only when the training has ended",
    why="""bash runs a trap between two commands. While srun is in the foreground the signal is kept until it
    ends, and at the time limit everything is killed first: the handler, with its requeue, never runs. Start
    srun in the background and wait for it: wait is interrupted by the signal.""",
    symptoms=(
        "the job is not requeued at the time limit",
        "the handler's message is not in the log",
    ),
    bad=example(
        "trap 'scontrol requeue $SLURM_JOB_ID' USR1\nsrun python train.py", "--signal=B:USR1@60"
    ),
    good=example(
        "trap 'scontrol requeue $SLURM_JOB_ID' USR1\nsrun python train.py &\nwait $!",
        "--signal=B:USR1@60",
    ),
    clean=(
        example("trap 'rm -rf $TMP' EXIT\nsrun python train.py", "--nodes=1"),
        example("trap '' TERM\nsrun python train.py", "--nodes=1"),
        example("trap 'kill 0' INT TERM\nbash run.sh", "--nodes=1"),
    ),
)
_NOT_SIGNALS = frozenset({"EXIT", "0", "ERR", "DEBUG", "RETURN", "INT", "SIGINT"})


def check(job: JobScript) -> Iterator[Finding]:
    """Traps of the batch shell, and launches there in the foreground."""
    if not job.is_batch or not job.allocation.options.has("signal", "requeue"):
        return
    if "B:" not in (job.option("signal") or "B:").upper():
        return  # then the batch shell gets no signal at all: another rule
    traps = [call for call in job.named("trap") if call.shell is job.shell and len(call.args) > 1]
    for trap in traps:
        if (trap.args[0].text or "x") in ("", "-") or not trap.args[0].parts:
            continue
        signals = {word.text or "" for word in trap.args[1:]} - _NOT_SIGNALS
        if not signals:
            continue
        front = [
            launch.call
            for launch in job.launches
            if not launch.call.background
            and launch.call.span.source is job.source
            and launch.call.inside != "trap"
        ]
        back = [launch for launch in job.launches if launch.call.background]
        if front and not back:
            yield RULE.at(
                trap.span,
                f"{', '.join(sorted(signals))} is kept back while line {front[-1].span.line} runs in the foreground: "
                "the trap comes too late.",
                help="Write & after that command, and wait $! on the next line.",
                severity=WARNING,
                related=[front[-1].span],
            )
            return
