"""The code of a run: copied into it, or referred to by commit and patch.

A job may wait for days; editing a file meanwhile must not change what it runs, and what it ran must be
known later.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from allranks.errors import UsageError
from allranks.runs.atomic_files import write_bytes, write_json

MODES = ("off", "copy", "reference")
TOTAL_LIMIT = 64 << 20
FILE_LIMIT = 16 << 20

_SKIPPED = frozenset({"node_modules", "__pycache__", "venv", "env", "runs", "wandb", "mlruns"})
_SOURCE = frozenset(
    {
        *(".py", ".pyi", ".pyx", ".ipynb", ".sh", ".bash", ".toml", ".yaml", ".yml", ".json"),
        *(".cfg", ".ini", ".txt", ".md", ".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp"),
        *(".jl", ".r", ".R", ".lua", ".rs", ".go", ".def", ".sbatch", ".slurm", ".jinja", ".csv"),
    }
)
_SOURCE_LIMIT = 1 << 20  # outside git a larger file is data


@dataclass
class CodeSnapshot:
    """The recorded code."""

    mode: str
    root: Path | None = None
    """The folder that was taken: the top of the repository, or the working folder outside git."""
    subfolder: str = "."
    """Where in it the job was submitted: the job stands at the same place in the copy."""
    files: int = 0
    size: int = 0
    notes: list[str] = field(default_factory=list)
    """What was left out, as sentences for the user."""


def take_snapshot(
    run_path: Path,
    cwd: Path,
    mode: str,
    *,
    limit: int = TOTAL_LIMIT,
    file_limit: int = FILE_LIMIT,
) -> CodeSnapshot:
    """Record the code below (or around) ``cwd`` in the run folder."""
    if mode not in MODES:
        raise UsageError(f"'{mode}' is not a snapshot mode. Write one of: {', '.join(MODES)}.")
    if mode == "off":
        return CodeSnapshot(mode)
    cwd = cwd.resolve()
    repository = Repository.at(cwd)
    root = repository.root.resolve() if repository else cwd
    snapshot = CodeSnapshot(mode, root, os.path.relpath(cwd, root))
    try:
        about = _describe(repository, snapshot)
        if mode == "copy":
            names = repository.files() if repository else _source_files(root)
            _copy(_outside_runs(names, root, run_path), run_path, snapshot, limit, file_limit)
        elif repository:
            _write_patch(repository, run_path, snapshot, limit)
        else:
            snapshot.notes.append(f"{root} is not in git, so there is no commit to refer to.")
    except (subprocess.SubprocessError, OSError) as error:
        raise UsageError(
            f"The code in {root} cannot be recorded: {error}.\nRun without: --snapshot off"
        ) from error
    about |= {"files": snapshot.files, "bytes": snapshot.size, "notes": snapshot.notes}
    write_json(run_path / "code.json", about)
    return snapshot


def _describe(repository: Repository | None, snapshot: CodeSnapshot) -> dict[str, Any]:
    """Return the content of ``code.json``; null where there is no git."""
    about: dict[str, Any] = {
        "mode": snapshot.mode,
        "root": str(snapshot.root),
        "subfolder": snapshot.subfolder,
        "commit": repository.commit() if repository else None,
        "branch": repository.branch() if repository else None,
        "remote": repository.remote() if repository else None,
        "dirty": None,
        "untracked": [],
    }
    if repository:
        untracked = repository.untracked()
        about["dirty"] = bool(untracked) or bool(repository.patch())
        about["untracked"] = untracked[:1000]
    return about


def _write_patch(
    repository: Repository, run_path: Path, snapshot: CodeSnapshot, limit: int
) -> None:
    patch = repository.patch()
    if len(patch) > limit:
        raise UsageError(
            f"What is not committed in {snapshot.root} makes a patch of {_mib(len(patch))}, more "
            f"than {_mib(limit)}.\nCommit it, or run without: --snapshot off"
        )
    write_bytes(run_path / "uncommitted.patch", patch)
    snapshot.size = len(patch)
    if untracked := repository.untracked():
        snapshot.notes.append(
            f"{len(untracked)} files are not in git and not recorded: {', '.join(untracked[:3])} …"
            if len(untracked) > 3
            else f"Not in git and not recorded: {', '.join(untracked)}"
        )


def _copy(
    names: Iterable[str], run_path: Path, snapshot: CodeSnapshot, limit: int, file_limit: int
) -> None:
    """Copy the files; their size is checked first, so that nothing is copied when it is too large."""
    root = snapshot.root or run_path
    sizes: dict[str, int] = {}
    for name in names:
        path = root / name
        if path.is_symlink():
            sizes[name] = 0
        elif path.is_file():  # a tracked file may be deleted; sockets and pipes are no code
            size = path.stat().st_size
            if size > file_limit:
                snapshot.notes.append(f"{name} is left out: {_mib(size)}.")
            else:
                sizes[name] = size
    snapshot.size = sum(sizes.values())
    if snapshot.size > limit:
        raise _too_large(sizes, snapshot, limit)
    for name in sizes:
        snapshot.files += _copy_one(root, name, run_path / "code", snapshot)


def _copy_one(root: Path, name: str, into: Path, snapshot: CodeSnapshot) -> int:
    """Copy one file; return 1 when it was copied. A link inside the code stays one, made relative."""
    source, target = root / name, into / name
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_symlink():
        aim = Path(os.path.normpath(source.parent / source.readlink()))
        if not aim.is_relative_to(root):
            snapshot.notes.append(f"{name} is left out: a link to {aim}, outside the code.")
            return 0
        target.symlink_to(os.path.relpath(aim, source.parent))
    else:
        shutil.copy2(source, target)
    return 1


def _source_files(root: Path) -> Iterator[str]:
    """Yield the source files outside git: by suffix, not hidden, not large."""
    for folder, below, names in os.walk(root):
        below[:] = sorted(name for name in below if not _skip_folder(Path(folder, name)))
        for name in sorted(names):
            path = Path(folder, name)
            if name.startswith(".") or not (path.suffix in _SOURCE or name == "Makefile"):
                continue
            if path.is_symlink() or path.stat().st_size <= _SOURCE_LIMIT:
                yield str(path.relative_to(root))


def _skip_folder(path: Path) -> bool:
    """Return whether a folder is hidden, a virtual environment, a cache, or a folder of runs."""
    return (
        path.name in _SKIPPED
        or path.name.startswith(".")
        or path.name.endswith(".egg-info")
        or (path / "pyvenv.cfg").exists()
        or (path / "conda-meta").is_dir()
    )


def _outside_runs(names: Iterable[str], root: Path, run_path: Path) -> Iterator[str]:
    """Yield the files outside the runs, which usually are inside the code: snapshots must not nest."""
    runs = run_path.resolve().parent
    inside = f"{runs.relative_to(root)}/" if runs != root and runs.is_relative_to(root) else None
    own = f"{run_path.name}/" if runs == root else None
    for name in names:
        if not (inside and name.startswith(inside)) and not (own and name.startswith(own)):
            yield name


def _too_large(sizes: dict[str, int], snapshot: CodeSnapshot, limit: int) -> UsageError:
    largest = sorted(sizes, key=lambda name: sizes[name], reverse=True)[:3]
    named = ", ".join(f"{name} ({_mib(sizes[name])})" for name in largest)
    return UsageError(
        f"The code in {snapshot.root} is {_mib(snapshot.size)}, more than {_mib(limit)}. "
        f"The largest: {named}.\n"
        "Put data into .gitignore, or use: --snapshot reference (or off)"
    )


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.1f} MiB"


_SCP_LIKE = re.compile(r"^[\w.-]+@[\w.-]+:(?!//)")
_LIMIT = 60  # seconds; a large repository on a cold network file system is slow


@dataclass(frozen=True)
class Repository:
    """A git work tree."""

    root: Path

    @classmethod
    def at(cls, folder: Path) -> Repository | None:
        """Return the work tree that holds the folder; None outside git, or where git is not installed."""
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
    """Run git without variables such as GIT_DIR, which a git hook sets to another repository."""
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
