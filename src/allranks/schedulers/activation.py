"""The environment of a job on this machine: what was asked for now is set up, a file's is left alone.

A file describes the cluster's modules and environments, which this machine need not have; so from a
file they are only spoken of. What is typed for this very start is set up by the same shell lines as in
a job script.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from allranks.core.shell import quote
from allranks.job.environments import setup_lines, variable_lines
from allranks.job.fields import Job
from allranks.job.plan import Plan

STRICT = "set -eo pipefail"
"""What the set-up runs under, as in a job script: the first failure ends it."""
_FIELDS = ("modules", "module_purge", "setup", "conda", "venv", "uv", "setup_commands", "container")
_ASKED = ("command line", "Python")


def local_setup(plan: Plan) -> list[str]:
    """The shell lines that this start asks for; none when the active environment is to be used."""
    unset = Job()
    others = {name: getattr(unset, name) for name in _FIELDS if not _asked(plan, name)}
    return setup_lines(replace(plan.job, **{**others, "container": None}))


def left_alone(plan: Plan) -> str:
    """A sentence about what of the environment is not used here; "" when that is nothing."""
    given = [name for name in _FIELDS if getattr(plan.job, name)]
    left = [name for name in given if name == "container" or not _asked(plan, name)]
    if not left:
        return ""
    advice = " Give it on the command line to set it up here." if left != ["container"] else ""
    return f"Not used on this machine: {', '.join(left)}.{advice}"


def inside(lines: list[str], plan: Plan, library: Path, words: list[str]) -> list[str]:
    """The command behind its set-up, as the same process; the job's own variables win over it."""
    if not lines:
        return words
    path = f'export PYTHONPATH={quote(str(library))}"${{PYTHONPATH:+:$PYTHONPATH}}"'
    after = [*variable_lines(plan.job), path, 'exec "$@"']
    return ["bash", "-c", "\n".join([STRICT, *lines, *after]), "setup", *words]


def _asked(plan: Plan, name: str) -> bool:
    origin = plan.origins.get(name)
    return origin is not None and origin.source in _ASKED
