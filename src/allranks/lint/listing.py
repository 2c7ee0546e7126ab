"""The rules as a list, and one rule as a page."""

from __future__ import annotations

import textwrap

from allranks.lint.engine import Settings
from allranks.lint.registry import all_rules
from allranks.lint.rule import Rule


def list_rules(settings: Settings) -> str:
    """A line for each rule; whole pages for the rules that are selected."""
    chosen = [each.rule for each in all_rules() if settings.wants(each.rule.id)]
    if settings.select:
        return "\n\n".join(_page(rule) for rule in chosen)
    return "\n".join(f"{rule.id}  {rule.severity.word:<8} {rule.title}" for rule in chosen)


def _page(rule: Rule) -> str:
    why = "\n".join(textwrap.wrap(" ".join(rule.why.split()), 80))
    bad = textwrap.indent(rule.bad.strip(), "    ")
    good = textwrap.indent(rule.good.strip(), "    ")
    return f"{rule.id} {rule.name} ({rule.severity.word})\n{rule.title}\n\n{why}\n\nBad:\n{bad}\n\nGood:\n{good}"
