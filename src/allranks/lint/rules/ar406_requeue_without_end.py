"""A job that puts itself back into the queue for ever."""

from __future__ import annotations

from collections.abc import Iterator

from allranks.lint.command_calls import Call
from allranks.lint.finding import NOTE, WARNING, Finding
from allranks.lint.job_script import JobScript
from allranks.lint.rule import Rule, example

RULE = Rule(
    id="AR406",
    name="requeue-without-end",
    title="Nothing stops the job from starting itself again",
    why="""A script that requeues or submits itself must know when to stop: a count (SLURM_RESTART_COUNT), a
    file that says "done", or a look at the exit code. Without one a job that fails at once comes back for
    ever, and fills the queue and the quota.""",
    symptoms=("the same job fails again and again", "the queue is full of one job"),
    bad=example("srun python train.py\nsbatch job.sh", "--nodes=2", "--job-name=job"),
    good=example('srun python train.py\nif [ "$SLURM_RESTART_COUNT" -lt 5 ]; then scontrol requeue $SLURM_JOB_ID; fi',
                 "--nodes=2"),
    clean=(
        example("srun python train.py\nif [ ! -f done ]; then sbatch $0; fi", "--nodes=2"),
        example("srun python train.py && sbatch next.sh", "--nodes=2"),
        example("handler() {\n[ ${SLURM_RESTART_COUNT:-0} -lt 9 ] && scontrol requeue $SLURM_JOB_ID\n}\n"
                "trap handler USR1\nsrun python train.py &\nwait", "--signal=B:USR1@60"),
    ),
    example="job.sh",
)  # fmt: skip


def check(job: JobScript) -> Iterator[Finding]:
    """Self-submission, and requeueing, without a condition around."""
    if not job.is_batch or "RESTART_COUNT" in job.source.text:
        return
    for call in job.named("scontrol", "sbatch"):
        again = _requeues(call) or _submits_itself(job, call)
        if not again or call.inside == "substitution":
            continue
        handler = bool(call.function) or call.inside == "trap"
        if not handler and not call.certain:
            continue
        yield RULE.at(
            call.span,
            "The job starts itself again each time, and nothing counts how often.",
            help='Count: [ "${SLURM_RESTART_COUNT:-0}" -lt 10 ] || exit 1'
            if _requeues(call)
            else "Stop when the training is done, or after a number of times.",
            severity=NOTE if handler else WARNING,
        )
        return


def _requeues(call: Call) -> bool:
    return call.name == "scontrol" and any(
        (word.text or "").startswith("requeue") for word in call.args
    )


def _submits_itself(job: JobScript, call: Call) -> bool:
    if call.name != "sbatch":
        return False
    own = job.source.name.rpartition("/")[2]
    return any(
        (word.text or "").rpartition("/")[2] == own
        or word.span.text.strip("\"'") in ("$0", "${0}", "${BASH_SOURCE[0]}")
        for word in call.args
    )
