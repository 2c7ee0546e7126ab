"""The rendezvous over real sockets: strangers, lost connections, ranks that come twice or not at all."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from allranks.errors import WorldError
from allranks.runtime.world.endpoints import FIRST_PORT
from allranks.runtime.world.rendezvous import Rendezvous, make_token

READY = b"ready\n"
LINE = b"token 1 old\n"
Values = Future[list[str]]


@pytest.fixture
def port() -> int:
    """A free port outside the range that is tried, so that it is the only one."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as server:
            found = int(server.getsockname()[1])
        if found > FIRST_PORT + 12767:
            return found


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as made:
        yield made


def rendezvous(rank: int, size: int, port: int, **more: Any) -> Rendezvous:
    options: dict[str, Any] = {"seconds": 10.0} | more
    return Rendezvous(rank, size, "node1", "127.0.0.1", port, "token", **options)


def exchange(pool: ThreadPoolExecutor, rank: int, size: int, port: int, **more: Any) -> Values:
    return pool.submit(rendezvous(rank, size, port, **more).exchange, f"value{rank}")


def connect(port: int, *lines: bytes) -> socket.socket:
    """Connect by hand, as soon as the server is there."""
    limit = time.monotonic() + 10
    while True:
        try:
            client = socket.create_connection(("127.0.0.1", port), timeout=10)
            break
        except ConnectionRefusedError:
            assert time.monotonic() < limit
            time.sleep(0.01)
    for line in lines:
        client.sendall(line)
    return client


def answer(client: socket.socket) -> str:
    with client.makefile() as file:
        return file.readline().strip()


def ask(port: int, line: bytes) -> str:
    with connect(port, line) as client:
        return answer(client)


def test_every_rank_gets_the_values_of_all(port: int, pool: ThreadPoolExecutor) -> None:
    ranks = [exchange(pool, rank, 3, port) for rank in (2, 1, 0)]
    assert [rank.result(10) for rank in ranks] == [["value0", "value1", "value2"]] * 3


def test_only_the_ranks_of_this_launch_are_let_in(port: int, pool: ThreadPoolExecutor) -> None:
    server = exchange(pool, 0, 3, port)
    assert ask(port, b"other 1 x\n") == "other launch"
    assert ask(port, b"GET / HTTP/1.0\n") == "other launch"
    assert ask(port, b"token 7 x\n") == "rank taken"
    assert ask(port, b"token 0 x\n") == "rank taken"
    with connect(port, LINE) as waits:
        assert answer(waits) == "welcome"
        waits.sendall(READY)
        assert ask(port, LINE) == "rank taken", "another process of one rank"
        exchange(pool, 2, 3, port)
        assert server.result(10) == ["value0", "old", "value2"]
        assert answer(waits) == '["value0", "old", "value2"]'


@pytest.mark.parametrize("sent", [(LINE,), (LINE, b"rea"), (b"other 1 old\n", READY)])
def test_a_client_that_went_away_is_not_counted(
    sent: tuple[bytes, ...], port: int, pool: ThreadPoolExecutor
) -> None:
    server = exchange(pool, 0, 2, port)
    connect(port, *sent).close()
    client = exchange(pool, 1, 2, port)
    assert server.result(10) == client.result(10) == ["value0", "value1"]


def test_a_rank_that_lost_its_connection_may_come_again(
    port: int, pool: ThreadPoolExecutor
) -> None:
    server = exchange(pool, 0, 3, port)
    with connect(port, LINE) as first:
        assert answer(first) == "welcome"
        first.sendall(READY)
    ranks = [exchange(pool, rank, 3, port) for rank in (1, 2)]
    values = ["value0", "value1", "value2"]
    assert [each.result(10) for each in (server, *ranks)] == [values] * 3


def test_a_client_that_sends_nothing_holds_nobody_up(port: int, pool: ThreadPoolExecutor) -> None:
    """The other client gives up waiting meanwhile, and its first connection is not counted."""
    server = exchange(pool, 0, 2, port, greeting_seconds=0.3)
    with connect(port):
        client = exchange(pool, 1, 2, port, answer_seconds=0.1)
        assert server.result(10) == client.result(10) == ["value0", "value1"]


def test_a_client_that_ends_while_it_waits_is_named(port: int, pool: ThreadPoolExecutor) -> None:
    server = exchange(pool, 0, 3, port)
    first, second = connect(port, LINE, READY), connect(port, b"token 2 x\n")
    assert answer(second) == "welcome"  # so the first was counted
    first.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    first.close()
    second.sendall(READY)
    with second, pytest.raises(WorldError, match=r"Rank 1 \(old\) connected and ended before"):
        server.result(10)


def test_the_missing_ranks_and_what_was_found_are_named(port: int) -> None:
    with pytest.raises(WorldError, match=r"2 of 3 workers did not connect to .*: 1, 2"):
        rendezvous(0, 3, port, seconds=0.2, member="worker").exchange("x")
    with pytest.raises(WorldError, match=rf"did not find rank 0 at .*{port}: Connection refused"):
        rendezvous(1, 3, port, seconds=0.2).exchange("x")


def test_other_programs_at_the_port_are_reported() -> None:
    def found(server: socket.socket) -> str:
        port = server.getsockname()[1]
        with pytest.raises(WorldError) as error:
            rendezvous(1, 2, port, seconds=0.3, answer_seconds=0.2).exchange("x")
        return str(error.value)

    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert "no answer" in found(silent)
    with socket.create_server(("127.0.0.1", 0)) as chatty:

        def greet() -> None:
            while True:
                try:
                    peer, _ = chatty.accept()
                except OSError:
                    return
                with peer:
                    peer.sendall(b"SSH-2.0-OpenSSH_9.2\n")
                    peer.recv(100)

        threading.Thread(target=greet, daemon=True).start()
        assert "another program" in found(chatty)


def test_a_loopback_address_is_not_reachable_from_outside(
    port: int, pool: ThreadPoolExecutor
) -> None:
    server = exchange(pool, 0, 2, port)
    connect(port).close()
    outside = socket.gethostbyname(socket.gethostname())
    if not outside.startswith("127."):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((outside, port), timeout=5).close()
    exchange(pool, 1, 2, port)
    server.result(10)


def test_tokens_differ_between_launches() -> None:
    assert make_token("job/1", 2) == make_token("job/1", 2) != make_token("job/2", 2)
