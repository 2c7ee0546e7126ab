"""Every rule by its own examples: the bad one gives a finding, the good and clean ones give none."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from allranks.cluster.sites import load_site
from allranks.lint.fixes import apply_fixes
from allranks.lint.linter import BROKEN, Settings, lint
from allranks.lint.registry import Registered, all_rules
from allranks.lint.rule import Rule

RULES = [each.rule for each in all_rules()]
IDS = [rule.id for rule in RULES]


def _makes_edits(each: Registered) -> bool:
    check = each.script or each.python or each.config
    return "Edit(" in inspect.getsource(inspect.getmodule(check))  # type: ignore[arg-type]


FIXABLE = [each.rule for each in all_rules() if _makes_edits(each)]


def _found(folder: Path, rule: Rule, text: str, files: dict[str, str]) -> set[str]:
    for name, content in files.items():
        (folder / name).write_text(content)
    path = folder / rule.example
    path.write_bytes(text.encode())
    site = load_site("grete") if rule.id.startswith("AR9") else None
    report = lint([path], Settings(site=site))
    assert BROKEN not in {each.rule for each in report.findings}
    return {each.rule for each in report.findings}


@pytest.mark.parametrize("rule", RULES, ids=IDS)
def test_the_bad_example_is_found(rule: Rule, tmp_path: Path) -> None:
    assert rule.id in _found(tmp_path, rule, rule.bad, dict(rule.files))


@pytest.mark.parametrize("rule", RULES, ids=IDS)
def test_the_good_example_is_clean(rule: Rule, tmp_path: Path) -> None:
    files = {**rule.files, **rule.good_files}
    assert rule.id not in _found(tmp_path, rule, rule.good, files)


@pytest.mark.parametrize(
    ("rule", "text"),
    [(rule, text) for rule in RULES for text in rule.clean],
    ids=[f"{rule.id}-{index}" for rule in RULES for index, _ in enumerate(rule.clean)],
)
def test_a_clean_case_stays_clean(rule: Rule, text: str, tmp_path: Path) -> None:
    assert rule.id not in _found(tmp_path, rule, text, {**rule.files, **rule.good_files})


@pytest.mark.parametrize("rule", FIXABLE, ids=[rule.id for rule in FIXABLE])
def test_a_fix_removes_the_finding(rule: Rule, tmp_path: Path) -> None:
    for name, content in rule.files.items():
        (tmp_path / name).write_text(content)
    path = tmp_path / rule.example
    path.write_bytes(rule.bad.encode())
    settings = Settings(select=frozenset({rule.id}))
    report = lint([path], settings)
    assert any(each.fix for each in report.findings)
    list(apply_fixes(report, write=True))
    assert not [each for each in lint([path], settings).findings if each.fix]


@pytest.mark.parametrize("rule", RULES, ids=IDS)
def test_a_rule_is_fully_described(rule: Rule) -> None:
    assert rule.id.startswith("AR")
    assert len(rule.id) == 5
    assert rule.title
    assert not rule.title.endswith(".")
    assert len(rule.why.split()) > 12
    assert rule.name == rule.name.lower()
    assert " " not in rule.name
    assert rule.symptoms


def test_ids_and_names_are_unique() -> None:
    assert len(set(IDS)) == len(IDS)
    assert len({rule.name for rule in RULES}) == len(RULES)
