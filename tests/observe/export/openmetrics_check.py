"""A strict reader of OpenMetrics 1.0 and of the classic format: it raises at the first wrong line."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_SAMPLE = re.compile(r"^(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(?P<labels>.*)\})? (?P<value>\S+)$")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\[\\"n])*)"')
_SUFFIXES = {"gauge": "", "counter": "_total", "info": "_info"}


@dataclass
class Family:
    """One name with all that is said of it."""

    name: str
    kind: str = ""
    unit: str = ""
    help: str = ""
    samples: dict[tuple[str, tuple[tuple[str, str], ...]], float] = field(default_factory=dict)


def read(text: str, classic: bool = False) -> dict[str, Family]:
    """The families in the text."""
    assert text.endswith("\n")
    lines = text.removesuffix("\n").split("\n")
    if not classic:
        assert lines.pop() == "# EOF"
    families: dict[str, Family] = {}
    for line in lines:
        assert line, "no empty lines"
        if line.startswith("#"):
            _meta(line, families, classic)
        else:
            _sample(line, list(families.values())[-1], classic)
    assert all(family.samples for family in families.values())
    return families


def _meta(line: str, families: dict[str, Family], classic: bool) -> None:
    sign, word, name, rest = line.split(" ", 3)
    assert sign == "#"
    assert _NAME.fullmatch(name)
    if word == "TYPE":
        assert name not in families, f"{name} comes twice"
        assert rest in (("gauge", "counter") if classic else _SUFFIXES)
        families[name] = Family(name, rest)
        return
    family = list(families.values())[-1]
    assert family.name == name, "all of a family stands together"
    assert not family.samples, "before its samples"
    if word == "UNIT":
        assert not classic
        assert not family.unit
        assert name.endswith(f"_{rest}")
        assert family.kind != "info"
        family.unit = rest
    else:
        assert word == "HELP"
        assert not family.help
        family.help = rest


def _sample(line: str, family: Family, classic: bool) -> None:
    match = _SAMPLE.match(line)
    assert match, line
    assert match["name"] == family.name + ("" if classic else _SUFFIXES[family.kind])
    if classic and family.kind == "counter":
        assert family.name.endswith("_total")
    labels = _labels(match["labels"] or "")
    key = (match["name"], tuple(sorted(labels.items())))
    assert key not in family.samples, f"twice: {line}"
    family.samples[key] = float(match["value"])


def _labels(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    rest = text
    while rest:
        match = _LABEL.match(rest)
        assert match, f"not a label: {rest}"
        assert match[1] not in found
        assert not match[1].startswith("__")
        found[match[1]] = re.sub(
            r"\\(.)", lambda each: "\n" if each[1] == "n" else each[1], match[2]
        )
        rest = rest[match.end() :]
        assert not rest or rest.startswith(",")
        rest = rest[1:]
    return found
