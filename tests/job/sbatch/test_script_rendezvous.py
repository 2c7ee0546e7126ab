"""Where the nodes meet: the address, the port, the head node, run by bash among fake nodes."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from script_rig import NOTE, Stage, Told, plan_of

from allranks.job.sbatch import render

ROUTE = "10.0.0.2 dev eth7 src 127.0.0.1 uid 0 \\    cache"
IP = (
    NOTE
    + 'if [[ $2 == route ]]; then echo "$IP_ROUTE"; else echo "$IP_ADDR"; fi; exit "${IP_CODE:-0}"\n'
)


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    made = Stage(tmp_path)
    made.fake("ip", IP)
    made.fake("getent", NOTE + 'echo "10.0.0.2 STREAM n2"\n')
    return made


@pytest.fixture
def job_id() -> str:
    """A job whose first four ports are free here."""
    return next(str(number) for number in range(100, 700) if all(map(is_free, ports(number))))


def ports(job: int) -> range:
    first = 20000 + job * 16 % 12000
    return range(first, first + 4)


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


@pytest.fixture
def first_port(job_id: str) -> int:
    return ports(int(job_id))[0]


@pytest.fixture
def listeners(first_port: int) -> Iterator[list[socket.socket]]:
    """Programs that hold the first two ports."""
    servers = [socket.create_server(("127.0.0.1", first_port + number)) for number in range(2)]
    yield servers
    for server in servers:
        server.close()


def meet(stage: Stage, job_id: str, fields: dict[str, Any] | None = None, **env: str) -> Told:
    plan = plan_of(**{"nodes": 2, "nprocs": 4, **(fields or {})})
    return stage.run(render(plan), plan, **{"IP_ROUTE": ROUTE, "SLURM_JOB_ID": job_id, **env})


def place(told: Told) -> tuple[str, ...]:
    assert told.code == 0, told.output
    return tuple(told.env[name] for name in ("MASTER_ADDR", "MASTER_PORT", "endpoint", "interface"))


def test_the_address_is_the_one_of_the_route(stage: Stage, job_id: str, first_port: int) -> None:
    told = meet(stage, job_id)
    assert place(told) == ("127.0.0.1", str(first_port), f"127.0.0.1:{first_port}", "eth7")
    assert told.of("getent") == [("ahosts", "n2")]
    assert told.of("ip") == [("-o", "route", "get", "10.0.0.2")]
    assert told.env["WORLD_SIZE"] == "4"
    assert told.env["LOCAL_WORLD_SIZE"] == "2"


@pytest.mark.usefixtures("listeners")
@pytest.mark.parametrize("nodes", [1, 2])
def test_ports_that_are_taken_are_passed_over(
    stage: Stage, job_id: str, first_port: int, nodes: int
) -> None:
    told = meet(stage, job_id, {"nodes": nodes})
    assert told.env["MASTER_PORT"] == str(first_port + 2)
    assert told.env["endpoint"] == f"127.0.0.1:{first_port + 2}"


def test_one_node_meets_on_loopback(stage: Stage, job_id: str, first_port: int) -> None:
    told = meet(stage, job_id, {"nodes": 1})
    assert (told.env["MASTER_ADDR"], told.env["MASTER_PORT"]) == ("127.0.0.1", str(first_port))
    assert told.of("ip") == []


def test_a_port_can_be_given(stage: Stage, job_id: str) -> None:
    for nodes in (1, 2):
        told = meet(stage, job_id, {"nodes": nodes, "port": 31234})
        assert told.env["MASTER_PORT"] == "31234"


def test_jobs_of_neighbouring_ids_stay_apart_and_below_the_ephemeral_ports(stage: Stage) -> None:
    found = [
        int(meet(stage, str(job), {"nodes": 1}).env["MASTER_PORT"])
        for job in (1, 2, 749, 750, 10**7)
    ]
    assert all(20000 <= port < 32768 for port in found)
    assert abs(found[0] - found[1]) == 16


def test_ipv6_has_brackets(stage: Stage, job_id: str, first_port: int) -> None:
    told = meet(stage, job_id, IP_ROUTE="fd00::2 from :: dev ib0 src fd00::1 metric 0")
    assert place(told) == ("fd00::1", str(first_port), f"[fd00::1]:{first_port}", "ib0")


def test_an_interface_can_be_given(stage: Stage, job_id: str) -> None:
    line = "2: ib0    inet 127.0.0.5/24 brd 127.0.0.255 scope global ib0"
    told = meet(stage, job_id, {"interface": "ib0"}, IP_ADDR=line)
    assert place(told)[0] == "127.0.0.5"
    assert told.env["interface"] == "ib0"
    assert told.of("ip") == [("-o", "addr", "show", "dev", "ib0", "scope", "global")]


def test_an_interface_that_is_not_there_is_told(stage: Stage, job_id: str) -> None:
    told = meet(stage, job_id, {"interface": "ib9"}, IP_CODE="1", IP_ADDR="")
    assert told.code == 1
    assert "No address of n1 was found that the other nodes reach." in told.output
    assert told.of("python") == []


@pytest.mark.parametrize(
    "env", [{"IP_ROUTE": "local 10.0.0.2 dev lo src 10.0.0.2"}, {"IP_CODE": "1", "IP_ROUTE": ""}]
)
def test_without_a_route_the_heads_name_serves(
    stage: Stage, job_id: str, first_port: int, env: dict[str, str]
) -> None:
    assert place(meet(stage, job_id, **env)) == ("n1", str(first_port), f"n1:{first_port}", "")


def real_interface() -> str | None:
    names = sorted(path.name for path in Path("/sys/class/net").iterdir())
    return next((name for name in names if name != "lo"), None)


@pytest.mark.skipif(not real_interface(), reason="there is no network interface but lo")
def test_nccl_and_gloo_follow_the_interface(stage: Stage, job_id: str) -> None:
    name = str(real_interface())
    told = meet(stage, job_id, IP_ROUTE=f"10.0.0.2 dev {name} src 127.0.0.1")
    assert (told.env["NCCL_SOCKET_IFNAME"], told.env["GLOO_SOCKET_IFNAME"]) == (f"={name}", name)
    told = meet(
        stage,
        job_id,
        {"env": {"NCCL_SOCKET_IFNAME": "mine"}},
        IP_ROUTE=f"x dev {name} src 127.0.0.1",
    )
    assert (told.env["NCCL_SOCKET_IFNAME"], told.env["GLOO_SOCKET_IFNAME"]) == ("mine", name)


def test_an_interface_of_the_head_alone_is_not_forced_on_others(stage: Stage, job_id: str) -> None:
    assert "NCCL_SOCKET_IFNAME" not in meet(stage, job_id).env


HEAD = {
    # (rank, local rank, node rank, node) of every task, in the order of the tasks
    "block": [(2, 0, 1, 0), (3, 1, 1, 0), (0, 0, 0, 1), (1, 1, 0, 1)],
    "cyclic": [(3, 0, 1, 0), (0, 0, 0, 1), (1, 1, 1, 0), (2, 1, 0, 1)],
}


@pytest.mark.parametrize("distribution", HEAD)
def test_rank_0_is_on_the_head_node(stage: Stage, job_id: str, distribution: str) -> None:
    fields = {"head": "n2", "distribution": distribution}
    told = meet(stage, job_id, fields, DISTRIBUTION=distribution)
    assert told.code == 0, told.output
    ranks = [tuple(map(int, call)) for call in told.of("rank")]
    assert ranks == HEAD[distribution]
    assert sorted(rank[0] for rank in ranks) == [0, 1, 2, 3]


def test_the_head_node_finds_its_own_address(stage: Stage, job_id: str, first_port: int) -> None:
    told = meet(stage, job_id, {"head": "n2"})
    asked = told.of("srun")[0]
    assert asked[:4] == ("--nodes=1", "--ntasks=1", "--overlap", "--nodelist=n2")
    assert asked[4:] == (
        "bash",
        "-c",
        'find_endpoint "$@"',
        "find_endpoint",
        "n2",
        "n1",
        "",
        str(first_port),
    )
    assert told.env["MASTER_ADDR"] == "127.0.0.1"


def test_the_first_node_needs_no_step_of_its_own(stage: Stage, job_id: str) -> None:
    assert len(meet(stage, job_id).of("srun")) == 1
    assert len(meet(stage, job_id, SLURMD_NODENAME="login1").of("srun")) == 2


@pytest.mark.parametrize("launcher", ["fork", "torchrun"])
def test_the_head_is_node_0_of_other_launchers(stage: Stage, job_id: str, launcher: str) -> None:
    told = meet(stage, job_id, {"head": "n2", "launcher": launcher})
    if launcher == "fork":
        nodes = [
            call[call.index("--node-rank") + 1] for call in told.of("python") if "ranks" in call
        ]
        assert nodes == ["1", "0"]
    else:
        hosts = [call[call.index("--rdzv-endpoint") + 2] for call in told.of("torchrun")]
        assert hosts == ["--rdzv-conf=is_host=0", "--rdzv-conf=is_host=1"]
