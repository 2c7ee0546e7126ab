"""Files → findings: what each file is, which rules look at it, and what its author switched off."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from allranks.errors import UsageError, did_you_mean
from allranks.lint.finding import ERROR, NOTE, WARNING, Finding
from allranks.lint.job_script import JobScript
from allranks.lint.registry import Registered, all_rules, rule_of
from allranks.lint.source_text import SourceFile

if TYPE_CHECKING:
    from allranks.cluster.sites.model import Site

SCRIPT_ENDINGS = (".sh", ".bash", ".sbatch", ".slurm", ".job", ".sub", ".cmd", ".batch")
_IGNORE = re.compile(r"#\s*allranks:\s*ignore(?P<file>-file)?(?:\s*=\s*(?P<rules>[\w,\- ]+))?")
_MOST_BYTES = 2 << 20
BROKEN = "AR999"


@dataclass(frozen=True)
class Settings:
    """What a user chose."""

    select: frozenset[str] = frozenset()
    """Only these rules; empty: all."""
    ignore: frozenset[str] = frozenset()
    site: Site | None = None
    shellcheck: bool = False
    related: bool = True
    """Read the files that a script names: workers, Python, configurations."""

    def wants(self, rule: str) -> bool:
        """Whether findings of this rule are shown."""
        if any(rule.startswith(each) for each in self.ignore):
            return False
        return not self.select or any(rule.startswith(each) for each in self.select)


@dataclass
class LintReport:
    """What was found, and in what."""

    findings: list[Finding] = field(default_factory=list)
    sources: list[SourceFile] = field(default_factory=list)
    jobs: list[JobScript] = field(default_factory=list)


def rule_names(words: Iterable[str]) -> frozenset[str]:
    """Rule ids as people give them: ``AR012``, a name, or the beginning of ids (``AR0``)."""
    found = set()
    for word in (part.strip() for each in words for part in each.split(",")):
        if not word:
            continue
        known = rule_of(word)
        if known is not None:
            found.add(known.id)
        elif re.fullmatch(r"(AR\d{0,3}|SC\d{0,5})", word.upper()):
            found.add(word.upper())
        else:
            names = [name for each in all_rules() for name in (each.rule.id, each.rule.name)]
            raise UsageError(
                f"There is no rule '{word}'.{did_you_mean(word, names)}\n"
                "All of them: allranks lint --rules"
            )
    return frozenset(found)


def lint(paths: Sequence[Path], settings: Settings) -> LintReport:
    """Every file, and every job script in the folders."""
    report = LintReport()
    for path in _files(paths):
        lint_source(read_source(path), settings, report)
    return _sorted(report)


def lint_text(name: str, text: str, settings: Settings | None = None) -> LintReport:
    """One text, read from elsewhere."""
    report = LintReport()
    lint_source(SourceFile(name, text), settings or Settings(), report)
    return _sorted(report)


def read_source(path: Path) -> SourceFile:
    """The text of a file; bytes that are no text become question marks, not errors."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise UsageError(f"{path} is larger than 2 MB: no job script.")
        return SourceFile(str(path), path.read_bytes().decode("utf-8", "replace"), path)
    except OSError as error:
        raise UsageError(f"Cannot read {path}: {error.strerror}.") from None


def lint_source(source: SourceFile, settings: Settings, report: LintReport) -> None:
    """Adds what is found in one text."""
    report.sources.append(source)
    found: list[Finding] = []
    ending = Path(source.name).suffix.lower()
    if ending == ".py" and "#SBATCH" not in source.text[:4096]:
        found += _python(source)
    elif ending in (".json", ".yaml", ".yml"):
        found += _config(source)
    else:
        found += _script(source, settings, report)
    kept = [each for each in _known_once(found) if settings.wants(each.rule)]
    report.findings += [each for each in kept if not _switched_off(each)]


def _script(source: SourceFile, settings: Settings, report: LintReport) -> Iterator[Finding]:
    try:
        job = JobScript(source, site=settings.site)
    except Exception as error:  # noqa: BLE001
        yield _stopped("The script could not be followed", error, source)
        return
    report.jobs.append(job)
    yield from _job(job, source)
    if settings.related:
        from allranks.lint.related_files import launched_files

        try:
            files = list(launched_files(job))
        except Exception as error:  # noqa: BLE001
            yield _stopped("The files that it names could not be read", error, source)
            files = []
        for launched in files:
            if launched.python is not None:
                subject = (launched.python, launched)
                yield from _run(lambda each: each.python, subject, launched.python.source)
            for config in launched.configs:
                yield from _run(lambda each: each.config, (config, launched), config.source)
    yield from _submitted(job, settings, report)
    if settings.shellcheck:
        from allranks.lint.shellcheck import shellcheck

        yield from shellcheck(source)


def _job(job: JobScript, source: SourceFile) -> Iterator[Finding]:
    """The findings in a job; nothing is sure about its size where sbatch reads none of its directives."""
    for each in _run(lambda rule: rule.script, (job,), source):
        unsure = bool(job.directives.meant) and each.rule.startswith(("AR1", "AR2", "AR3"))
        yield replace(each, severity=WARNING) if unsure and each.severity == ERROR else each


def _submitted(job: JobScript, settings: Settings, report: LintReport) -> Iterator[Finding]:
    """The job scripts that a script writes and hands to sbatch."""
    for written, _ in job.trace.submissions[:8]:
        try:
            inner = JobScript(written, site=settings.site)
        except Exception as error:  # noqa: BLE001
            yield _stopped("A job that it submits could not be followed", error, job.source)
            continue
        if inner.is_batch:
            report.jobs.append(inner)
            yield from _job(inner, job.source)


def _python(source: SourceFile) -> Iterator[Finding]:
    from allranks.lint.python_file import PythonFile

    return _run(lambda each: each.python, (PythonFile(source), None), source)


def _config(source: SourceFile) -> Iterator[Finding]:
    from allranks.lint.config_file import ConfigFile

    return _run(lambda each: each.config, (ConfigFile(source), None), source)


def _run(
    choose: Callable[[Registered], object], subject: tuple[object, ...], source: SourceFile
) -> Iterator[Finding]:
    """Run every rule on one subject; an exception in a rule becomes a note and stops no other rule."""
    for each in all_rules():
        check = choose(each)
        if not callable(check):
            continue
        try:
            yield from list(check(*subject))
        except Exception as error:  # noqa: BLE001
            yield _stopped(f"Rule {each.rule.id} stopped at this file", error, source)


def _stopped(what: str, error: Exception, source: SourceFile) -> Finding:
    """Report an exception in a rule as a note."""
    text = f"{what} ({type(error).__name__}: {error}). Please report it, with the file."
    return Finding(BROKEN, NOTE, "allranks itself failed here", text, source.span(0, 0))


def _known_once(findings: Iterable[Finding]) -> Iterator[Finding]:
    seen: set[tuple[str, str, int, int]] = set()
    for each in findings:
        key = (each.rule, each.source.name, each.span.start, each.span.end)
        if key not in seen:
            seen.add(key)
            yield each


def _switched_off(finding: Finding) -> bool:
    source = finding.source
    if "allranks:" not in source.text:
        return False
    first, last = finding.span.line, finding.span.last_line
    begin = first  # of the command, which may go over several lines
    while begin > 1 and source.line(begin - 1).endswith("\\"):
        begin -= 1
    for number in range(1, source.lines + 1):
        match = _IGNORE.search(source.line(number))
        if match is None or not _names(match["rules"], finding.rule):
            continue
        alone = source.line(number).lstrip().startswith("# ")
        if match["file"] or number in (first, last) or (alone and number in (first - 1, begin - 1)):
            return True
    return False


def _names(rules: str | None, rule: str) -> bool:
    if rules is None:
        return True
    words = {word.strip() for word in rules.split(",")}
    known = rule_of(rule)
    return rule in {word.upper() for word in words} or (known is not None and known.name in words)


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            yield from (each for each in sorted(path.rglob("*")) if _is_job(each))
        elif path.exists():
            yield path
        else:
            raise UsageError(f"There is no file {path}.")


def _is_job(path: Path) -> bool:
    if path.suffix.lower() not in SCRIPT_ENDINGS or not path.is_file():
        return False
    if any(part.startswith(".") for part in path.parts[:-1] if part not in (".", "..")):
        return False
    try:
        return path.stat().st_size < _MOST_BYTES and b"#SBATCH" in path.read_bytes()
    except OSError:
        return False


def _sorted(report: LintReport) -> LintReport:
    order = {source.name: index for index, source in enumerate(report.sources)}
    report.findings.sort(
        key=lambda each: (
            order.get(each.source.name, len(order)), each.source.name, each.span.start, each.rule,
        )
    )  # fmt: skip
    return report
