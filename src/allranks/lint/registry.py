"""All rules, found by themselves: one file each in ``rules/``."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from allranks.lint.finding import Finding
from allranks.lint.rule import Rule

Check = Callable[..., Iterator[Finding]]


@dataclass(frozen=True)
class Registered:
    """A rule with its checks."""

    rule: Rule
    script: Check | None
    python: Check | None
    config: Check | None


@lru_cache(maxsize=1)
def all_rules() -> tuple[Registered, ...]:
    """Every rule, by its id."""
    package = importlib.import_module("allranks.lint.rules")
    found = []
    for item in pkgutil.iter_modules(package.__path__):
        if not re.match(r"ar\d{3}_", item.name):
            continue
        module: Any = importlib.import_module(f"allranks.lint.rules.{item.name}")
        checks = (getattr(module, name, None) for name in ("check", "check_python", "check_config"))
        found.append(Registered(module.RULE, *checks))
    return tuple(sorted(found, key=lambda each: each.rule.id))


def rule_of(name: str) -> Rule | None:
    """The rule of an id or a name."""
    wanted = name.strip()
    for each in all_rules():
        if wanted.upper() == each.rule.id or wanted.lower() == each.rule.name:
            return each.rule
    return None
