"""Connections that rank 0 must not take for a worker that waits for its list."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from allranks.errors import WorldError
from allranks.runtime.world import worker_discovery as roll_call
from allranks.runtime.world.detection import detect
from allranks.runtime.world.model import World

LINE = b"token 1 old:1\n"


def _world(rank: int, size: int) -> World:
    text = f"rank={rank},size={size},master_addr=elsewhere.invalid,master_port=24000"
    return detect({"ALLRANKS_WORLD": text})


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as door:
        return int(door.getsockname()[1])


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as made:
        yield made


def _greeter(pool: ThreadPoolExecutor, port: int, size: int) -> Future[list[str]]:
    return pool.submit(roll_call._host, _world(0, size), "token", [port], "zero:1", 10)


def _visitor(pool: ThreadPoolExecutor, port: int, rank: int, size: int) -> Future[list[str]]:
    mine = f"worker{rank}:1"
    return pool.submit(roll_call._visit, _world(rank, size), "token", [port], mine, 10)


def _come(port: int, *said: bytes) -> socket.socket:
    """A connection by hand, made as soon as the greeter is there."""
    limit = time.monotonic() + 10
    while True:
        try:
            guest = socket.create_connection(("127.0.0.1", port), timeout=10)
            break
        except ConnectionRefusedError:
            assert time.monotonic() < limit
            time.sleep(0.01)
    for each in said:
        guest.sendall(each)
    return guest


def test_one_that_says_nothing_holds_nobody_up(
    port: int, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The visitor loses its patience meanwhile, and its first connection is not counted."""
    monkeypatch.setattr(roll_call, "_GREETING_SECONDS", 0.3)
    monkeypatch.setattr(roll_call, "_ANSWER_SECONDS", 0.1)
    greeter = _greeter(pool, port, 2)
    with _come(port):
        visitor = _visitor(pool, port, 1, 2)
        assert greeter.result(10) == visitor.result(10) == ["zero:1", "worker1:1"]


@pytest.mark.parametrize("said", [(LINE,), (LINE, b"her"), (b"other 1 old:1\n", b"here\n")])
def test_one_that_went_away_again_is_not_counted(
    said: tuple[bytes, ...], port: int, pool: ThreadPoolExecutor
) -> None:
    greeter = _greeter(pool, port, 2)
    _come(port, *said).close()
    visitor = _visitor(pool, port, 1, 2)
    assert greeter.result(10) == visitor.result(10) == ["zero:1", "worker1:1"]


def test_one_that_comes_twice_counts_by_its_second(port: int, pool: ThreadPoolExecutor) -> None:
    greeter = _greeter(pool, port, 3)
    with _come(port, LINE, b"here\n"), _come(port, b"token 1 new:1\n") as second:
        assert roll_call._line(second, 20) == "welcome"
        second.sendall(b"here\n")
        visitor = _visitor(pool, port, 2, 3)
        assert greeter.result(10) == visitor.result(10) == ["zero:1", "new:1", "worker2:1"]
        assert "new:1" in roll_call._line(second, 100)


def test_one_that_ends_while_it_waits_is_named(port: int, pool: ThreadPoolExecutor) -> None:
    greeter = _greeter(pool, port, 3)
    first = _come(port, LINE, b"here\n")
    second = _come(port, b"token 2 worker2:1\n")
    assert roll_call._line(second, 20) == "welcome"  # so the first was counted
    first.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    first.close()
    second.sendall(b"here\n")
    with second, pytest.raises(WorldError, match=r"Worker 1 \(old:1\) came and went before"):
        greeter.result(10)


def test_on_one_node_nobody_outside_is_listened_to(port: int) -> None:
    with roll_call._first_door([port], _world(0, 2)) as door:
        assert door.getsockname()[0] == "127.0.0.1"
