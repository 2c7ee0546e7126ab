"""The Work objects that torch gets from a call, and the thread that makes the calls.

MPI's blocking calls are the fast ones, so a thread makes them while the caller computes. A lock signals
the end: it costs less than an Event, reacts to Ctrl-C and has a time limit, which MPI itself does not have.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from queue import Empty, SimpleQueue
from typing import Any

import torch
import torch.distributed as dist

_SPINS = 200
_POLL = 0.0005
timed_out = False
"""Whether a call of this process timed out: MPI still waits for it, also in MPI_Finalize."""


class MpiWork(dist._Work if hasattr(dist, "_Work") else dist.Work):  # type: ignore[misc]
    """One pending call."""

    def __init__(self, what: str, seconds: float, result: Any) -> None:
        super().__init__()
        self.what = what
        self._seconds = seconds
        self._result = result
        self._error: BaseException | None = None
        self._ended = False
        self._gate = threading.Lock()
        self._gate.acquire()
        self._state = threading.Lock()
        self._future: Any = None

    def finish(self, error: BaseException | None = None) -> None:
        """Finish the work; called once, by the thread that did it."""
        with self._state:
            self._error, self._ended = error, True
            future = self._future
        self._gate.release()
        if future is not None:
            self._settle(future)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until it is done and raise its error; the time limit is this call's or the group's."""
        seconds = timeout.total_seconds() if timeout else 0.0
        self._until(seconds if seconds > 0 else self._seconds)
        if self._error is not None:
            raise self._error
        return True

    def _until(self, seconds: float) -> None:
        if not self._gate.acquire(timeout=min(seconds, threading.TIMEOUT_MAX)):
            raise timeout_error(self.what, seconds)
        self._gate.release()

    def is_completed(self) -> bool:
        """Whether it has ended, with or without an error."""
        return self._ended

    def is_success(self) -> bool:
        """Whether it has ended without an error."""
        return self.is_completed() and self.exception() is None

    def exception(self) -> BaseException | None:
        """Return the error, if any."""
        return self._error

    def synchronize(self) -> None:
        """Wait: no stream is involved."""
        self.wait()

    def result(self) -> Any:
        """Return the tensors of the call."""
        return self._result

    def get_future(self) -> Any:
        """Return a future of the tensors, made on demand, as for DDP."""
        with self._state:
            if self._future is None:
                self._future = torch.futures.Future()
                if not self._ended:
                    return self._future
            else:
                return self._future
        self._settle(self._future)
        return self._future

    def _settle(self, future: Any) -> None:
        if self._error is None:
            future.set_result(self._result)
        else:
            future.set_exception(self._error)


class PointWork(MpiWork):
    """One pending message, which is tested until it is done."""

    def __init__(
        self, what: str, seconds: float, result: Any, done: Callable[[], None], status: Any
    ) -> None:
        super().__init__(what, seconds, result)
        self._done = done
        self._status = status
        self._request: Any = None
        self._testing = threading.Lock()

    def set_request(self, request: Any) -> None:
        """Set MPI's request of the posted message."""
        self._request = request

    def test(self) -> bool:
        """Test MPI's request; finish the work when the message was sent or received."""
        with self._testing:
            if self._ended:
                return True
            try:
                if not self._request.Test(self._status):
                    return False
                self._done()
            except Exception as error:  # noqa: BLE001  raised by wait()
                self.finish(error)
            else:
                self.finish()
        return True

    def _source_rank(self) -> int:
        """Return the sender, for a receive from any rank."""
        return int(self._status.Get_source())


class DirectPointWork(PointWork):
    """A message where every thread may call MPI: the waiting thread tests it."""

    def _until(self, seconds: float) -> None:
        deadline, spins = time.monotonic() + seconds, 0
        while not self.test():
            spins += 1
            if spins < _SPINS:
                os.sched_yield()
                continue
            if time.monotonic() > deadline:
                raise timeout_error(self.what, seconds)
            time.sleep(_POLL if spins > 20 * _SPINS else _POLL / 10)

    def is_completed(self) -> bool:
        return self.test()

    def get_future(self) -> Any:
        """Return a future; a new thread waits for it, since futures of messages are rare."""
        future = super().get_future()
        threading.Thread(target=self._watch, daemon=True).start()
        return future

    def _watch(self) -> None:
        while not self.test():
            time.sleep(_POLL)


class AllOf(MpiWork):
    """Several works as one, for torch's coalescing."""

    def __init__(self, works: list[MpiWork]) -> None:
        super().__init__("several calls", 0.0, [])
        self._works = works

    def wait(self, timeout: timedelta | None = None) -> bool:
        return all(work.wait(timeout) for work in self._works)

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def exception(self) -> BaseException | None:
        return next((each for work in self._works if (each := work.exception())), None)

    def result(self) -> Any:
        return _flat(work.result() for work in self._works)

    def get_future(self) -> Any:
        """Return a future of the tensors of all calls in one list."""
        every = torch.futures.collect_all([work.get_future() for work in self._works])
        return every.then(lambda done: _flat(each.value() for each in done.value()))


def _flat(results: Iterable[Any]) -> list[Any]:
    """Results are tensors, or lists of them, or lists of such lists."""
    found: list[Any] = []
    for each in results:
        found += _flat(each) if isinstance(each, (list, tuple)) else [each]
    return found


def timeout_error(what: str, seconds: float) -> Exception:
    """Return the error of a wait that timed out; a RuntimeError, as from the other backends."""
    global timed_out
    timed_out = True
    kind = getattr(dist, "DistBackendError", RuntimeError)
    text = (
        f"{what} did not end within {seconds:g} s: another rank has not made this call, is still "
        "busy, or is gone. MPI cannot cancel the call, so the group cannot be used any more.\n"
        "For more time: init(timeout=SECONDS)."
    )
    error: Exception = kind(text)
    return error


class Worker:
    """One thread that makes calls in order."""

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[Callable[[], PointWork | None] | None] = SimpleQueue()
        self._messages: list[PointWork] = []
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.thread.start()

    def put(self, job: Callable[[], PointWork | None]) -> None:
        """Queue a call. A message that it returns is tested until it is done."""
        self._jobs.put(job)

    def call(self, job: Callable[[], Any], seconds: float | None = None) -> Any:
        """Make a call in the thread and return its result; queue.Empty after the time limit."""
        answer: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()

        def run() -> None:
            try:
                answer.put((job(), None))
            except BaseException as error:  # noqa: BLE001  raised again for the caller
                answer.put((None, error))

        self.put(run)
        limit = None if seconds is None else min(seconds, threading.TIMEOUT_MAX)
        value, error = answer.get(timeout=limit)
        if error is not None:
            raise error
        return value

    def stop(self, seconds: float) -> bool:
        """End after the queued calls; False when a call is still pending then."""
        self._jobs.put(None)
        if self.thread is not threading.current_thread():
            self.thread.join(min(seconds, threading.TIMEOUT_MAX))
        return not self.thread.is_alive()

    def _run(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=_POLL if self._messages else None)
            except Empty:
                self._messages = [each for each in self._messages if not each.test()]
                continue
            if job is None:
                return
            message = job()
            if message is not None:
                self._messages.append(message)
