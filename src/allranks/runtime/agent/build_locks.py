"""Locks that a killed build of DeepSpeed's C++ parts has left behind.

torch builds them at their first use, below ``torch_extensions``. A file named ``lock`` keeps others
waiting meanwhile, without a limit and without a word; a build that was killed leaves it for ever.
Who builds has the file open, so a lock that no process has open is a dead one, as far as all
processes can be seen from here: another machine may share the folder, or another container.
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
"""The number of the process namespace that sees all processes of a machine."""
_PAUSE = 0.3
"""A builder that has done closes the lock just before it removes it."""


def check_build_locks(command: Sequence[str], env: Mapping[str, str]) -> None:
    """`settle_build_locks` for a job that uses DeepSpeed."""
    if _uses_deepspeed(command):
        settle_build_locks(env)


def settle_build_locks(env: Mapping[str, str]) -> None:
    """Remove dead locks, or say how to where that is not sure."""
    locks = [lock for lock in _locks(_root(env)) if not _held(lock)]
    if not locks:
        return
    time.sleep(_PAUSE)
    for lock in locks:
        _settle(lock)


def _settle(lock: Path) -> None:
    about = _about(lock)
    if about is None or _held(lock):
        return
    age = time.time() - about.st_mtime
    if about.st_uid == os.getuid() and (age > _OLD or _sees_all(lock)):
        lock.unlink(missing_ok=True)
        _say(f"removed {lock}, which a killed build had left {_ago(age)}; it is built again")
        return
    _say(
        f"{lock} was left {_ago(age)} by a build that no process here is doing. "
        "Unless another machine is doing it, DeepSpeed waits for it for ever.\n"
        f"Then type: rm {lock}"
    )


def _uses_deepspeed(command: Sequence[str]) -> bool:
    if any(word.startswith("--deepspeed") for word in command):
        return True
    script = next((Path(word) for word in command if word.endswith(".py")), None)
    try:
        return script is not None and b"deepspeed" in script.read_bytes()
    except OSError:
        return False  # python itself will say so


def _root(env: Mapping[str, str]) -> Path:
    cache = env.get("XDG_CACHE_HOME") or "~/.cache"
    root = env.get("TORCH_EXTENSIONS_DIR") or f"{cache}/torch_extensions"
    return Path(os.path.expanduser(root))  # noqa: PTH111 - Path's own raises without a home


def _locks(root: Path) -> Iterator[Path]:
    """With torch's own folder there is one more level, for the version: py311_cu128."""
    for pattern in ("*/lock", "*/*/lock"):
        yield from root.glob(pattern)


def _about(lock: Path) -> os.stat_result | None:
    try:
        about = lock.stat()
    except OSError:
        return None
    # torch's lock is an empty file; anything else of that name is not for us to touch
    return about if stat.S_ISREG(about.st_mode) and about.st_size == 0 else None


def _held(lock: Path) -> bool:
    """Whether a process that can be seen from here has it open."""
    about = _about(lock)
    if about is None:
        return True  # gone meanwhile, or no lock: nothing to do
    mine = (about.st_dev, about.st_ino)
    return any(mine == found for found in _open_files())


def _open_files() -> Iterator[tuple[int, int]]:
    """Device and number of each file that is open in a process of ours."""
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


def _sees_all(lock: Path) -> bool:
    """Whether whoever might hold the lock is a process that can be seen from here."""
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


def _say(text: str) -> None:
    print(f"allranks: {text}", file=sys.stderr, flush=True)
