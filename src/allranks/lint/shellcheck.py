"""shellcheck's findings beside ours, where it is installed: it knows the shell, we know the job."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Any

from allranks.lint.finding import NOTE, WARNING, Finding, Severity
from allranks.lint.source_text import SourceFile

_SECONDS = 20
# Matters of taste in job scripts, or said by rules of ours: quoting of plain variables, files that are
# elsewhere, variables that Slurm sets, unused ones that a training reads.
_LEFT_OUT = (
    "1090", "1091", "2086", "2154", "2034", "2164", "2155", "2046", "2206", "2207", "2006", "1017",
    "2128", "2148", "2043", "2153", "2004", "2016", "2129", "2068", "1128", "2054", "2124", "2089", "2090",
)  # fmt: skip
_LEVELS: dict[str, Severity] = {"error": WARNING, "warning": NOTE, "info": NOTE, "style": NOTE}


def shellcheck(source: SourceFile) -> Iterator[Finding]:
    """What shellcheck says of a script; nothing where it is not installed or does not answer."""
    command = [
        "shellcheck", "--format=json", "--severity=warning", f"--exclude={','.join(_LEFT_OUT)}",
    ]  # fmt: skip
    if not source.text.startswith("#!"):
        command.append("--shell=bash")
    try:
        done = subprocess.run(
            [*command, "-"],
            input=source.text,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
        records = json.loads(done.stdout or "[]")
    except (OSError, subprocess.SubprocessError, ValueError):
        return
    yield from (_finding(source, each) for each in records if isinstance(each, dict))


def _finding(source: SourceFile, record: dict[str, Any]) -> Finding:
    code = int(record.get("code", 0))
    start = source.start_of(int(record.get("line", 1))) + int(record.get("column", 1)) - 1
    end = source.start_of(int(record.get("endLine", 1))) + int(record.get("endColumn", 1)) - 1
    severity = _LEVELS.get(str(record.get("level")), NOTE)
    return Finding(
        f"SC{code}", severity, "shellcheck", str(record.get("message", "")),
        source.span(min(start, len(source.text)), min(max(start, end), len(source.text))),
        help=f"See https://www.shellcheck.net/wiki/SC{code}",
    )  # fmt: skip
