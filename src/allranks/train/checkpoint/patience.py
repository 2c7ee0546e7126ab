"""Reading from file systems that falter. "It cannot be read now" must not be taken for "it is broken"."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from typing import TypeVar

from allranks.errors import AllranksError

_T = TypeVar("_T")
_PAUSES = (0.2, 1.0, 3.0)
"""Seconds before each further try: servers that fail over and handles that are stale come back so."""
_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP)


class Unreadable(AllranksError, OSError):
    """Something that is there and cannot be read at the moment: whether it is sound nobody knows."""


class CannotRead(str):
    """A problem that says nothing of the checkpoint itself."""

    __slots__ = ()


def patiently(read: Callable[[], _T]) -> _T:
    """What ``read`` gives; the file system is asked a few times before its OSError counts."""
    for pause in _PAUSES:
        try:
            return read()
        except OSError as error:
            if not_there(error):
                raise
            time.sleep(pause)
    return read()


def not_there(error: OSError) -> bool:
    """Whether it says that there is no such file, and not just that it cannot be read."""
    return error.errno in _NOT_THERE
