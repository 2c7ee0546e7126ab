"""DeepSpeed's settings that only DeepSpeed can read."""

from __future__ import annotations

from collections.abc import Iterator

from allranks.lint.config_file import ConfigFile
from allranks.lint.finding import WARNING, Edit, Finding
from allranks.lint.related_files import Launched
from allranks.lint.rule import Rule

RULE = Rule(
    id="AR701",
    name="not-json",
    title="The settings file is not JSON",
    why="""DeepSpeed reads its file with a tolerant reader (Hjson), which takes comments and a comma before a
    closing bracket. transformers, accelerate, jq and every other tool do not, and stop at that place.""",
    symptoms=("JSONDecodeError: Expecting property name enclosed in double quotes",),
    bad='{\n  "train_batch_size": 32,\n  "zero_optimization": {\n    "stage": 1,\n  }\n}\n',
    good='{\n  "train_batch_size": 32,\n  "zero_optimization": {\n    "stage": 1\n  }\n}\n',
    clean=('{"name": "not DeepSpeed",}\n',),
    example="ds_config.json",
)


def check_config(file: ConfigFile, launch: Launched | None) -> Iterator[Finding]:
    """Corrections that the reader had to make, and what it could not read."""
    if file.failure is not None and (file.named or "train_" in file.source.text):
        place = file.line_span(file.failure.line)
        yield RULE.at(place, f"This is not JSON: {file.failure.why}.", help="Correct the line.")
    if file.settings is None:
        return
    for each in file.corrections[:1]:
        more = len(file.corrections) - 1
        yield RULE.at(
            file.line_span(each.line),
            f"There is {each.what}; DeepSpeed takes it, other tools stop here."
            + (f" {more} more of this kind follow." if more else ""),
            help="Write strict JSON.",
            fix=_fix(file),
            severity=WARNING,
        )


def _fix(file: ConfigFile) -> list[Edit]:
    from allranks.core.lenient_json import strict_text

    text = file.source.text
    strict, _ = strict_text(text)
    if len(strict) != len(text):
        return []
    edits = []
    at = 0
    while at < len(text):
        if text[at] == strict[at]:
            at += 1
            continue
        end = at
        while end < len(text) and text[end] != strict[end]:
            end += 1
        edits.append(Edit(file.source.span(at, end), strict[at:end].strip(" ")))
        at = end
    return edits
