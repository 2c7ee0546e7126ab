"""Values that sbatch cannot read."""

from __future__ import annotations

import re
from collections.abc import Iterator

from allranks.lint.command_options import Option
from allranks.lint.directives import option_lines
from allranks.lint.finding import ERROR, NOTE, WARNING, Finding
from allranks.lint.job_script import JobScript
from allranks.lint.rule import Rule, example
from allranks.lint.rules.rule_helpers import is_template
from allranks.lint.slurm_options import REQUIRED, SBATCH

RULE = Rule(
    id="AR011",
    name="bad-value",
    title="sbatch cannot read this value",
    why="""sbatch refuses a script with a time or a number that it cannot read. A time is minutes,
    minutes:seconds, hours:minutes:seconds, or days-hours and so on: 2h and 1 day are unknown to it.
    Memory has a unit of one letter without a blank.""",
    severity=ERROR,
    symptoms=("sbatch: error: Invalid --time specification", "sbatch refuses the script"),
    bad=example("srun python train.py", "--time=24h"),
    good=example("srun python train.py", "--time=24:00:00"),
    clean=(
        example(
            "srun python train.py",
            "--time=0-03:00",
            "--nodes=2-4",
            "--mem=64G",
            "--mem-per-cpu=4000MB",
        ),
        example(
            "srun python train.py",
            "-t 15",
            "--time=UNLIMITED",
            "--ntasks=4",
            "--gpus=a100:4",
            "--mem=0",
        ),
        example(
            "srun python train.py", "-t 3-0", "--gres=gpu:tesla_v100-sxm2-16gb:2,nvme:100", "-N 1-1"
        ),
    ),
)
_TIME = re.compile(r"^(\d+|\d+:\d+|\d+:\d+:\d+|\d+-\d+(:\d+){0,2}|unlimited|infinite|-1)$", re.I)
_COUNT = re.compile(r"^\d+$")
_FORMS = {
    "time": _TIME,
    "time-min": _TIME,
    "nodes": re.compile(r"^[\d,\-:/]+[kKmM]?$|^\d+[kKmM]?(-\d+[kKmM]?)?$"),
    "ntasks": _COUNT,
    "ntasks-per-node": _COUNT,
    "cpus-per-task": _COUNT,
    "cpus-per-gpu": re.compile(r"^([\w.\-]+:)?\d+$"),
    "mem": re.compile(r"^\d+(\.\d+)?\s*([kmgt]i?b?)?$", re.I),
    "mem-per-cpu": re.compile(r"^\d+(\.\d+)?([kmgt]i?b?)?$", re.I),
    "mem-per-gpu": re.compile(r"^\d+(\.\d+)?([kmgt]i?b?)?$", re.I),
    "gpus-per-node": re.compile(r"^([\w.\-]+:)?\d+(,([\w.\-]+:)?\d+)*$"),
    "gpus-per-task": re.compile(r"^([\w.\-]+:)?\d+(,([\w.\-]+:)?\d+)*$"),
    "gpus": re.compile(r"^([\w.\-]+:)?\d+(,([\w.\-]+:)?\d+)*$"),
}


def check(job: JobScript) -> Iterator[Finding]:
    """Values against the form that sbatch wants."""
    if is_template(job):
        return
    for _, option in option_lines(job.directives):
        value = option.value.shown if option.value is not None else None
        if value is None:
            yield from _missing(option)
            continue
        form = _FORMS.get(option.name)
        if not value.strip():
            yield RULE.at(
                option.span,
                f"{option.written} has no value.",
                help="Give one, or remove the line.",
                severity=NOTE if option.name in ("mail-user", "mail-type", "comment") else WARNING,
            )
        elif option.written.startswith("--") and value.startswith("="):
            refused = form is not None or option.name in ("partition", "account", "qos", "gres")
            yield RULE.at(
                option.span,
                f"The value of {option.written} is '{value}', with the equals sign"
                + (": sbatch refuses it." if refused else "."),
                help=f"Write {option.written}=VALUE, without blanks and with one equals sign.",
                severity=ERROR if refused else WARNING,
            )
        elif form is not None and not form.match(value) and not _filled_in(value):
            yield RULE.at(
                option.span, f"sbatch cannot read '{value}' as {_what(option)}.", help=_help(option)
            )


def _missing(option: Option) -> Iterator[Finding]:
    if SBATCH.kind(option.name) == REQUIRED and option.written:
        yield RULE.at(
            option.span,
            f"{option.written} needs a value: sbatch refuses the script.",
            help="Give one, or remove the line.",
        )


def _filled_in(value: str) -> bool:
    """A place that is filled in later is another rule's affair; so is ``=2`` after a short option."""
    return any(sign in value for sign in "${}<>[]=") or value.isupper()


def _what(option: Option) -> str:
    words = {
        "time": "a time",
        "time-min": "a time",
        "mem": "a memory size",
        "nodes": "a number of nodes",
    }
    return words.get(option.name, "a memory size" if option.name.startswith("mem") else "a number")


def _help(option: Option) -> str:
    if option.name.startswith("time"):
        return "Write minutes (90), 12:00:00, or 1-00:00:00 for a day."
    if option.name.startswith("mem"):
        return "Write 64G or 64000M."
    return "Write a plain number" + (
        ", or a type and a number: a100:4." if "gpu" in option.name else "."
    )
