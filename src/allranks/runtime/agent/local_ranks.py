"""Supervise the ranks that a script starts beside itself, and end all of them together.

A rank that fails ends the others and this process, with its exit code, even while the main thread
waits for it in a collective. When this process fails, it ends them; when it is killed, the kernel
does (PR_SET_PDEATHSIG). When it succeeds, it waits for them. The supervisor runs in a thread; the
signals of this process are forwarded before they take effect here.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from allranks.errors import Interrupted, UsageError
from allranks.runtime.agent.attempt_files import AttemptFiles
from allranks.runtime.agent.console import StderrDisplay, print_line
from allranks.runtime.agent.failures import is_lost_peer
from allranks.runtime.agent.fork_exec import open_pipe
from allranks.runtime.agent.linux_processes import send
from allranks.runtime.agent.rank_environment import in_step
from allranks.runtime.agent.rank_output import Child, RankOutput
from allranks.runtime.agent.supervisor import Exits, Supervisor, ThreadEvents, read_grace

_LAST_RANKS_SECONDS = 60.0
_CAUSE_SECONDS, _LONGEST_CAUSE_SECONDS = 2.0, 15.0
"""How long a failure may lag behind the broken connection that it causes elsewhere; and where the error
is a broken connection: Python with its libraries may take long to end on a busy machine."""
_DRAIN_SECONDS = 1.0
_LAST_LINES = 10
_FORWARDED = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
_NO_FAILURE = (0, Interrupted.EXIT_CODE)
"""A rank that saved to be requeued has not failed; all of them end then."""
before_exit: list[Callable[[int], None]] = []
"""Called with the exit code when a rank has failed: such an end runs no exit handlers."""
_BECOME_RANK = """
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


class LocalRanks(Supervisor):
    """The ranks that this process has started on its node."""

    def __init__(self, children: Sequence[Child], events: ThreadEvents, logs: Path | None) -> None:
        self._display = StderrDisplay()
        self._temporary = None if logs else tempfile.mkdtemp(prefix="allranks-")
        """The folder of logs when none was given; it is removed unless a rank fails."""
        self._files = AttemptFiles(logs or self._temporary, print_line)
        output = RankOutput(children, self._display, self._files)
        super().__init__(children, events, output, read_grace(os.environ))
        self._children = children
        self._thread_events = events
        self._owner = os.getpid()
        self._exits: Exits = []
        """In the order in which they came."""
        self._changed = threading.Condition()
        self._finished = False
        self._decision = threading.Lock()
        """Taken once, by whoever decides how this process ends: a failed rank, or its own failure."""
        self._caller_failed = False
        self._cause_deadline: float | None = None
        """Until when the cause of a failure is searched for; None when it is not."""
        self._culprit: tuple[Child, int] | None = None
        self._handlers: dict[int, Any] = {}
        """What this process did at a signal before."""

    def start(self) -> None:
        """Supervise in a thread, and take part in the end of this process."""
        from allranks.core.background_thread import background_thread

        background_thread(self._run, "allranks ranks").start()
        for number in _FORWARDED:
            self._handlers[number] = signal.getsignal(number)  # first: a signal may come at once
            signal.signal(number, self._forward_first)
        self._previous_hook, sys.excepthook = sys.excepthook, self._on_exception
        atexit.register(self._at_exit)

    # In the supervisor's thread

    def _run(self) -> None:
        while self.alive or self._cause_deadline is not None:
            self._turn(self._timeout())
        if self.stopped is not None:
            self.kill()
        self._output.close()
        if self._culprit:
            _exit_now(_exit_code(self._culprit))
        with self._changed:
            self._finished = True
            self._changed.notify_all()

    def _timeout(self) -> float | None:
        if self._cause_deadline is not None:
            return max(self._cause_deadline - time.monotonic(), 0)
        return super()._timeout()

    def on_exits(self, ended: Exits) -> None:
        for child, _ in ended:
            self._output.drain(child.pid)
        with self._changed:
            self._exits += ended
            self._changed.notify_all()
        # Once the main thread is through, the end of this process asks for the exit codes.
        decides = self._failed() and threading.main_thread().is_alive()
        if decides and self._decision.acquire(blocking=False):
            self._cause_deadline = time.monotonic() + _LONGEST_CAUSE_SECONDS

    def after_turn(self, idle: bool) -> None:
        """End everything because a rank failed, as soon as it is clear which one caused it."""
        if self._cause_deadline is None:
            return
        found = any(not self._lost_a_peer(child) for child, _ in self._failed())
        if found or not self.alive or time.monotonic() >= self._cause_deadline:
            self._cause_deadline = None
            self._culprit = self._find_culprit()
            self._display.mute(all_but=self._culprit[0].rank)
            self.stop(signal.SIGTERM, self._grace.failed)
            self._report(self._culprit, "; ending the others")

    def patience(self, number: int) -> float | None:
        return self._grace.failed

    def kill(self) -> None:
        """Kill the ranks and what they had started: each leads a process group."""
        for child in self._children:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)

    def _failed(self) -> Exits:
        return [each for each in self._exits if each[1] not in _NO_FAILURE]

    def _find_culprit(self) -> tuple[Child, int]:
        """Return the first that failed, and not because it lost its connection to another."""
        return min(self._failed(), key=lambda each: self._lost_a_peer(each[0]))

    def _lost_a_peer(self, child: Child) -> bool:
        return any(map(is_lost_peer, self._last_lines(child)))

    def _last_lines(self, child: Child) -> list[str]:
        out, err = self._output.tails(child.pid)
        lines = sorted([*out.lines(), *err.lines()], key=lambda line: line[0])
        return [text for _, text in lines[-_LAST_LINES:]]

    def _report(self, failed: tuple[Child, int], then: str) -> None:
        """Print the failure in one line, after the rank's last lines where none were shown."""
        child, code = failed
        lines = [] if self._display.shown[child.rank] else self._last_lines(child)
        how = f"exit code {code}" if code > 0 else f"signal {signal.Signals(-code).name}"
        text = f"rank {child.rank} (pid {child.pid}) ended with {how}{then}."
        log = self._files.path("ranks", child.rank, "log")
        shown = [f"[rank {child.rank}] {line}" for line in lines]
        print_line("\n".join([*shown, f"{text} Its output: {log}"]))

    # In the main thread

    def _forward_first(self, number: int, frame: FrameType | None) -> None:
        """Forward a signal to the ranks, then let it take effect here.

        The ranks lead sessions of their own, so nothing but this process reaches them; only inside a
        Slurm step does Slurm signal every process itself.
        """
        if os.getpid() == self._owner and not in_step(os.environ):
            self.forward(number)
        handler = self._handlers[number]
        if callable(handler):
            handler(number, frame)
        elif handler != signal.SIG_IGN and signal.getsignal(number) == self._forward_first:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def _on_exception(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        """End the other ranks because this process fails, without tracebacks of their own."""
        if os.getpid() == self._owner:
            # A lost connection is noticed here before the rank that broke it has ended.
            lost = isinstance(error, RuntimeError)
            if lost:
                is_lost = is_lost_peer(str(error))
                self._until(self._failed, _LONGEST_CAUSE_SECONDS if is_lost else _CAUSE_SECONDS)
            self._caller_failed = self._decision.acquire(blocking=False)
            if self._caller_failed:
                self._request_stop()
            elif lost:
                _wait_to_be_ended()
        self._previous_hook(kind, error, trace)

    def _at_exit(self) -> None:
        """Wait for the other ranks, or end them where this process has failed."""
        if os.getpid() != self._owner:
            return
        if self._decision.locked() and not self._caller_failed:
            _wait_to_be_ended()
        if self._caller_failed or hasattr(sys, "last_value"):
            self._end()
        elif not self._until(lambda: self._finished, _LAST_RANKS_SECONDS):
            late = ", ".join(str(child.rank) for child in self.alive.values())
            print_line(f"Rank {late} still runs {_LAST_RANKS_SECONDS:.0f} s after rank 0: ended.")
            self._end()
        elif self._failed():
            culprit = self._find_culprit()
            self._report(culprit, "")
            _exit_now(_exit_code(culprit))
        if self._temporary:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def _request_stop(self) -> None:
        self._display.mute()
        self._thread_events.post(signal.SIGTERM)

    def _end(self) -> None:
        self._request_stop()
        self._until(lambda: self._finished, self._grace.failed + _DRAIN_SECONDS + 1)

    def _until(self, condition: Callable[[], object], seconds: float) -> bool:
        with self._changed:
            return bool(self._changed.wait_for(condition, seconds))


def start_local_ranks(
    command: tuple[list[str], Path], variables: Sequence[Mapping[str, str]], logs: Path | None
) -> None:
    """Start one rank for each set of variables; their logs go to ``logs/ranks``, or are temporary."""
    events = ThreadEvents()
    children: list[Child] = []
    try:
        for env in variables:
            children.append(_start_rank(command, env, events))
        ranks = LocalRanks(children, events, logs)
    except (OSError, UsageError):
        send([child.pid for child in children], signal.SIGKILL)
        raise
    ranks.start()


def _start_rank(
    command: tuple[list[str], Path], env: Mapping[str, str], events: ThreadEvents
) -> Child:
    """Start a rank in a session of its own: Ctrl-C reaches this process alone, which ends the rest."""
    words, folder = command
    (out, out_writer), (err, err_writer) = open_pipe(), open_pipe()
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", _BECOME_RANK, str(os.getpid()), *words],
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=out_writer,
        stderr=err_writer,
        start_new_session=True,
    )
    os.close(out_writer)
    os.close(err_writer)
    events.wait_for(process)
    return Child(process.pid, int(env["RANK"]), out, err)


def _wait_to_be_ended() -> None:
    """Wait: the supervisor's thread is about to end this process because of a failed rank."""
    threading.Event().wait()


def _exit_code(failed: tuple[Child, int]) -> int:
    code = failed[1]
    return code if code > 0 else 128 - code


def _exit_now(code: int) -> None:
    """End at once: the main thread may wait in a collective that will never complete."""
    for hook in before_exit:
        hook(code)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            # In a thread: the main thread may hold the stream's lock.
            flush = threading.Thread(target=stream.flush, daemon=True)
            flush.start()
            flush.join(_DRAIN_SECONDS)
    os._exit(code)
