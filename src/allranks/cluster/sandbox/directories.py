"""The directories of sandboxes, and their names.

A sandbox is one directory. Unless the caller names another, it lies in /tmp: the same place from a
desktop, ssh, cron or CI (``XDG_RUNTIME_DIR`` is not), and short, since the paths of Unix sockets
end at 108 bytes. A sandbox elsewhere has a link there, so that its name finds it.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from allranks.errors import SandboxError

# The longest path below it is a step's socket: spool/node100/node100_1234567.4294967291.
_LONGEST_ROOT = 64
_FOLDERS = ("munge", "state", "log", "run", "etc", "dev", "spool")


@dataclass(frozen=True)
class Layout:
    """The paths inside one sandbox's directory."""

    root: Path

    def __post_init__(self) -> None:
        text = str(self.root)
        if len(os.fsencode(text)) > _LONGEST_ROOT:
            raise SandboxError(
                f"The sandbox was asked for in {text}, {len(text)} characters long; the sockets in "
                f"it allow {_LONGEST_ROOT}.\nUse a shorter directory, or none (then it is in /tmp)."
            )
        if not re.fullmatch(r"/[A-Za-z0-9._/+@-]+", text):
            raise SandboxError(
                f"The sandbox was asked for in {text!r}; slurm.conf cannot hold that path.\n"
                "Use a directory of letters, digits and . _ + @ -"
            )

    @property
    def slurm_conf(self) -> Path:
        return self.root / "etc/slurm.conf"

    @property
    def hosts(self) -> Path:
        return self.root / "etc/hosts"

    @property
    def munge_socket(self) -> Path:
        return self.root / "munge/sock"

    @property
    def database_socket(self) -> Path:
        return self.root / "db/sock"

    @property
    def record(self) -> Path:
        return self.root / "sandbox.json"

    def log(self, daemon: str) -> Path:
        """Return the path of the daemon's log."""
        return self.root / "log" / f"{daemon}.log"

    def output(self, daemon: str) -> Path:
        """Return the path of the daemon's output."""
        return self.root / "log" / f"{daemon}.out"

    def make_folders(self, nodes: list[str]) -> None:
        """Create every folder, readable for jobs of other users."""
        for folder in (*_FOLDERS, *(f"spool/{node}" for node in nodes)):
            (self.root / folder).mkdir(exist_ok=True)
            (self.root / folder).chmod(0o755)

    def last_words(self, daemon: str, lines: int = 6) -> str:
        """Return the end of the daemon's log, or of its output."""
        for path in (self.log(daemon), self.output(daemon)):
            with contextlib.suppress(OSError):
                if text := path.read_text(errors="replace").strip():
                    return "\n".join(f"  {line}" for line in text.splitlines()[-lines:])
        return "  (it wrote nothing)"


def home() -> Path:
    """Return the folder of this user's sandboxes."""
    return Path(f"/tmp/allranks-sandbox-{os.getuid()}")


def check_name(name: str) -> str:
    """Return the name; SandboxError when it is not a valid folder name."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,29}", name):
        raise SandboxError(
            f"{name!r} cannot name a sandbox.\n"
            "Use up to 30 letters, digits, '.', '_' and '-', as in default."
        )
    return name


def make_root(name: str, directory: Path | None) -> Layout:
    """Create the directory of a new sandbox, with a link from its name."""
    entry = home() / check_name(name)
    layout = Layout(entry if directory is None else directory.resolve())
    if directory is None:
        _in_home(layout.root.mkdir)
    else:
        _claim(layout.root)
        _in_home(lambda: entry.symlink_to(layout.root))
    layout.root.chmod(0o755)
    return layout


def forget(name: str) -> None:
    """Remove the name's link, and the folder of sandboxes when it is empty."""
    entry = home() / name
    if entry.is_symlink():
        entry.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        home().rmdir()


def _in_home(make: Callable[[], None]) -> None:
    """Make an entry of the folder, which another sandbox may be removing at this moment."""
    while True:
        _make_home()
        with contextlib.suppress(FileNotFoundError):
            return make()


def _make_home() -> None:
    folder = home()
    folder.mkdir(mode=0o755, exist_ok=True)
    try:
        found = folder.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise SandboxError(
            f"{folder} should hold your sandboxes, but is not a folder that only you write to.\n"
            "Remove it, or start the sandbox elsewhere with --directory."
        )


def _claim(root: Path) -> None:
    root.mkdir(parents=True, exist_ok=True)
    if any(root.iterdir()):
        raise SandboxError(
            f"The sandbox was asked for in {root}, which holds other files.\n"
            "Use a directory that is empty or does not exist: `down` removes it whole."
        )
