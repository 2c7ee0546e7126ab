"""Starts Horovod under any launcher: its variables, its rendezvous server, ``hvd.init()``.

    horovodrun, our agent    HOROVOD_* are set, the server at HOROVOD_GLOO_RENDEZVOUS_ADDR runs
    mpirun, an MPI build     MPI knows everything
    anything else            rank 0 starts the server and sends its address through torch.distributed

horovod and torch are imported in functions only.
"""

from __future__ import annotations

import importlib
import importlib.util
import mmap
import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from allranks.errors import MissingDependencyError, WorldError
from allranks.runtime.world import process_group
from allranks.runtime.world.communicator import get_communicator
from allranks.runtime.world.endpoints import route_address
from allranks.runtime.world.env_variables import read_int
from allranks.runtime.world.launcher_env import mpi_launchers as mpi
from allranks.runtime.world.model import World

ADDRESS, PORT = "HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"
_RENDEZVOUS_SECONDS = "300"
"""Horovod's own default is 30: ranks on a slow disk start further apart."""

_SONAMES = {
    b"\0libmpi.so.40\0": "openmpi",
    b"\0libmpi.so.12\0": "mpich",  # and Intel MPI
    b"\0libmpi": "unknown",
}
"""The MPI libraries that a file may link, in this order."""


class RankInfo(Protocol):
    """A `World`, or the agent's short form of one."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def local_rank(self) -> int: ...
    @property
    def local_size(self) -> int: ...
    @property
    def node_rank(self) -> int: ...
    @property
    def nodes(self) -> int: ...
    @property
    def host(self) -> str: ...


def gloo_variables(
    rank_info: RankInfo, address: str, port: int, *, cross: tuple[int, int] | None = None
) -> dict[str, str]:
    """Return the variables that horovodrun sets for gloo.

    ``cross``: position and number of the ranks with this local rank, where nodes hold different
    numbers of ranks.
    """
    cross_rank, cross_size = cross or (rank_info.node_rank, rank_info.nodes)
    values = {
        "RANK": rank_info.rank,
        "SIZE": rank_info.size,
        "LOCAL_RANK": rank_info.local_rank,
        "LOCAL_SIZE": rank_info.local_size,
        "CROSS_RANK": cross_rank,
        "CROSS_SIZE": cross_size,
        "HOSTNAME": rank_info.host,
        "GLOO_RENDEZVOUS_ADDR": address,
        "GLOO_RENDEZVOUS_PORT": port,
        "CONTROLLER": "gloo",
        "CPU_OPERATIONS": "gloo",
    }
    return {f"HOROVOD_{name}": str(value) for name, value in values.items()}


def network_variables(address: str, env: Mapping[str, str]) -> dict[str, str]:
    """Return the interface that leads to the server, and a longer time limit; what the user set stays.

    Without an interface gloo looks up the host's own name, often 127.0.1.1.
    """
    asked = env.get("GLOO_SOCKET_IFNAME", "").partition(",")[0].strip()
    interface = asked or route_address(address)[1] or ""
    chosen = {
        "HOROVOD_GLOO_IFACE": interface,
        "HOROVOD_GLOO_TIMEOUT_SECONDS": _RENDEZVOUS_SECONDS,
    }
    return {name: value for name, value in chosen.items() if value and not env.get(name)}


def is_configured(rank_info: RankInfo, env: Mapping[str, str]) -> bool:
    """Whether HOROVOD_* are set for this very rank, with the server's address."""
    same = (
        read_int(env, "HOROVOD_RANK") == rank_info.rank
        and read_int(env, "HOROVOD_SIZE") == rank_info.size
    )
    return same and bool(env.get(ADDRESS) and env.get(PORT))


def require_horovod() -> Any:
    """Return the module ``horovod.torch``; an error names the command that installs it."""
    advice = "Install it with: allranks frameworks install horovod"
    found = importlib.util.find_spec("horovod")
    if found is None:
        raise MissingDependencyError(
            f"The horovod strategy needs Horovod, which is not installed.\n{advice}"
        )
    if not _extensions("torch"):
        raise MissingDependencyError(
            "Horovod is installed, but was built without PyTorch (HOROVOD_WITH_PYTORCH=1).\n"
            f"{advice}"
        )
    return importlib.import_module("horovod.torch")


def mpi_mismatch(env: Mapping[str, str]) -> str:
    """Return why Horovod does not work with the mpirun that started us; "" when it does.

    Horovod would not fail: every rank would run alone.
    """
    found = mpi.read(env)
    linked = _linked_mpi()
    if found is None or linked is None:
        return ""
    if not linked:
        return "The installed Horovod was built without MPI"
    theirs = "openmpi" if found.launcher == "openmpi" else "mpich"
    if linked in (theirs, "unknown"):
        return ""
    return (
        f"The installed Horovod was built with {linked}, and {found.launcher}'s mpirun started it"
    )


def _linked_mpi() -> str | None:
    """Return the MPI that Horovod's libraries link: "" for none, None without Horovod."""
    found = [*_extensions("torch"), *_extensions("tensorflow")]
    for path in found:
        for word, family in _SONAMES.items():
            if _holds(path, word):
                return family
    return "" if found else None


def find_master_address(world: World) -> World:
    """Find rank 0's address through Horovod itself, on several nodes without MASTER_ADDR."""
    if world.size == 1 or world.master_addr is not None:
        return world
    if not (is_configured(world, os.environ) or _by_mpi(world)):
        return world
    hvd = require_horovod()
    hvd.init()
    _check(hvd, world)
    hosts = hvd.allgather_object(socket.gethostname(), name="allranks.hosts")
    address = _reachable(hosts, os.environ.get(ADDRESS)) if hvd.rank() == 0 else None
    os.environ["MASTER_ADDR"] = hvd.broadcast_object(address, root_rank=0, name="allranks.address")
    return process_group.detect_again()


def init_horovod(world: World) -> Any:
    """Call ``hvd.init()``, whatever started this process; return ``horovod.torch``. Collective.

    torch.distributed must run: without a launcher that knows Horovod, rank 0 starts the server.
    """
    hvd = require_horovod()
    if not hvd.is_initialized():
        if world.size == 1:
            os.environ.update(_single_process_variables())
        elif not is_configured(world, os.environ) and not _by_mpi(world):
            os.environ.update(_start_server(world))
        hvd.init()
    _check(hvd, world)
    return hvd


def _by_mpi(world: World) -> bool:
    """Whether mpirun started these ranks and Horovod works with its MPI."""
    found = mpi.read(os.environ)
    agrees = found is not None and (found.rank, found.size) == (world.rank, world.size)
    uses_mpi = os.environ.get("HOROVOD_CONTROLLER", "mpi").lower() == "mpi"
    return agrees and uses_mpi and not mpi_mismatch(os.environ)


def _single_process_variables() -> dict[str, str]:
    """Return the variables of one process, without the MPI or the server of an outer job."""
    for name in (ADDRESS, PORT):
        os.environ.pop(name, None)
    ones = {"RANK": "0", "LOCAL_RANK": "0", "CROSS_RANK": "0", "CONTROLLER": "gloo"}
    ones |= {"SIZE": "1", "LOCAL_SIZE": "1", "CROSS_SIZE": "1", "CPU_OPERATIONS": "gloo"}
    return {f"HOROVOD_{name}": value for name, value in ones.items()} | {"HOROVOD_GLOO_IFACE": "lo"}


def _start_server(world: World) -> dict[str, str]:
    """Start the server on rank 0; every rank gets its address and its own variables. Collective."""
    from allranks.runtime.world.horovod_rendezvous import open_rendezvous_server

    ranks, endpoint = get_communicator(world.size), ("", 0)
    if world.is_main:
        own = "127.0.0.1" if world.nodes == 1 else route_address(world.endpoint()[0])[0]
        endpoint = open_rendezvous_server(own).serve_in_background()
    address, port = ranks.broadcast(endpoint)
    positions = ranks.all_gather((world.node_rank, world.local_rank))
    same = sorted(node for node, local in positions if local == world.local_rank)
    cross = same.index(world.node_rank), len(same)
    os.environ.pop("HOROVOD_GLOO_IFACE", None)  # an outer job's
    return gloo_variables(world, address, port, cross=cross) | network_variables(
        address, os.environ
    )


def _check(hvd: Any, world: World) -> None:
    if (hvd.rank(), hvd.size()) == (world.rank, world.size):
        return
    raise WorldError(
        f"Horovod numbers this process rank {hvd.rank()} of {hvd.size()}, but it is rank "
        f"{world.rank} of {world.size} ({world.reason}).\nUnder mpirun, Horovod must be built with "
        "the MPI whose mpirun it is: try HOROVOD_CONTROLLER=gloo, or another --launcher."
    )


def _reachable(hosts: Sequence[str], server: str | None) -> str:
    """Return this machine's address on the route to another node."""
    own = socket.gethostname()
    peers = [host for host in hosts if host != own] or [own]
    try:
        return route_address(peers[0])[0]
    except (
        WorldError
    ):  # a name that only the launcher can resolve: the server's address has a route
        if not server:
            raise
        return route_address(server)[0]


def _extensions(framework: str) -> list[Path]:
    found = importlib.util.find_spec("horovod")
    folders = found.submodule_search_locations or () if found else ()
    return [path for folder in folders for path in Path(folder, framework).glob("mpi_lib*.so")]


def _holds(path: Path, word: bytes) -> bool:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(word) >= 0
