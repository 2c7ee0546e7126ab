"""A rule: what it is called, why it matters, an example on each side, and how it makes findings.

A file ``rules/arNNN_name.py`` holds one. It defines ``RULE = Rule(…)`` and at least one of

    check(job: JobScript) -> Iterator[Finding]            a job script, and the workers it runs
    check_python(file: PythonFile, launch: Launched | None) -> Iterator[Finding]
    check_config(file: ConfigFile, launch: Launched | None) -> Iterator[Finding]

Nothing else has to be registered. ``bad`` must give a finding of the rule, ``good`` and every text of
``clean`` must give none: tests and the documentation take them from here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from allranks.lint.finding import WARNING, Edit, Finding, Severity
from allranks.lint.source_text import Span


@dataclass(frozen=True)
class Rule:
    """What is said about a rule once."""

    id: str
    name: str
    """A few words joined by dashes, for people who read a list."""
    title: str
    why: str
    """What happens, and when: two or three sentences."""
    bad: str
    good: str
    severity: Severity = WARNING
    """The most severe that its findings get."""
    symptoms: tuple[str, ...] = ()
    """What a user sees, for the index: "hangs at init"."""
    clean: tuple[str, ...] = ()
    """Further texts that must stay clean."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Files that lie beside ``bad``."""
    good_files: Mapping[str, str] = field(default_factory=dict)
    """Files that lie beside ``good``."""
    example: str = "job.sh"
    """The name of the file that ``bad`` and ``good`` are; its ending says what is checked."""

    def at(
        self,
        span: Span,
        message: str,
        *,
        help: str = "",  # noqa: A002
        fix: Sequence[Edit] = (),
        severity: Severity | None = None,
        related: Sequence[Span] = (),
    ) -> Finding:
        """A finding of this rule at a place."""
        return Finding(
            self.id, severity or self.severity, self.title, message, span, self.why, help,
            tuple(fix), tuple(related),
        )  # fmt: skip


def example(body: str, *directives: str, shebang: str = "#!/bin/bash") -> str:
    """A job script for an example: the directives without their ``#SBATCH``, then the commands."""
    lines = [shebang, *(f"#SBATCH {each}" for each in directives), body.strip("\n")]
    return "\n".join(lines) + "\n"
