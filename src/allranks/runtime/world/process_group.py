"""``init()``: torch.distributed from whatever started this process. torch is imported here only.

world = allranks.init()
...
allranks.shutdown()      # optional: the end of the process does it
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import warnings
from dataclasses import replace
from datetime import timedelta
from functools import lru_cache
from typing import Any

from allranks.errors import MissingDependencyError, WorldError
from allranks.runtime.world.detection import detect, launch_id
from allranks.runtime.world.endpoints import (
    candidate_ports,
    derived_port,
    format_endpoint,
    route_address,
)
from allranks.runtime.world.model import World
from allranks.runtime.world.rendezvous import Rendezvous, make_token, shorten

_RENDEZVOUS_SECONDS = 300.0
_CLOSE_SECONDS = 1.0
_started: World | None = None
_owner: int | None = None


@lru_cache(maxsize=1)
def _detected() -> World:
    return detect(os.environ)


def world() -> World:
    """Return the world of this process; detected once, since `init` itself sets variables that are read."""
    return _started or _detected()


def detect_again() -> World:
    """Detect the world again: this process has become one rank of several."""
    _detected.cache_clear()
    return _detected()


def is_running() -> bool:
    """Whether this process has a process group, by `init` or by the user's own call."""
    dist = sys.modules.get("torch.distributed")
    ready = getattr(dist, "is_initialized", None)
    return _started is not None or bool(ready and ready())


def init(
    backend: str | None = None,
    *,
    timeout: float | timedelta | None = None,
    device: Any = None,
) -> World:
    """Start torch.distributed for this process and return its world. A second call changes nothing.

    ``backend`` None is nccl with a GPU and gloo without. ``timeout`` (seconds) bounds the
    rendezvous and every collective. ``device`` "cpu" uses no GPU, "cuda:1" overrides the choice of GPU.
    There is no barrier.
    """
    global _started, _owner
    dist = _torch_distributed()
    if dist.is_initialized():
        return world()
    here = _detected()
    gpu = _gpu(here, device)
    name = _backend(here, backend, gpu, dist)
    if gpu is not None:
        import torch

        torch.cuda.set_device(gpu)
    _started, _owner = _start(here, name, _span(timeout), dist), os.getpid()
    atexit.register(_at_exit)
    return _started


def is_started_here() -> bool:
    """Whether `init` started the group, and so chose this process's GPU."""
    return _started is not None


def shutdown() -> None:
    """End the process group that `init` started, if it did."""
    global _started
    if _started is None or _owner != os.getpid():
        return
    _started = None
    atexit.unregister(_at_exit)
    dist = _torch_distributed()
    if dist.is_initialized():
        dist.destroy_process_group()


def _at_exit() -> None:
    """End the group, but never wait long for peers while this process ends with an exception."""
    global _started
    if _started is None or _owner != os.getpid():
        return
    from torch.distributed import distributed_c10d as c10d

    if c10d.is_initialized() and c10d.get_backend() == "mpi" and _is_our_mpi():
        return  # mpi_shutdown closes the groups, or ends the job
    if not hasattr(sys, "last_value"):
        shutdown()
        return
    _started = None
    if not c10d.is_initialized():
        return
    abort = getattr(c10d, "_abort_process_group", None)
    if abort is not None and "nccl" in str(c10d.get_backend()):
        abort()
        return
    # gloo's threads may still release a tensor, and one that needs the interpreter while it ends
    # aborts the process: the exit code of the error would become that of SIGABRT. Ending the
    # group joins them, which waits for peers when an operation is still under way.
    ending = threading.Thread(target=c10d.destroy_process_group, daemon=True)
    ending.start()
    ending.join(_CLOSE_SECONDS)


def _start(here: World, backend: str, span: timedelta | None, dist: Any) -> World:
    """Start the group: by MPI, for one process, at a port that is found, or at the port given."""
    options: dict[str, Any] = {} if span is None else {"timeout": span}
    if backend == "mpi":
        return _start_mpi(here, options, dist)
    options |= {"rank": here.rank, "world_size": here.size}
    if here.size == 1:
        os.environ.update(here.environment())
        dist.init_process_group(backend, store=dist.HashStore(), **options)
        return here
    here.endpoint()
    choose_interface(here)
    if not here.port_is_given:
        seconds = span.total_seconds() if span else _RENDEZVOUS_SECONDS
        store, port = _find_store(here, launch_id(os.environ), seconds, dist)
        here = replace(here, master_port=port, port_is_given=True)
        os.environ.update(here.environment())
        dist.init_process_group(backend, store=dist.PrefixStore("allranks", store), **options)
        return here
    os.environ.update(here.environment())
    try:
        dist.init_process_group(backend, init_method="env://", **options)
    except (dist.DistNetworkError, dist.DistStoreError) as error:
        raise WorldError(
            f"Rank {here.rank} of {here.size} on {here.host} could not reach the others at "
            f"{format_endpoint(*here.endpoint())} (MASTER_ADDR, MASTER_PORT): {error}\n"
            "Without MASTER_PORT, allranks finds a free port itself."
        ) from error
    return here


def _find_store(here: World, launch: str, seconds: float, dist: Any) -> tuple[Any, int]:
    """Return the store that all ranks share and its port, which rank 0 finds and the others learn."""
    address, port = here.endpoint()
    token, span = make_token(launch, here.size), timedelta(seconds=seconds)
    rendezvous = Rendezvous(here.rank, here.size, here.host, address, port, token, seconds)
    if here.is_main:
        store = _open_store(address, candidate_ports(derived_port(f"store/{token}")), span, dist)
        rendezvous.exchange(str(store.port))
        return store, int(store.port)
    found = int(rendezvous.exchange("-")[0])
    return dist.TCPStore(address, found, timeout=span, wait_for_workers=False), found


def _open_store(address: str, ports: list[int], span: timedelta, dist: Any) -> Any:
    problem: Exception | None = None
    for port in ports:
        try:
            return dist.TCPStore(
                address, port, is_master=True, timeout=span, wait_for_workers=False
            )
        except (OSError, RuntimeError) as error:
            problem = error
    raise WorldError(
        f"Rank 0 found no free port at {address}; tried {shorten(ports)} (last: {problem}). "
        "Set MASTER_PORT to a port that is free there."
    )


def _start_mpi(here: World, options: dict[str, Any], dist: Any) -> World:
    """Start MPI, which numbers the ranks itself: it must agree with the launcher's variables."""
    from allranks.runtime.world.mpi.mpi_backend import check_world, compare_world

    if _is_our_mpi():
        check_world(here)
    dist.init_process_group("mpi", **options)
    try:
        compare_world(here, dist.get_rank(), dist.get_world_size())
    except WorldError:
        dist.destroy_process_group()
        raise
    os.environ.update(here.environment())
    return here


def _is_our_mpi() -> bool:
    """Whether torch's mpi is the one over mpi4py."""
    from torch.distributed import distributed_c10d as c10d

    return str(getattr(c10d.ProcessGroupMPI, "__module__", "")).startswith("allranks.")


def _backend(here: World, asked: str | None, gpu: int | None, dist: Any) -> str:
    """Return the backend that works here. nccl without a GPU becomes gloo, and rank 0 warns."""
    if asked == "mpi" and not dist.is_mpi_available():
        from allranks.runtime.world.mpi.mpi_backend import register

        register()
    if asked is None:
        return "nccl" if gpu is not None and dist.is_nccl_available() else "gloo"
    if "nccl" in asked and (gpu is None or not dist.is_nccl_available()):
        if here.is_main:
            warnings.warn(
                f"Backend '{asked}' needs a GPU and this process has none: using gloo.",
                stacklevel=3,
            )
        return "gloo"
    return asked


def _gpu(here: World, device: Any) -> int | None:
    """Return the index of this process's GPU, or None to stay on the CPU."""
    import torch

    wanted = torch.device(device) if device is not None else None
    if wanted is not None and wanted.type != "cuda":
        return None
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if wanted is not None and wanted.index is not None:
        return int(wanted.index)
    if count == 0 or here.device_index is None:
        return None
    if here.local_size > count > 1 and not here.private_devices:
        raise WorldError(
            f"{here.local_size} processes on {here.host}, but {count} GPUs are visible. "
            f"Start {count} per node, or use init(device='cpu')."
        )
    return here.device_index % count


def choose_interface(here: World) -> None:
    """Set gloo's interface to the one that leads to rank 0: gloo looks up the host's name, often 127.0.1.1.

    NCCL is left alone: it prefers InfiniBand by itself, and the route to a name is often Ethernet.
    """
    if here.nodes == 1 or "GLOO_SOCKET_IFNAME" in os.environ:
        return
    interface = route_address(here.endpoint()[0])[1]
    if interface not in (None, "lo"):
        os.environ["GLOO_SOCKET_IFNAME"] = str(interface)


def _span(timeout: float | timedelta | None) -> timedelta | None:
    return timedelta(seconds=timeout) if isinstance(timeout, (int, float)) else timeout


def _torch_distributed() -> Any:
    try:
        import torch.distributed as dist
    except ImportError:
        raise MissingDependencyError(
            "init() needs PyTorch. Install it with: pip install 'allranks[torch]'"
        ) from None
    if not dist.is_available():
        raise MissingDependencyError("This PyTorch was built without torch.distributed.")
    return dist
