"""A command over several lines that is cut in the middle."""

from __future__ import annotations

import re
from collections.abc import Iterator

from allranks.lint.finding import ERROR, WARNING, Edit, Finding
from allranks.lint.job_script import JobScript
from allranks.lint.rule import Rule, example

RULE = Rule(
    id="AR502",
    name="broken-continuation",
    title="The command ends in the middle",
    why="""A backslash continues a line only as its very last character. With a blank or a comment behind it,
    or with a comment line between the continued lines, the command ends there: the options that follow
    are not given, and are then run as commands of their own.""",
    severity=ERROR,
    symptoms=("--nproc_per_node: command not found", "an option has no effect"),
    bad=example("srun torchrun \\\n  --nproc_per_node=4 \\ # all GPUs\n  train.py", "--nodes=1"),
    good=example("srun torchrun \\\n  --nproc_per_node=4 \\\n  train.py", "--nodes=1"),
    clean=(
        example("cat <<EOF\na \\ \nb\nEOF\nsrun python train.py", "--nodes=1"),
        example("echo 'a \\ '\necho done\nsrun python train.py a\\ b", "--nodes=1"),
    ),
)
_BLANK_AFTER = re.compile(r"(?<!\\)\\[ \t]+(?P<comment>#.*)?$")


def check(job: JobScript) -> Iterator[Finding]:
    """Lines that look continued and are not, inside commands."""
    if not job.is_shell:
        return
    yield from _backslash_word(job)
    source = job.source
    inside = _text_lines(job)
    for number in range(1, source.lines):
        line = source.line(number)
        if number in inside or line.lstrip().startswith("#"):
            continue
        start = source.start_of(number)
        following = source.line(number + 1).strip()
        match = _BLANK_AFTER.search(line)
        if match and following and not following.startswith("#") and _continues(following):
            at = start + match.start()
            yield RULE.at(
                source.span(at, start + len(line)),
                "The backslash is not the last character of the line, so the command ends here and the next "
                "line is a command of its own.",
                help="Remove what stands behind the backslash.",
                fix=[Edit(source.span(at + 1, start + len(line)), "")],
            )
        elif line.endswith("\\") and not line.endswith("\\\\") and following.startswith("#"):
            yield from _comment_between(job, number, inside)


def _backslash_word(job: JobScript) -> Iterator[Finding]:
    """In a quoted text a backslash before a blank stays, and becomes an argument of its own."""
    for launch in job.launches:
        for word in launch.call.words:
            if word.text == "\\" and word.span.text == "\\":
                yield RULE.at(
                    word.span,
                    "There is a blank behind the backslash, so it is passed on as an argument of its own.",
                    help="Remove the blanks at the end of the line.",
                    severity=ERROR if launch.certain else WARNING,
                )
                return


def _comment_between(job: JobScript, number: int, inside: set[int]) -> Iterator[Finding]:
    source = job.source
    last = number + 1
    while last < source.lines and source.line(last).strip().startswith("#"):
        last += 1
    rest = source.line(last).strip()
    if not rest or number + 1 in inside or not _continues(rest):
        return
    start = source.start_of(number + 1)
    end = source.start_of(last)
    certain = rest.startswith("-")
    yield RULE.at(
        source.span(start, start + len(source.line(number + 1))),
        f"A comment ends the command above it: line {last} is not part of it any more.",
        help="Move the comment above the whole command.",
        fix=[Edit(source.span(start, end), "")],
        severity=ERROR if certain else WARNING,
    )


def _continues(line: str) -> bool:
    """Whether a line looks like arguments, not like a command."""
    return line.startswith(("-", "$", '"', "'", "|", "&&")) or bool(
        re.match(r"^[\w./]+\.(py|sh)\b", line)
    )


def _text_lines(job: JobScript) -> set[int]:
    """Lines of here-documents and of quoted text: a backslash means something else there."""
    found: set[int] = set()
    for call in job.calls:
        for redirect in call.redirects:
            if redirect.body is not None and redirect.body.span.source is job.source:
                found |= set(range(redirect.body.span.line, redirect.body.span.last_line + 1))
        values = [item.value for item in call.assignments if item.value is not None]
        for word in (*call.words, *values):
            for part in word.parts:
                span = part.span
                if part.quote and span.source is job.source and span.last_line > span.line:
                    found |= set(range(span.line, span.last_line))
    return found
