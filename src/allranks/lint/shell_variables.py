"""Variables as they change: set, changed in one branch, unknown after a loop."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from allranks.lint.command_calls import Binding, Environment
from allranks.lint.shell.model import (
    Assignment,
    Branches,
    Chain,
    Command,
    Function,
    Group,
    Loop,
    Part,
    Pipeline,
    Statement,
    Word,
)

_MOST_CHOICES = 8
READERS = frozenset({"read", "mapfile", "readarray", "getopts", "let", "printf", "select"})


def bind(
    env: Environment,
    assignment: Assignment,
    value: tuple[Part, ...],
    array: tuple[Word, ...] | None,
    *,
    exported: bool = False,
) -> None:
    """Sets a variable."""
    old = env.get(assignment.name)
    exported = exported or (old.exported if old else False)
    if assignment.index:
        env[assignment.name] = Binding((), assignment.span, exported)
    elif array is not None:
        before = (old.array or ()) if old and assignment.append else ()
        known = not assignment.append or (old is not None and old.array is not None)
        env[assignment.name] = Binding(
            (), assignment.span, exported, (*before, *array) if known else None
        )
    elif assignment.append:
        choices = tuple((*each, *value) for each in old.choices) if old else ()
        env[assignment.name] = Binding(choices, assignment.span, exported, given=bool(choices))
    else:
        env[assignment.name] = Binding((value,), assignment.span, exported)


def merge(ways: Sequence[Environment]) -> Environment:
    """What holds after one of several ways was taken, nobody knows which."""
    merged: Environment = {}
    for name in dict.fromkeys(name for way in ways for name in way):
        found = [way[name] for way in ways if name in way]
        if all(each is found[0] for each in found) and len(found) == len(ways):
            merged[name] = found[0]
            continue
        merged[name] = _joined(found, complete=len(found) == len(ways))
    return merged


def _joined(found: list[Binding], complete: bool) -> Binding:
    choices = tuple(dict.fromkeys(choice for each in found for choice in each.choices))
    known = all(each.choices for each in found) and len(choices) <= _MOST_CHOICES
    array = found[0].array if all(each.array == found[0].array for each in found) else None
    return Binding(
        choices if known else (),
        found[-1].span,
        any(each.exported for each in found),
        array,
        given=complete and all(each.given for each in found),
    )


def forget(env: Environment, names: Iterable[str]) -> None:
    """Makes variables unknown: a loop changes them, or something is read into them."""
    for name in names:
        if name in env:
            env[name] = replace(env[name], choices=(), array=None, given=False)


def assigned(statements: Iterable[Statement]) -> Iterator[str]:
    """The names that statements may give a value."""
    for each in statements:
        if isinstance(each, Command):
            yield from (item.name for item in (*each.assignments, *each.declared))
            if each.words and (each.words[0].text in READERS or each.words[0].text == "(("):
                yield from (word.text or "" for word in each.words[1:])
        elif isinstance(each, Pipeline):
            yield from assigned(each.stages)
        elif isinstance(each, Chain):
            yield from assigned((each.left, each.right))
        elif isinstance(each, Branches):
            yield from assigned(each.conditions)
            for body in each.bodies:
                yield from assigned(body)
        elif isinstance(each, Loop):
            yield each.variable
            yield from assigned((*each.conditions, *each.body))
        elif isinstance(each, Group):
            yield from assigned(each.body)
        elif isinstance(each, Function):
            continue
