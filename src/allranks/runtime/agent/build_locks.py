"""Remove locks that a killed build of DeepSpeed's C++ extensions has left behind.

torch builds extensions at their first use, below ``torch_extensions``. A file named ``lock`` makes
other processes wait meanwhile, without a limit and without a message; a killed build leaves it for ever.
The builder has the file open, so a lock that no process has open is stale, as far as all processes are
visible from here: another machine or container may share the folder.
"""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from allranks.core.formatting import span

_OLD = 3600.0
"""Seconds after which no build is still running, wherever it was started."""
_SHARED = ("nfs", "lustre", "gpfs", "beegfs", "ceph", "cifs", "fuse", "9p", "afs", "pvfs", "wekafs")
_FIRST_NAMESPACE = 0xEFFFFFFC
"""The inode of the pid namespace that contains all processes of a machine."""
PAUSE_SECONDS = 0.3
"""A builder that is done closes the lock just before it removes it."""


def check_build_locks(command: Sequence[str], env: Mapping[str, str]) -> None:
    """Call `remove_stale_locks` for a job that uses DeepSpeed."""
    if _uses_deepspeed(command):
        remove_stale_locks(env)


def remove_stale_locks(env: Mapping[str, str]) -> None:
    """Remove stale locks; where that is not certain, print how to."""
    locks = [lock for lock in _locks(_root(env)) if not _is_open(lock)]
    if not locks:
        return
    time.sleep(PAUSE_SECONDS)
    for lock in locks:
        _remove_or_report(lock)


def _remove_or_report(lock: Path) -> None:
    about = _lock_stat(lock)
    if about is None or _is_open(lock):
        return
    age = time.time() - about.st_mtime
    if about.st_uid == os.getuid() and (age > _OLD or _sees_all_processes(lock)):
        lock.unlink(missing_ok=True)
        _report(f"removed {lock}, left by a killed build {_ago(age)}; the extension is built again")
        return
    _report(
        f"{lock} was left {_ago(age)} by a build that no process here runs. "
        "Unless another machine runs it, DeepSpeed waits for ever.\n"
        f"Then type: rm {lock}"
    )


def _uses_deepspeed(command: Sequence[str]) -> bool:
    if any(word.startswith("--deepspeed") for word in command):
        return True
    script = next((Path(word) for word in command if word.endswith(".py")), None)
    try:
        return script is not None and b"deepspeed" in script.read_bytes()
    except OSError:
        return False  # python itself reports it


def _root(env: Mapping[str, str]) -> Path:
    cache = env.get("XDG_CACHE_HOME") or "~/.cache"
    root = env.get("TORCH_EXTENSIONS_DIR") or f"{cache}/torch_extensions"
    return Path(os.path.expanduser(root))  # noqa: PTH111 - Path's own raises without a home


def _locks(root: Path) -> Iterator[Path]:
    """Yield the locks; torch's own folder has one more level for the version: py311_cu128."""
    for pattern in ("*/lock", "*/*/lock"):
        yield from root.glob(pattern)


def _lock_stat(lock: Path) -> os.stat_result | None:
    try:
        about = lock.stat()
    except OSError:
        return None
    # torch's lock is an empty file; anything else of that name is not ours to remove
    return about if stat.S_ISREG(about.st_mode) and about.st_size == 0 else None


def _is_open(lock: Path) -> bool:
    """Return whether a process that is visible from here has the file open."""
    about = _lock_stat(lock)
    if about is None:
        return True  # removed meanwhile, or no lock: nothing to do
    mine = (about.st_dev, about.st_ino)
    return any(mine == found for found in _open_files())


def _open_files() -> Iterator[tuple[int, int]]:
    """Yield device and inode of each lock file that is open in a process of this user."""
    for folder in Path("/proc").glob("[0-9]*/fd"):
        try:
            links = list(os.scandir(folder))
        except OSError:
            continue  # another user's, or ended meanwhile
        for link in links:
            try:
                if "lock" in os.readlink(link.path):  # noqa: PTH115 - the text, not a path
                    about = link.stat()
                    yield about.st_dev, about.st_ino
            except OSError:
                continue  # closed meanwhile


def _sees_all_processes(lock: Path) -> bool:
    """Return whether every process that might hold the lock is visible from here."""
    try:
        if Path("/proc/self/ns/pid").stat().st_ino != _FIRST_NAMESPACE:
            return False
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
        device = lock.stat().st_dev
    except OSError:
        return False
    number = f"{os.major(device)}:{os.minor(device)}"
    kinds = [line.partition(" - ")[2].split()[0] for line in mounts if line.split()[2] == number]
    return bool(kinds) and not any(kind.startswith(_SHARED) for kind in kinds)


def _ago(seconds: float) -> str:
    return "just now" if seconds < 60 else f"{span(seconds)} ago"


def _report(text: str) -> None:
    print(f"allranks: {text}", file=sys.stderr, flush=True)
