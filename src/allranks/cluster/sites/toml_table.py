"""Read a TOML table, with errors that name the file, the table and the key."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from allranks.core.units import parse_memory, parse_time
from allranks.errors import SiteError, UsageError, nearest

T = TypeVar("T")

_WORDS = {
    str: "a string", bool: "true or false", int: "an integer", list: "a list", dict: "a table",
    float: "a number",
}  # fmt: skip


class TomlTable:
    """One table of a file. ``check_unknown()`` refuses the keys that were not read."""

    def __init__(self, data: object, file: str, where: str) -> None:
        self.file, self.where = file, where
        if not isinstance(data, dict):
            raise self.error(f"must be a table, not {_kind(data)}.")
        self._data: dict[str, object] = data
        self._known: list[str] = []

    def error(self, text: str) -> SiteError:
        """Return an error at this table."""
        return SiteError(f"{self.file}: {self.where} {text}")

    def get(self, key: str) -> object:
        """Return the raw value, None when absent."""
        self._known.append(key)
        return self._data.get(key)

    def _typed(self, key: str, kind: type[T], example: str) -> T | None:
        value = self.get(key)
        # bool is an int in Python, never in TOML.
        right = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
        if value is None or right:
            return value  # type: ignore[return-value]
        raise self.error(f"{key} must be {_WORDS[kind]}, not {_kind(value)}. Write {example}.")

    def string(self, key: str) -> str | None:
        """Return a string."""
        return self._typed(key, str, f'{key} = "…"')

    def boolean(self, key: str) -> bool | None:
        """Return a boolean."""
        return self._typed(key, bool, f"{key} = true")

    def integer(self, key: str, least: int = 0) -> int | None:
        """Return an integer."""
        value = self._typed(key, int, f"{key} = 4")
        if value is not None and value < least:
            raise self.error(f"{key} must be {least} or more, not {value}.")
        return value

    def choice(self, key: str, allowed: Iterable[T]) -> T | None:
        """Return one of the allowed strings."""
        value, allowed = self.string(key), tuple(allowed)
        if value is None or value in allowed:
            return value
        words = ", ".join(f'"{each}"' for each in allowed)
        raise self.error(f'{key} must be one of {words}, not "{value}".')

    def strings(self, key: str) -> tuple[str, ...]:
        """Return a list of strings."""
        values = self._typed(key, list, f'{key} = ["…"]') or []
        for value in values:
            if not isinstance(value, str):
                raise self.error(f"{key} must hold strings, not {_kind(value)}.")
        return tuple(values)

    def time(self, key: str) -> int | None:
        """Return seconds, from ``"2d"`` or ``"1-12:00:00"``."""
        return self._measured(key, self._typed(key, str, f'{key} = "2d"'), parse_time)

    def memory(self, key: str) -> int | None:
        """Return MiB, from ``"480G"`` or a number of MiB."""
        value = self.get(key)
        if isinstance(value, int) and not isinstance(value, bool):
            return self.integer(key)
        return self._measured(key, self._typed(key, str, f'{key} = "480G"'), parse_memory)

    def _measured(self, key: str, text: str | None, parse: Callable[[str], int]) -> int | None:
        try:
            return None if text is None else parse(text)
        except UsageError as error:
            raise self.error(f"{key}: {error}") from None

    def table(self, key: str) -> TomlTable:
        """Return a table below this one; empty when absent."""
        value = self.get(key)
        above = self.where[1:-1] + "." if self.where.startswith("[") else ""
        return TomlTable({} if value is None else value, self.file, f"[{above}{key}]")

    def tables(self, key: str) -> list[TomlTable]:
        """Return a list of tables, named by number until they are read."""
        values = self._typed(key, list, f"[[{key}]]") or []
        return [
            TomlTable(each, self.file, f"[[{key}]] {number}")
            for number, each in enumerate(values, 1)
        ]

    def unchecked(self, key: str) -> Mapping[str, object]:
        """Return a table whose keys are not checked here."""
        return self._typed(key, dict, f"[{key}]") or {}

    def check_unknown(self) -> None:
        """Refuse the first key that was not read."""
        for key in self._data:
            if key not in self._known:
                close = nearest(key, self._known)
                hint = f"Did you mean '{close}'?" if close else f"Known: {', '.join(self._known)}."
                raise self.error(f"has an unknown key '{key}'.\n{hint}")

    def keys(self) -> tuple[str, ...]:
        """Return the keys."""
        return tuple(self._data)


def _kind(value: object) -> str:
    return _WORDS.get(type(value), type(value).__name__)
