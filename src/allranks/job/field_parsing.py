"""From what users write (an option's text, a TOML value, a Python value) to a field's value."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from allranks.errors import UsageError

Parser = Callable[[Any], Any]

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DIRECTIVE = re.compile(r"[A-Za-z][A-Za-z0-9-]+")
_SIGNAL = re.compile(r"([RB]{1,2}:)?[A-Za-z0-9]+(@[0-9]+)?")
_CPUS = re.compile(r"[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*")


def text(value: Any) -> str:
    """One line of text. A line break would end a directive, so it is refused here, once."""
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if not isinstance(value, (str, int, float)) or isinstance(value, bool):
        raise UsageError(f"{value!r} is not text.")
    result = str(value)
    if any(character in result for character in "\n\r\0"):
        raise UsageError(f"{result!r} holds a line break, which Slurm's directives cannot.")
    return result


def count(value: Any) -> int:
    """A whole number of at least one."""
    try:
        number = int(str(value))
    except ValueError:
        number = 0
    if number < 1 or isinstance(value, bool):
        raise UsageError(f"'{value}' is not a number of at least 1.")
    return number


def whole(value: Any) -> int:
    """A whole number, 0 too."""
    if str(value) == "0" and not isinstance(value, bool):
        return 0
    try:
        return count(value)
    except UsageError:
        raise UsageError(f"'{value}' is not a whole number of at least 0.") from None


def port(value: Any) -> int:
    """A TCP port that an ordinary user may bind."""
    number = count(value)
    if not 1024 <= number <= 65535:
        raise UsageError(f"{number} is not a port from 1024 to 65535.")
    return number


def switch(value: Any) -> bool:
    """True or false."""
    if isinstance(value, bool):
        return value
    words = {"true": True, "yes": True, "on": True, "1": True}
    words |= {"false": False, "no": False, "off": False, "0": False}
    try:
        return words[str(value).lower()]
    except KeyError:
        raise UsageError(f"'{value}' is neither true nor false.") from None


def one_of(*choices: str) -> Parser:
    """One of a few words."""

    def parse(value: Any) -> str:
        if value in choices:
            return str(value)
        raise UsageError(f"'{value}' is none of: {', '.join(choices)}.")

    return parse


def signal(value: Any) -> str:
    """Slurm's words for a signal before the end. It also stands in a trap, so nothing else may."""
    if not _SIGNAL.fullmatch(str(value)):
        raise UsageError(f"'{value}' is not a signal and a time. Write USR1@120, or B:USR1@120.")
    return str(value)


def binding(value: Any) -> str:
    """``auto``, ``none`` or one list of CPUs per local rank."""
    if value in ("auto", "none") or all(_CPUS.fullmatch(cpus) for cpus in str(value).split(";")):
        return str(value)
    raise UsageError(f"'{value}' is not a binding. Write auto, none or CPUs per rank: '0-7;8-15'.")


def texts(value: Any) -> tuple[str, ...]:
    """Several texts: a list, or one alone."""
    if isinstance(value, (str, int, float, os.PathLike)):
        value = [value]
    if not isinstance(value, Iterable) or isinstance(value, Mapping):
        raise UsageError(f"{value!r} is not a list of texts.")
    return tuple(text(item) for item in value)


def commands(value: Any) -> tuple[str, ...]:
    """Shell lines that the user wrote as such; these alone may hold line breaks."""
    items = [value] if isinstance(value, str) else list(value)
    if not all(isinstance(item, str) and "\0" not in item for item in items):
        raise UsageError(f"{value!r} is not a list of shell lines.")
    return tuple(items)


def pairs(value: Any) -> dict[str, str]:
    """``key=value`` texts, or a table."""
    if isinstance(value, Mapping):
        return {text(key): _value(item) for key, item in value.items()}
    result: dict[str, str] = {}
    for item in [value] if isinstance(value, str) else list(value):
        key, equals, rest = text(item).partition("=")
        if not key or not equals:
            raise UsageError(f"'{item}' is not of the form KEY=VALUE.")
        result[key] = rest
    return result


def words(value: Any) -> tuple[str, ...]:
    """The script's own arguments, which may hold anything but NUL."""
    if isinstance(value, str):
        raise UsageError(
            f"The arguments {value!r} are one text. Write a list, a text for each word."
        )
    result = tuple(str(item) for item in value)
    if any("\0" in item for item in result):
        raise UsageError("An argument of the script holds a NUL byte.")
    return result


def _value(item: Any) -> str:
    return "" if item is True else text(item)


def variables(value: Any) -> dict[str, str]:
    """Environment variables. Values may hold anything but NUL."""
    if isinstance(value, Mapping):
        result = {str(key): str(item) for key, item in value.items()}
    else:
        items = [value] if isinstance(value, str) else list(value)
        if bad := [item for item in items if "=" not in item]:
            raise UsageError(f"'{bad[0]}' is not of the form NAME=VALUE.")
        result = dict(item.split("=", 1) for item in items)
    for name, item in result.items():
        if not _VARIABLE.fullmatch(name):
            raise UsageError(f"'{name}' cannot be the name of an environment variable.")
        if "\0" in item:
            raise UsageError(f"The value of {name} holds a NUL byte.")
    return result


def directives(value: Any) -> dict[str, str]:
    """Options for sbatch under their long names. ``exclusive`` alone is a flag."""
    if not isinstance(value, Mapping):
        items = [value] if isinstance(value, str) else list(value)
        value = dict(text(item).lstrip("-").partition("=")[::2] for item in items)
    result = {}
    for key, item in value.items():
        name = str(key).lstrip("-").replace("_", "-")
        if not _DIRECTIVE.fullmatch(name):
            raise UsageError(f"'{key}' is not the long name of an sbatch option.")
        result[name] = _value(item)
    return result
