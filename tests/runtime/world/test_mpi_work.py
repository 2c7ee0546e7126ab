"""What torch gets back from MPI's calls, and what a rank's end knows; MPI itself is not needed."""

from __future__ import annotations

import sys
import threading
from collections import deque
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


@pytest.fixture
def ending(monkeypatch: pytest.MonkeyPatch):
    from allranks.runtime.world.mpi import mpi_shutdown as ending

    monkeypatch.setattr(ending, "_exit_status", None)
    monkeypatch.delattr(sys, "last_value", raising=False)
    return ending


def work(result, error=None, *, ended=True):
    from allranks.runtime.world.mpi.mpi_work import MpiWork

    made = MpiWork("all_reduce", 5.0, result)
    if ended:
        made.finish(error)
    return made


def test_several_works_have_one_future() -> None:
    from allranks.runtime.world.mpi.mpi_work import AllOf

    assert AllOf([]).get_future().done()
    one, two = torch.ones(1), torch.zeros(2)
    last = work(two, ended=False)
    both = AllOf([work([one]), last])
    future = both.get_future()
    assert not future.done()
    last.finish()
    assert future.wait()[0] is one
    assert both.result()[1] is two
    assert both.wait()
    assert both.is_success()


def test_the_error_of_one_work_is_that_of_all() -> None:
    from allranks.runtime.world.mpi.mpi_work import AllOf

    error = RuntimeError("gone")
    both = AllOf([work([]), work([], error)])
    assert both.exception() is error
    assert not both.is_success()
    with pytest.raises(RuntimeError, match="gone"):
        both.get_future().wait()


def test_messages_are_kept_until_they_are_done() -> None:
    from allranks.runtime.world.mpi.mpi_runtime import Runtime

    def message(name):
        made = SimpleNamespace(name=name, done=False)
        made.test = lambda: made.done
        return made

    runtime = object.__new__(Runtime)
    runtime.pending = deque()
    messages = [message(index) for index in range(30)]
    for each in messages:
        runtime.keep(each)
    assert len(runtime.pending) == 30
    for each in messages[1:]:
        each.done = True
    runtime.test_pending(30)
    assert [each.name for each in runtime.pending] == [0]


def test_a_scatter_waits_for_the_receivers_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    from allranks.runtime.world.mpi.mpi_buffers import Buffer
    from allranks.runtime.world.mpi.mpi_collectives import Calls

    order: list[str] = []
    monkeypatch.setattr(Buffer, "wait_ready", lambda self: order.append("ready"))
    monkeypatch.setattr(Buffer, "spec", lambda self: [])
    comm = SimpleNamespace(
        Get_rank=lambda: 1, Get_size=lambda: 2, Scatterv=lambda *words: order.append("Scatterv")
    )
    Calls(None, comm).scatter(torch.empty(2), [], 0)()
    assert order == ["ready", "Scatterv"]


def test_a_caught_exit_is_forgotten_and_one_on_its_way_is_not(ending) -> None:
    ending._record(3)
    assert ending.exit_code() == 3
    ending.forget_exit()
    assert ending.exit_code() == 0
    with pytest.raises(SystemExit):
        _leave(ending)
    assert ending.exit_code() == 6
    ending.record_pending_exit()
    assert ending.exit_code() == 0


def _leave(ending) -> None:
    try:
        raise SystemExit(6)
    finally:
        ending.record_pending_exit()
        ending.forget_exit()


def test_an_exit_of_another_thread_ends_that_thread_alone(ending) -> None:
    other = threading.Thread(target=ending._record, args=(3,))
    other.start()
    other.join()
    assert ending.exit_code() == 0
