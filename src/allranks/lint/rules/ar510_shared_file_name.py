"""A host file that all jobs write to."""

from __future__ import annotations

import re
from collections.abc import Iterator

from allranks.lint.finding import NOTE, Finding
from allranks.lint.job_script import JobScript
from allranks.lint.rule import Rule, example

RULE = Rule(
    id="AR510",
    name="shared-file-name",
    title="Two jobs write the same host file",
    why="""The file has the same name for every job of this script. When two run at the same time, one reads
    the nodes of the other, and starts its processes there. The job's id in the name keeps them apart.""",
    severity=NOTE,
    symptoms=("processes start on nodes of another job", "Permission denied (publickey)"),
    bad=example(
        "scontrol show hostnames > hostfile\ndeepspeed --hostfile=hostfile train.py", "--nodes=2"
    ),
    good=example(
        "scontrol show hostnames > hostfile.$SLURM_JOB_ID\ndeepspeed --hostfile=hostfile.$SLURM_JOB_ID train.py",
        "--nodes=2",
    ),
    clean=(
        example(
            "H=$(mktemp)\nscontrol show hostnames > $H\ndeepspeed --hostfile=$H train.py",
            "--nodes=2",
        ),
        example("scontrol show hostnames > $TMPDIR/hosts\nsrun python train.py", "--nodes=2"),
    ),
)
_HOSTS = re.compile(r"host_?s?_?(file|list)?|machine_?file|node_?(file|list)", re.I)


def check(job: JobScript) -> Iterator[Finding]:
    """Redirections to a fixed name that speaks of hosts."""
    if not job.is_batch:
        return
    for call in job.calls:
        for redirect in call.redirects:
            text = redirect.target.text if redirect.target is not None else None
            if (
                redirect.operator not in (">", ">>", ">|")
                or not text
                or text.startswith(("/dev/", "/tmp/"))
            ):
                continue
            name = text.rpartition("/")[2]
            if _HOSTS.fullmatch(name.partition(".")[0]) and "SLURM" not in redirect.span.text:
                yield RULE.at(
                    redirect.span,
                    f"Every job of this script writes {text}: two at the same time mix their nodes.",
                    help=f"Put the job's id in: {text}.$SLURM_JOB_ID",
                )
                return
