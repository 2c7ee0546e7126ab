"""Can this process be started a second time, and by which command line?"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path


def _here() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:  # the folder was removed under us
        return Path("/")


_FOLDER = _here()
"""Where Python was started, as long as the script imports us before it changes the folder."""


def relaunch_command() -> tuple[list[str], Path]:
    """The words that started this process, and the folder it was started in."""
    return [sys.executable, *sys.orig_argv[1:]], _FOLDER


def relaunch_obstacle() -> str:
    """Why the command line cannot be run a second time; empty when it can."""
    reasons: dict[str, Callable[[], object]] = {
        "it is a notebook": _is_notebook,
        "it is interactive": lambda: hasattr(sys, "ps1") or sys.flags.inspect,
        "its script was typed or came through a pipe": lambda: not names_a_program(sys.orig_argv),
        # The test process itself, not a script that a test started.
        "it runs pytest": lambda: "_pytest" in sys.modules and "PYTEST_CURRENT_TEST" in os.environ,
        "it was started by multiprocessing": _is_worker,
        # Linux ends the ranks with the thread that started them, so it must be the one that stays.
        "this is not its main thread": lambda: (
            threading.current_thread() is not threading.main_thread()
        ),
    }
    return next((reason for reason, holds in reasons.items() if holds()), "")


def names_a_program(words: list[str]) -> bool:
    """Whether Python's command line has a script, ``-m module`` or ``-c code``."""
    rest = iter(words[1:])
    for word in rest:
        if word == "-":
            return False
        if not word.startswith("-"):
            return True
        if word.startswith("--"):
            next(rest, "")  # the one long option that runs a program: --check-hash-based-pycs HOW
            continue
        letters = word[1:]
        value = min((letters.find(each) for each in "WX" if each in letters), default=len(letters))
        if any(each in letters[:value] for each in "cm"):
            return True
        if value == len(letters) - 1:
            next(rest, "")  # -W and -X take the next word, unless theirs is attached
    return False


def _is_notebook() -> bool:
    ask = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return "ipykernel_launcher" in sys.orig_argv[:4] or bool(ask and ask() is not None)


def _is_worker() -> bool:
    ask = getattr(sys.modules.get("multiprocessing.process"), "parent_process", None)
    return bool(ask and ask() is not None)
