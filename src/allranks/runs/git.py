"""What git knows of the code: which files belong to it, which commit, what is not committed."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

_SCP_LIKE = re.compile(r"^[\w.-]+@[\w.-]+:(?!//)")
_LIMIT = 60  # seconds; a large repository on a cold network file system is slow


@dataclass(frozen=True)
class Repository:
    """A git work tree."""

    root: Path

    @classmethod
    def at(cls, folder: Path) -> Repository | None:
        """The work tree that holds the folder; None outside git, or where git is not installed."""
        try:
            top = _git(folder, "rev-parse", "--show-toplevel").decode().rstrip("\n")
        except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
            return None
        return cls(Path(top)) if top else None

    def files(self) -> list[str]:
        """Paths below the root: tracked, and untracked but not ignored; submodules' files too."""
        listed = _git(self.root, "ls-files", "-z", "-co", "--exclude-standard")
        files: list[str] = []
        for name in dict.fromkeys(filter(None, os.fsdecode(listed).split("\0"))):
            path = self.root / name
            if not path.is_dir() or path.is_symlink():
                files.append(name)
            elif (path / ".git").exists():  # a submodule, or a clone inside this one
                below = Repository(path).files()
                files += [f"{name.rstrip('/')}/{inner}" for inner in below]
        return files

    def untracked(self) -> list[str]:
        """Files that no patch can hold."""
        listed = _git(self.root, "ls-files", "-z", "-o", "--exclude-standard")
        return [name for name in os.fsdecode(listed).split("\0") if name]

    def commit(self) -> str | None:
        """The commit; None before the first."""
        return self._line("rev-parse", "--verify", "-q", "HEAD")

    def branch(self) -> str | None:
        """The branch; None when the head is detached."""
        return self._line("symbolic-ref", "-q", "--short", "HEAD")

    def remote(self) -> str | None:
        """Where it comes from, without a password or token."""
        names = (self._line("remote") or "").split()
        name = "origin" if "origin" in names else next(iter(names), None)
        url = self._line("remote", "get-url", name) if name else None
        return without_credentials(url) if url else None

    def patch(self) -> bytes:
        """What differs from the commit, binary files too: ``git apply`` brings it back."""
        if self.commit() is None:
            return b""
        return _git(self.root, "diff", "HEAD", "--binary", "--no-color", "--no-ext-diff")

    def _line(self, *words: str) -> str | None:
        try:
            return os.fsdecode(_git(self.root, *words)).strip() or None
        except (OSError, subprocess.SubprocessError):
            return None


def without_credentials(url: str) -> str:
    """``https://user:token@host/x`` → ``https://host/x``; ``git@host:x`` holds no secret."""
    if _SCP_LIKE.match(url) or "://" not in url:
        return url
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def _git(folder: Path, *words: str) -> bytes:
    """Variables such as GIT_DIR, set inside a git hook, would point at another repository."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return subprocess.run(
        ["git", "-c", "core.fsmonitor=false", *words],  # which would leave a daemon behind
        cwd=folder,
        env={**env, "GIT_OPTIONAL_LOCKS": "0"},  # look, do not write
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=_LIMIT,
        check=True,
    ).stdout
