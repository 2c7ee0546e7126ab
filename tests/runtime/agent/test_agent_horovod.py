"""The table by which Horovod's ranks find each other, and what the agent tells each of them."""

from __future__ import annotations

import http.client
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from allranks.errors import WorldError
from allranks.runtime.agent.rank_environment import RankPlacement, rank_environment
from allranks.runtime.world import horovod_init as horovod
from allranks.runtime.world.horovod_rendezvous import (
    HorovodRendezvousServer,
    open_rendezvous_server,
)

TOLD = {"HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1", "HOROVOD_GLOO_RENDEZVOUS_PORT": "24001"}


def place(rank: int = 3, launcher: str = "srun") -> RankPlacement:
    return RankPlacement(
        rank, 4, rank % 2, 2, rank // 2, 2, "127.0.0.1", 24000, "node2", launcher, ""
    )


@pytest.fixture
def table() -> Iterator[HorovodRendezvousServer]:
    with open_rendezvous_server("127.0.0.1") as server:
        server.serve_in_background()
        yield server


def ask(
    table: HorovodRendezvousServer, method: str, path: str, body: bytes | None = None
) -> tuple[int, bytes]:
    line = http.client.HTTPConnection(table.server_name, table.server_port, timeout=10)
    line.request(method, path, body)
    answer = line.getresponse()
    return answer.status, answer.read()


def meet(table: HorovodRendezvousServer, scope: str, words: dict[int, bytes]) -> None:
    """As gloo does it: every rank puts two keys."""
    for rank, value in words.items():
        assert ask(table, "PUT", f"/{scope}/rank_{rank}", b"host")[0] == 200
        assert ask(table, "PUT", f"/{scope}/{rank}", value)[0] == 200


def test_a_key_is_there_when_it_was_put(table: HorovodRendezvousServer) -> None:
    assert ask(table, "GET", "/global/0") == (404, b"")
    meet(table, "global", {0: b"\x00address"})
    assert ask(table, "GET", "/global/0") == (200, b"\x00address")
    assert ask(table, "GET", "/local_node1/0")[0] == 404
    assert ask(table, "GET", "/nonsense")[0] == 400


def test_a_scope_is_empty_when_all_have_left_it(table: HorovodRendezvousServer) -> None:
    """Else a second hvd.init() would find the first one's addresses."""
    meet(table, "global", {0: b"a", 1: b"b"})
    meet(table, "cross_0", {0: b"c"})
    assert ask(table, "DELETE", "/global/1")[0] == 200
    assert ask(table, "GET", "/global/0") == (200, b"a")
    assert ask(table, "DELETE", "/global/0")[0] == 200
    assert ask(table, "GET", "/global/0")[0] == ask(table, "GET", "/global/rank_1")[0] == 404
    assert ask(table, "GET", "/cross_0/0") == (200, b"c")
    meet(table, "global", {0: b"new"})
    assert ask(table, "GET", "/global/0") == (200, b"new")


def test_the_port_is_tried_by_taking_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        with open_rendezvous_server("127.0.0.1", number) as table:
            assert table.server_port != number
            assert table.server_name == "127.0.0.1"


def test_the_server_says_where_it_is_and_ends_with_the_shell() -> None:
    server = (
        f"{sys.executable} -m allranks.runtime.agent horovod-server --host localhost --port 23999"
    )
    shell = f"read -r a p < <(exec {server}); echo $a $p $!; exit 0"
    done = subprocess.run(
        ["bash", "-c", shell], capture_output=True, text=True, timeout=60, check=True
    )
    address, port, _ = done.stdout.split()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection((address, int(port)), timeout=5)


def test_ipv6_is_refused_with_a_reason() -> None:
    with pytest.raises(WorldError, match="IPv4 only"):
        open_rendezvous_server("fe80::1")


def test_each_rank_is_told_its_place_where_a_table_is_served() -> None:
    env = rank_environment(place(), TOLD, 1)
    assert env["HOROVOD_RANK"] == "3"
    assert env["HOROVOD_CROSS_RANK"] == env["HOROVOD_LOCAL_RANK"] == "1"
    assert env["HOROVOD_HOSTNAME"] == "node2"
    assert env["HOROVOD_GLOO_IFACE"] == "lo"
    assert env["HOROVOD_GLOO_RENDEZVOUS_PORT"] == "24001"
    mine = rank_environment(place(), TOLD | {"HOROVOD_GLOO_IFACE": "ib0"}, 1)
    assert mine["HOROVOD_GLOO_IFACE"] == "ib0"


def test_what_horovodrun_told_stays() -> None:
    told = TOLD | horovod.gloo_variables(place(), "127.0.0.1", 24001)
    told["HOROVOD_HOSTNAME"] = "localhost"
    env = rank_environment(place(), told, 1)
    assert {name: env[name] for name in told} == told
    stale = rank_environment(place(2), told, 1)
    assert stale["HOROVOD_RANK"] == "2"


def test_without_a_table_nothing_is_told() -> None:
    env = rank_environment(place(), {"ALLRANKS_FRAMEWORK": "horovod"}, 1)
    assert not [name for name in env if name.startswith("HOROVOD_")]


@pytest.mark.parametrize(
    ("linked", "why"),
    [("", "built without MPI"), ("mpich", "built with mpich, and openmpi's"), ("openmpi", "")],
)
def test_mpirun_with_a_horovod_of_another_mpi_is_refused(
    linked: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(horovod, "_linked_mpi", lambda: linked)
    values = {"RANK": 3, "SIZE": 4, "LOCAL_RANK": 1, "LOCAL_SIZE": 2}
    env = {f"OMPI_COMM_WORLD_{name}": str(value) for name, value in values.items()}
    env["ALLRANKS_FRAMEWORK"] = "horovod"
    if not why:
        assert "HOROVOD_RANK" not in rank_environment(place(), env, 1)
        return
    with pytest.raises(WorldError, match=why):
        rank_environment(place(), env, 1)
