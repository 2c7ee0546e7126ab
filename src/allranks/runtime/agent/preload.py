"""Import what the ranks share before they are forked, and check that forking is safe.

Importing torch takes a second or more of one core, and on a cluster thousands of file opens per
rank on a shared file system. Forked ranks pay it once per node.

No thread may run when we fork: the locks it holds stay taken in the child for ever. Two findings
with torch 2.13 and numpy 2 decide how that is checked:

* importing them starts no thread but OpenBLAS's (one less than OMP_NUM_THREADS), and OpenBLAS ends
  those itself in a pthread_atfork handler and starts them again on its next call. So a thread that
  is gone after a trial fork was a harmless one.
* libgomp reads OMP_NUM_THREADS when it is loaded, so the caller sets it before it comes here.

Nothing here touches CUDA: a CUDA context does not survive a fork, but ``import torch`` creates
none.
"""

from __future__ import annotations

import gc
import importlib
import os
import re
import sys
import threading
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

_PYTHON = re.compile(r"^python(\d+(\.\d+)?)?$")


def python_part(command: Sequence[str]) -> list[str] | None:
    """Return ``script.py …`` or ``-m module …`` of a command that Python runs; None for any other."""
    words = list(command)
    if words and _is_interpreter(words[0]):
        words = words[1:]
        while words and words[0] == "-u":
            words = words[1:]
    if len(words) > 1 and words[0] == "-m":
        return words
    return words if words and _is_script(Path(words[0])) else None


def whole_command(command: Sequence[str]) -> list[str]:
    """Return the command line that does in a new process what a forked rank would do."""
    if command[0] == "-m" or (_is_script(Path(command[0])) and not _is_interpreter(command[0])):
        return [sys.executable, *command]
    return list(command)


def prepare(command: Sequence[str], modules: Sequence[str], env: Mapping[str, str]) -> str | None:
    """Import the modules; returns None when the ranks can be forked now, else why they cannot."""
    if env.get("ALLRANKS_FORK") == "0":
        return "ALLRANKS_FORK=0"
    if python_part(command) is None:
        return f"{command[0]} is not a Python script"
    # Imports leave little garbage: collecting it would take a tenth of the time.
    for module in modules:
        gc.disable()
        try:
            importlib.import_module(module)
        except Exception as error:  # noqa: BLE001 - exec will show it properly
            return f"{module} cannot be imported here ({type(error).__name__})"
        finally:
            gc.enable()
    if problem := _threads(modules):
        return problem
    # Without this the first collection in each rank would copy every page that holds an object.
    gc.freeze()
    return None


def _threads(modules: Sequence[str]) -> str | None:
    source = ", ".join(modules) or "the interpreter"
    if threading.active_count() > 1:
        return f"{source} left a Python thread running"
    if tasks() > 1:
        _trial_fork()
    return f"{source} left a thread running" if tasks() > 1 else None


def tasks() -> int:
    """Return the number of threads of this process, those of C libraries included."""
    return len(list(os.scandir("/proc/self/task")))


def _trial_fork() -> None:
    with warnings.catch_warnings():
        # Python 3.12 warns of a fork with threads; whether they matter is what this fork tests.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def _is_interpreter(word: str) -> bool:
    # Another interpreter would have other packages than this process: only our own may be replaced.
    if word == sys.executable:
        return True
    return (
        "/" not in word
        and bool(_PYTHON.match(word))
        and _which(word) == os.path.realpath(sys.executable)
    )


def _which(word: str) -> str:
    import shutil

    return os.path.realpath(shutil.which(word) or "")


def _is_script(path: Path) -> bool:
    if path.suffix in (".py", ".pyw"):
        return True
    try:
        with path.open("rb") as file:
            first = file.readline(200)
    except OSError:
        return False
    return first.startswith(b"#!") and b"python" in first
