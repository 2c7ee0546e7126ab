"""A folder for the log that may not be there when Slurm opens it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath

from allranks.lint.command_options import Option
from allranks.lint.finding import NOTE, WARNING, Finding
from allranks.lint.job_script import JobScript
from allranks.lint.rule import Rule, example
from allranks.lint.rules.rule_helpers import slurm_version

RULE = Rule(
    id="AR012",
    name="log-folder",
    title="The folder of the log must exist before the job starts",
    why="""Slurm opens the log before it starts the script, and before version 23.11 it does not make folders.
    Without the folder the job ends at once and leaves no log that could say why. A mkdir inside the script
    comes too late.""",
    symptoms=("the job ends at once without a log", "the log is missing"),
    bad=example("mkdir -p logs\nsrun python train.py", "--output=logs/%j.out"),
    good=example("srun python train.py", "--output=train-%j.out"),
    clean=(
        example("srun python train.py", "--output=%x-%j.out", "--error=/dev/null"),
        example("mkdir -p results\nsrun python train.py", "--output=./%j.out"),
    ),
)


def check(job: JobScript) -> Iterator[Finding]:
    """Logs in folders that are not here, or that the script makes itself."""
    if (slurm_version(job) or (0, 0)) >= (23, 11):
        return
    made = _made(job)
    reported: set[str] = set()
    for name in ("output", "error"):
        option = job.allocation.options.find(name)
        folder = _folder(option)
        if option is None or folder is None or folder in reported or "$" in folder:
            continue
        reported.add(folder)
        late = folder in made
        if not late and (folder.startswith("/") or _exists(job, folder)):
            continue
        if late:
            text = (
                f"The script makes {folder} itself, but Slurm opens the log before that, and makes no folders "
                "before version 23.11."
            )
        else:
            text = f"Slurm before 23.11 does not make the folder {folder}: without it the job ends without a log."
        yield RULE.at(
            option.span,
            text,
            help=f"Make it before you submit: mkdir -p {folder}",
            severity=WARNING if late and not _exists(job, folder) else NOTE,
        )


def _folder(option: Option | None) -> str | None:
    text = option.value.shown.strip() if option is not None and option.value is not None else ""
    folder = str(PurePosixPath(text).parent) if "/" in text else ""
    return None if folder in ("", ".", "/dev", "/tmp") else folder


def _exists(job: JobScript, folder: str) -> bool:
    if "%" in folder:
        return False
    try:
        return (job.folder / folder).is_dir()
    except (OSError, ValueError):
        return False


def _made(job: JobScript) -> set[str]:
    found = set()
    for call in job.named("mkdir"):
        for word in call.args:
            text = word.shown.rstrip("/").removeprefix("./")
            found |= {text, f"./{text}"}
    return found
