"""A log without the job's number in its name."""

from __future__ import annotations

from collections.abc import Iterator

from allranks.lint.finding import NOTE, WARNING, Finding
from allranks.lint.job_script import JobScript
from allranks.lint.rule import Rule, example

RULE = Rule(
    id="AR013",
    name="log-overwritten",
    title="The next run overwrites this log",
    why="""Without %j (the job's id) in its name the log is the same file for every run, and Slurm empties
    it when a job starts. Two jobs at the same time write into each other's lines; so do the tasks of an
    array without %a.""",
    symptoms=("the log of an earlier run is gone", "lines of two jobs are mixed"),
    bad=example("srun python train.py", "--output=train.out", "--array=0-3"),
    good=example("srun python train.py", "--output=train-%A-%a.out", "--array=0-3"),
    clean=(
        example("srun python train.py", "--output=%x.%j"),
        example("srun python train.py", "--output=/dev/null"),
        example("srun python train.py", "--output=train.out", "--open-mode=append"),
        example("srun python train.py", "--nodes=1"),
    ),
)


def check(job: JobScript) -> Iterator[Finding]:
    """``--output`` and ``--error`` that name one file for all runs."""
    options = job.allocation.options
    array = options.has("array")
    if options.text("open-mode") in ("append", "a") and not array:
        return
    for name in ("output", "error"):
        option = options.find(name)
        text = option.value.shown if option is not None and option.value is not None else ""
        if (
            option is None
            or not text
            or text.startswith("/dev/")
            or "$" in text
            or "{" in text
            or "<" in text
        ):
            continue
        wanted = ("%j", "%J", "%A", "%a") if not array else ("%a", "%j", "%J")
        if any(sign in text for sign in wanted) or (
            "%" in text and any(f"%{n}j" in text for n in range(1, 10))
        ):
            continue
        sign = "%A-%a" if array else "%j"
        why = "all tasks of the array write" if array else "every run of this job writes"
        yield RULE.at(
            option.span,
            f"{text} has no {sign}: {why} to the same file, and what was in it is lost.",
            help=f"Put the number in: --{name}={_with(text, sign)}",
            severity=WARNING if array else NOTE,
        )
        return


def _with(text: str, sign: str) -> str:
    stem, dot, ending = text.rpartition(".")
    return f"{stem}-{sign}.{ending}" if dot and stem and "/" not in ending else f"{text}-{sign}"
