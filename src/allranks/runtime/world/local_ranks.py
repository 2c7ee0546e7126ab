"""The ranks that a process starts beside itself, and how they all end together.

A rank that fails ends the others and this process, with its exit code, even while the main thread
waits for it in a collective. When this process fails, it ends them; when it is killed, the kernel
does (PR_SET_PDEATHSIG). At its good end it waits for theirs.
"""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from allranks.errors import Interrupted, UsageError
from allranks.runtime.world.rank_output import RankOutput, read_all, say, speaks_of_a_lost_peer
from allranks.runtime.world.signal_forwarding import Forwarding

_FAREWELL_SECONDS = 60.0
_CAUSE_SECONDS, _LONGEST_CAUSE_SECONDS = 2.0, 15.0
"""How long a failure may lag behind the broken connection that it causes elsewhere; and where the error
says that a connection broke: Python with its libraries may take long to end on a busy machine."""
_DRAIN_SECONDS = 1.0
_GOOD = (0, Interrupted.EXIT_CODE)
"""A rank that saved and left on purpose has not failed; all of them leave then."""
last_words: list[Callable[[int], None]] = []
"""Called with the exit code when a rank has failed: such an end runs no exit handlers."""
_BECOME = """
import sys
sys.path[:] = [folder for folder in sys.path if folder]
import ctypes, os
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)
if os.getppid() != int(sys.argv[1]):
    os._exit(137)
os.execv(sys.argv[2], sys.argv[2:])
"""
"""Run by each new process before it becomes the rank: no Python runs between fork and exec in this
one, which may have threads and much memory. The second test: we may have died before the first."""


class LocalRanks:
    """The started ranks of this node."""

    def __init__(self, logs: Path | None) -> None:
        self._logs = logs
        self._temporary: Path | None = None
        self._grace = _grace()
        self._owner = os.getpid()
        self._ranks: list[RankOutput] = []
        self._ended: list[RankOutput] = []
        """In the order of their ends."""
        self._changed = threading.Condition()
        self._last_word = threading.Lock()
        """Taken once, by whoever decides how this process ends: a failed rank, or its own failure."""
        self._caller_failed = False

    def start(
        self, command: tuple[list[str], Path], variables: Sequence[Mapping[str, str]]
    ) -> None:
        """Start one rank for each set of variables, and watch them from now on."""
        folder = self._folder()
        try:
            for env in variables:
                path = folder / f"rank-{int(env['RANK']):05d}.log"
                self._ranks.append(RankOutput(int(env["RANK"]), _begin(command, env), path))
        except OSError:
            self._send(signal.SIGKILL)
            raise
        for rank in self._ranks:
            _thread(self._wait, rank)
        _thread(read_all, self._ranks, self._changed)
        self._forwarded = Forwarding(self._pids)
        self._previous_hook, sys.excepthook = sys.excepthook, self._on_exception
        atexit.register(self._at_exit)

    def _folder(self) -> Path:
        if self._logs is None:
            import tempfile

            self._logs = self._temporary = Path(tempfile.mkdtemp(prefix="allranks-"))
        self._logs.mkdir(parents=True, exist_ok=True)
        return self._logs

    def _wait(self, rank: RankOutput) -> None:
        code = rank.process.wait()
        with self._changed:
            self._ended.append(rank)
            self._changed.notify_all()
        # Once the main thread is through, the end of this process asks for the exit codes.
        if code not in _GOOD and threading.main_thread().is_alive():
            self._fail()

    def _fail(self) -> None:
        """End everything because a rank failed. Does not return, unless the end is decided."""
        if not self._last_word.acquire(blocking=False):
            return
        rank = self._culprit()
        self._mute(but=rank)
        self._send(signal.SIGTERM)
        self._until(lambda: not rank.open, _DRAIN_SECONDS)
        self._tell(rank, "; ending the others")
        self._end()
        _leave(_exit_code(rank))

    def _culprit(self) -> RankOutput:
        """The first that failed, and not because it lost another one."""

        def known() -> bool:
            return any(not rank.open and not rank.lost_a_peer for rank in self._failed())

        self._until(known, _LONGEST_CAUSE_SECONDS)
        return min(self._failed(), key=lambda rank: rank.lost_a_peer)

    def _failed(self) -> list[RankOutput]:
        return [rank for rank in self._ended if rank.process.returncode not in _GOOD]

    def _pids(self) -> list[int]:
        return [rank.process.pid for rank in self._ranks if rank not in self._ended]

    def _tell(self, rank: RankOutput, then: str) -> None:
        """The failure in one line, after the rank's last lines where none were shown."""
        lines = [] if rank.shown else [f"[rank {rank.rank}] {line}" for line in rank.last]
        code = rank.process.returncode
        how = f"exit code {code}" if code > 0 else f"signal {signal.Signals(-code).name}"
        who = f"rank {rank.rank} (pid {rank.process.pid})"
        say("\n".join([*lines, f"{who} ended with {how}{then}. Its output: {rank.path}"]))

    def _on_exception(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        """This process fails: the others end with it, without tracebacks of their own."""
        if os.getpid() == self._owner:
            # A lost connection is told here before the rank that broke it has ended.
            lost = isinstance(error, RuntimeError)
            if lost:
                told = speaks_of_a_lost_peer(str(error))
                self._until(self._failed, _LONGEST_CAUSE_SECONDS if told else _CAUSE_SECONDS)
            self._caller_failed = self._last_word.acquire(blocking=False)
            if self._caller_failed:
                self._mute()
                self._send(signal.SIGTERM)
            elif lost:
                _wait_to_be_ended()
        self._previous_hook(kind, error, trace)

    def _at_exit(self) -> None:
        """Wait for the others, or end them where this process has failed."""
        if os.getpid() != self._owner:
            return
        if self._last_word.locked() and not self._caller_failed:
            _wait_to_be_ended()
        if self._caller_failed or hasattr(sys, "last_value"):
            self._mute()
            self._end()
        elif not self._until(self._all_ended, _FAREWELL_SECONDS):
            late = [str(rank.rank) for rank in self._ranks if rank not in self._ended]
            say(f"Still running {_FAREWELL_SECONDS:.0f} s after rank 0: {', '.join(late)}; ended.")
            self._end()
        elif self._failed():
            rank = self._culprit()
            self._tell(rank, "")
            _leave(_exit_code(rank))
        self._clear()

    def _clear(self) -> None:
        """Nobody needs to read the logs that no one asked for."""
        self._until(lambda: not any(rank.open for rank in self._ranks), _DRAIN_SECONDS)
        if self._temporary:
            import shutil

            shutil.rmtree(self._temporary, ignore_errors=True)

    def _mute(self, but: RankOutput | None = None) -> None:
        for rank in self._ranks:
            rank.muted = rank is not but

    def _end(self) -> None:
        """TERM, then KILL for the ranks and for whatever they had started."""
        self._send(signal.SIGTERM)
        self._until(self._all_ended, self._grace)
        self._send(signal.SIGKILL)

    def _send(self, number: int) -> None:
        for rank in self._ranks:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(rank.process.pid, number)

    def _all_ended(self) -> bool:
        return len(self._ended) == len(self._ranks)

    def _until(self, true: Callable[[], object], seconds: float) -> bool:
        with self._changed:
            return bool(self._changed.wait_for(true, seconds))


def _begin(command: tuple[list[str], Path], env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """A session of its own: Ctrl-C in the terminal reaches the caller alone, which ends the rest."""
    words, folder = command
    return subprocess.Popen(
        [sys.executable, "-S", "-c", _BECOME, str(os.getpid()), *words],
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        start_new_session=True,
    )


def _thread(target: Callable[..., None], *args: object) -> threading.Thread:
    thread = threading.Thread(target=target, args=args, daemon=True, name="allranks ranks")
    thread.start()
    return thread


def _wait_to_be_ended() -> None:
    """A failed rank is about to end this process, and there is nothing more to say here."""
    threading.Event().wait()


def _grace() -> float:
    text = os.environ.get("ALLRANKS_GRACE") or "10"
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"ALLRANKS_GRACE={text} is not a number of seconds.") from None


def _exit_code(rank: RankOutput) -> int:
    code: int = rank.process.returncode
    return code if code > 0 else 128 - code


def _leave(code: int) -> None:
    """End at once: the main thread may wait in a collective that no one will ever answer."""
    for note in last_words:
        note(code)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            # In a thread: the main thread may hold the stream's lock.
            _thread(stream.flush).join(_DRAIN_SECONDS)
    os._exit(code)
