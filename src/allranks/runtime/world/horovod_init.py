"""Horovod under any launcher: what its ranks must be told, and how a training starts it.

    horovodrun, our agent    HOROVOD_* are set, the table at HOROVOD_GLOO_RENDEZVOUS_ADDR is served
    mpirun, an MPI build     MPI tells everything
    anything else            rank 0 serves the table and tells the others through torch.distributed

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
from allranks.runtime.world.endpoints import route_address
from allranks.runtime.world.env_variables import number
from allranks.runtime.world.model import World
from allranks.runtime.world.sources import mpi_launchers as mpi

ADDRESS, PORT = "HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"
_MEETING_SECONDS = "300"
"""Horovod's own default is 30: ranks on a slow disk start further apart."""

_SONAMES = {
    b"\0libmpi.so.40\0": "openmpi",
    b"\0libmpi.so.12\0": "mpich",  # and Intel MPI
    b"\0libmpi": "unknown",
}
"""What a library that links MPI names, in this order."""


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
    place: RankInfo, address: str, port: int, *, cross: tuple[int, int] | None = None
) -> dict[str, str]:
    """What horovodrun sets for gloo. ``cross``: this rank among those of its local rank on all nodes,
    where nodes hold different numbers of ranks."""
    cross_rank, cross_size = cross or (place.node_rank, place.nodes)
    values = {
        "RANK": place.rank,
        "SIZE": place.size,
        "LOCAL_RANK": place.local_rank,
        "LOCAL_SIZE": place.local_size,
        "CROSS_RANK": cross_rank,
        "CROSS_SIZE": cross_size,
        "HOSTNAME": place.host,
        "GLOO_RENDEZVOUS_ADDR": address,
        "GLOO_RENDEZVOUS_PORT": port,
        "CONTROLLER": "gloo",
        "CPU_OPERATIONS": "gloo",
    }
    return {f"HOROVOD_{name}": str(value) for name, value in values.items()}


def network_variables(address: str, env: Mapping[str, str]) -> dict[str, str]:
    """The interface that leads to the table, and time to come; what the user set stays.

    Without an interface gloo looks up the host's own name, often 127.0.1.1.
    """
    asked = env.get("GLOO_SOCKET_IFNAME", "").partition(",")[0].strip()
    interface = asked or route_address(address)[1] or ""
    chosen = {
        "HOROVOD_GLOO_IFACE": interface,
        "HOROVOD_GLOO_TIMEOUT_SECONDS": _MEETING_SECONDS,
    }
    return {name: value for name, value in chosen.items() if value and not env.get(name)}


def is_configured(place: RankInfo, env: Mapping[str, str]) -> bool:
    """Whether HOROVOD_* are set for this very rank, and a table is named."""
    same = number(env, "HOROVOD_RANK") == place.rank and number(env, "HOROVOD_SIZE") == place.size
    return same and bool(env.get(ADDRESS) and env.get(PORT))


def require_horovod() -> Any:
    """The module ``horovod.torch``, or the error that says how to get it."""
    advice = "Install it with: allranks frameworks install horovod"
    found = importlib.util.find_spec("horovod")
    if found is None:
        raise MissingDependencyError(
            f"The horovod strategy needs Horovod, which is not here.\n{advice}"
        )
    if not _extensions("torch"):
        raise MissingDependencyError(
            "Horovod is installed, but was built without PyTorch (HOROVOD_WITH_PYTORCH=1).\n"
            f"{advice}"
        )
    return importlib.import_module("horovod.torch")


def mpi_mismatch(env: Mapping[str, str]) -> str:
    """Why Horovod cannot ask the MPI whose mpirun started us for its place; "" when it can.

    It would not fail: every rank would believe to be alone.
    """
    place = mpi.read(env)
    linked = _linked_mpi()
    if place is None or linked is None:
        return ""
    if not linked:
        return "Horovod here was built without MPI"
    theirs = "openmpi" if place.launcher == "openmpi" else "mpich"
    if linked in (theirs, "unknown"):
        return ""
    return f"Horovod here was built with {linked}, and {place.launcher}'s mpirun started it"


def _linked_mpi() -> str | None:
    """The MPI that Horovod's libraries link: "" for none, None where there is no Horovod to see."""
    found = [*_extensions("torch"), *_extensions("tensorflow")]
    for path in found:
        for word, family in _SONAMES.items():
            if _holds(path, word):
                return family
    return "" if found else None


def find_master_address(world: World) -> World:
    """Several nodes and no MASTER_ADDR: Horovod itself meets first and hands rank 0's address round."""
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
    return process_group.read_again()


def init_horovod(world: World) -> Any:
    """``hvd.init()``, whatever started this process; returns ``horovod.torch``. Collective.

    torch.distributed must run: without a launcher that knows Horovod, rank 0 serves the table.
    """
    hvd = require_horovod()
    if not hvd.is_initialized():
        if world.size == 1:
            os.environ.update(_alone())
        elif not is_configured(world, os.environ) and not _by_mpi(world):
            os.environ.update(_tell(world))
        hvd.init()
    _check(hvd, world)
    return hvd


def _by_mpi(world: World) -> bool:
    """mpirun started these ranks and Horovod can ask MPI for its place."""
    place = mpi.read(os.environ)
    told = place is not None and (place.rank, place.size) == (world.rank, world.size)
    asked = os.environ.get("HOROVOD_CONTROLLER", "mpi").lower() == "mpi"
    return told and asked and not mpi_mismatch(os.environ)


def _alone() -> dict[str, str]:
    """One process: neither MPI nor a table of an outer job is asked."""
    for name in (ADDRESS, PORT):
        os.environ.pop(name, None)
    ones = {"RANK": "0", "LOCAL_RANK": "0", "CROSS_RANK": "0", "CONTROLLER": "gloo"}
    ones |= {"SIZE": "1", "LOCAL_SIZE": "1", "CROSS_SIZE": "1", "CPU_OPERATIONS": "gloo"}
    return {f"HOROVOD_{name}": value for name, value in ones.items()} | {"HOROVOD_GLOO_IFACE": "lo"}


def _tell(world: World) -> dict[str, str]:
    """Rank 0 serves the table; everyone learns where, and counts its neighbours. Collective."""
    import torch.distributed as dist

    from allranks.runtime.world.horovod_rendezvous import open_rendezvous_server

    box: list[Any] = [None]
    if world.is_main:
        own = "127.0.0.1" if world.nodes == 1 else route_address(world.endpoint()[0])[0]
        box = [open_rendezvous_server(own).serve_in_background()]
    dist.broadcast_object_list(box, src=0)
    address, port = box[0]
    places: list[Any] = [None] * world.size
    dist.all_gather_object(places, (world.node_rank, world.local_rank))
    same = sorted(node for node, local in places if local == world.local_rank)
    cross = same.index(world.node_rank), len(same)
    os.environ.pop("HOROVOD_GLOO_IFACE", None)  # an outer job's, else it would be told already
    return gloo_variables(world, address, port, cross=cross) | network_variables(
        address, os.environ
    )


def _check(hvd: Any, world: World) -> None:
    if (hvd.rank(), hvd.size()) == (world.rank, world.size):
        return
    raise WorldError(
        f"Horovod takes this process for rank {hvd.rank()} of {hvd.size()}, but it is rank "
        f"{world.rank} of {world.size} ({world.reason}).\nUnder mpirun, Horovod must be built with "
        "the MPI whose mpirun it is: try HOROVOD_CONTROLLER=gloo, or another --launcher."
    )


def _reachable(hosts: Sequence[str], table: str | None) -> str:
    """This machine's address on the way to another node."""
    own = socket.gethostname()
    peers = [host for host in hosts if host != own] or [own]
    try:
        return route_address(peers[0])[0]
    except WorldError:  # a name that only the launcher can resolve: the table's address leads out
        if not table:
            raise
        return route_address(table)[0]


def _extensions(framework: str) -> list[Path]:
    found = importlib.util.find_spec("horovod")
    folders = found.submodule_search_locations or () if found else ()
    return [path for folder in folders for path in Path(folder, framework).glob("mpi_lib*.so")]


def _holds(path: Path, word: bytes) -> bool:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(word) >= 0
