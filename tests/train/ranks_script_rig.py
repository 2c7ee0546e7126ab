"""What the tests of trainings on several ranks share: starts, results and what is left in /proc."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from command_rig import until

HERE = Path(__file__).parent
_FOREIGN = ("SLURM", "PMI", "OMPI", "TORCHELASTIC", "HOROVOD", "ALLRANKS", "MASTER", "PYTEST")
_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK")
Found = dict[str, list[dict[str, Any]]]
"""By scenario: what each rank saw."""


class Start:
    """One command, marked so that all its processes can be found."""

    def __init__(self, folder: Path, *command: str, **more: str) -> None:
        self.mark = f"RANKS_TEST={uuid.uuid4()}".encode()
        kept = {k: v for k, v in os.environ.items() if not k.startswith(_FOREIGN)}
        kept = {k: v for k, v in kept.items() if k not in _NAMES}
        kept |= {"OMP_NUM_THREADS": "1", "XDG_STATE_HOME": str(folder / "state")} | more
        kept["RANKS_TEST"] = self.mark.decode().partition("=")[2]
        self.process = subprocess.Popen(
            command, env=kept, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip

    def end(self, seconds: float = 400) -> tuple[int, str, str]:
        """Exit code, stdout and stderr; nothing of it runs on."""
        try:
            out, err = self.process.communicate(timeout=seconds)
        finally:
            self.process.kill()
            for pid in self.left():
                os.kill(pid, 9)
        return self.process.returncode, out, err

    def left(self) -> list[int]:
        """Processes that carry the mark, but for those that have ended."""
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                if self.mark in path.read_bytes().split(b"\0"):
                    found.append(int(path.parent.name))
            except OSError:
                continue
        return found

    def until(self, true: Any) -> None:
        """Wait for this to be true; a process that has ended before is told with its stderr."""
        limit = time.monotonic() + 60
        while not true():
            assert time.monotonic() < limit, self.left()
            time.sleep(0.05)
            assert self.process.poll() is None or true() or self.left(), self.end()


@contextmanager
def started(folder: Path, *command: str, **more: str) -> Iterator[Start]:
    """A start that is ended whatever the test does."""
    start = Start(folder, *command, **more)
    try:
        yield start
    finally:
        if start.process.poll() is None:
            _kill(start)


def _kill(start: Start) -> None:
    start.process.kill()
    for pid in start.left():
        os.kill(pid, 9)
    start.process.communicate(timeout=20)


def run(folder: Path, ranks: int, *groups: str) -> Found:
    """The scenarios of these groups on this many ranks; an error ends at most its own scenario."""
    words = [str(HERE / "ranks_script.py"), str(ranks), str(folder / str(ranks)), str(folder)]
    code, out, err = Start(folder, sys.executable, *words, *groups).end()
    found: Found = {}
    for rank in range(ranks):
        path = folder / f"{ranks}.{rank}.json"
        for name, seen in json.loads(path.read_text()).items() if path.is_file() else ():
            found.setdefault(name, []).append(seen)
    assert code == 0, ({n: s for n, s in found.items() if _errors(s)}, out, err)
    return found


def once(folder: Path, make: Callable[[Path], Any]) -> Any:
    """What ``make`` gives, made by the first of the test processes that comes here."""
    done = folder / "done.json"
    try:
        folder.mkdir()
    except FileExistsError:
        until(done.exists, 800)  # another test process makes it
    else:
        made = make(folder)
        part = folder / "part.json"
        part.write_text(json.dumps(made))
        part.rename(done)
    return json.loads(done.read_text())


def shared_folder(factory: Any, name: str) -> Path:
    """The same for all test processes of this session."""
    base = factory.getbasetemp()
    return Path(base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name


def _errors(seen: list[dict[str, Any]]) -> list[str]:
    return [one["error"] for one in seen if "error" in one]


def results(found: Found, name: str) -> list[Any]:
    """What every rank gave; an error of any is the test's."""
    seen = found[name]
    assert not _errors(seen), "\n".join(one.get("trace", "") for one in seen)
    return [one["result"] for one in seen]


def apart(one: Any, other: Any) -> float:
    """The largest difference of any two numbers at the same place."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        return max((apart(one[key], other[key]) for key in one), default=0.0)
    if isinstance(one, list):
        assert len(one) == len(other), (one, other)
        return max((apart(a, b) for a, b in zip(one, other, strict=True)), default=0.0)
    if isinstance(one, str) or one is None:
        assert one == other
        return 0.0
    return abs(float(one) - float(other))
