"""Parsers of field values: from an option's text, a TOML value or a Python value."""

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
    """Parse one line of text; a line break would end a directive."""
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if not isinstance(value, (str, int, float)) or isinstance(value, bool):
        raise UsageError(f"{value!r} is not text.")
    result = str(value)
    if any(character in result for character in "\n\r\0"):
        raise UsageError(f"{result!r} contains a line break, which #SBATCH lines cannot.")
    return result


def count(value: Any) -> int:
    """Parse a whole number of at least 1."""
    try:
        number = int(str(value))
    except ValueError:
        number = 0
    if number < 1 or isinstance(value, bool):
        raise UsageError(f"'{value}' is not a number of at least 1.")
    return number


def whole(value: Any) -> int:
    """Parse a whole number of at least 0."""
    if str(value) == "0" and not isinstance(value, bool):
        return 0
    try:
        return count(value)
    except UsageError:
        raise UsageError(f"'{value}' is not a whole number of at least 0.") from None


def port(value: Any) -> int:
    """Parse a TCP port that an ordinary user may bind."""
    number = count(value)
    if not 1024 <= number <= 65535:
        raise UsageError(f"{number} is not a port from 1024 to 65535.")
    return number


def switch(value: Any) -> bool:
    """Parse true or false."""
    if isinstance(value, bool):
        return value
    words = {"true": True, "yes": True, "on": True, "1": True}
    words |= {"false": False, "no": False, "off": False, "0": False}
    try:
        return words[str(value).lower()]
    except KeyError:
        raise UsageError(f"'{value}' is neither true nor false.") from None


def one_of(*choices: str) -> Parser:
    """Return a parser of one of these words."""

    def parse(value: Any) -> str:
        if value in choices:
            return str(value)
        raise UsageError(f"'{value}' is not one of: {', '.join(choices)}.")

    return parse


def signal(value: Any) -> str:
    """Parse sbatch's --signal; it is also part of a trap, so nothing else is allowed."""
    if not _SIGNAL.fullmatch(str(value)):
        raise UsageError(f"'{value}' is not a signal and a time. Write USR1@120, or B:USR1@120.")
    return str(value)


def binding(value: Any) -> str:
    """Parse ``auto``, ``none`` or one list of CPUs per local rank."""
    if value in ("auto", "none") or all(_CPUS.fullmatch(cpus) for cpus in str(value).split(";")):
        return str(value)
    raise UsageError(f"'{value}' is not a binding. Write auto, none or CPUs per rank: '0-7;8-15'.")


def texts(value: Any) -> tuple[str, ...]:
    """Parse one text or a list of texts."""
    if isinstance(value, (str, int, float, os.PathLike)):
        value = [value]
    if not isinstance(value, Iterable) or isinstance(value, Mapping):
        raise UsageError(f"{value!r} is not a list of texts.")
    return tuple(text(item) for item in value)


def commands(value: Any) -> tuple[str, ...]:
    """Parse shell commands; only these may contain line breaks."""
    items = [value] if isinstance(value, str) else list(value)
    if not all(isinstance(item, str) and "\0" not in item for item in items):
        raise UsageError(f"{value!r} is not a list of shell commands.")
    return tuple(items)


def pairs(value: Any) -> dict[str, str]:
    """Parse ``key=value`` texts, or a table."""
    if isinstance(value, Mapping):
        return {text(key): _value(item) for key, item in value.items()}
    result: dict[str, str] = {}
    for item in [value] if isinstance(value, str) else list(value):
        key, equals, rest = text(item).partition("=")
        if not key or not equals:
            raise UsageError(f"'{item}' does not have the form KEY=VALUE.")
        result[key] = rest
    return result


def words(value: Any) -> tuple[str, ...]:
    """Parse the script's arguments, which may contain anything but NUL."""
    if isinstance(value, str):
        raise UsageError(
            f"The arguments {value!r} are one string. Write a list with one string per argument."
        )
    result = tuple(str(item) for item in value)
    if any("\0" in item for item in result):
        raise UsageError("An argument of the script contains a NUL byte.")
    return result


def _value(item: Any) -> str:
    return "" if item is True else text(item)


def variables(value: Any) -> dict[str, str]:
    """Parse environment variables; values may contain anything but NUL."""
    if isinstance(value, Mapping):
        result = {str(key): str(item) for key, item in value.items()}
    else:
        items = [value] if isinstance(value, str) else list(value)
        if bad := [item for item in items if "=" not in item]:
            raise UsageError(f"'{bad[0]}' does not have the form NAME=VALUE.")
        result = dict(item.split("=", 1) for item in items)
    for name, item in result.items():
        if not _VARIABLE.fullmatch(name):
            raise UsageError(f"'{name}' is not a valid name of an environment variable.")
        if "\0" in item:
            raise UsageError(f"The value of {name} contains a NUL byte.")
    return result


def directives(value: Any) -> dict[str, str]:
    """Parse sbatch options by their long names; one without a value is a flag."""
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
