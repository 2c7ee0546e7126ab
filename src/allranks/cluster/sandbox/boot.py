"""Start a sandbox until its nodes are idle, and remove it completely."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from allranks.cluster.sandbox import daemons, isolation, ports
from allranks.cluster.sandbox import directories as layout
from allranks.cluster.sandbox import sandbox_processes as processes
from allranks.cluster.sandbox import sandbox_status as status
from allranks.cluster.sandbox import slurm_programs as programs
from allranks.cluster.sandbox.directories import Layout
from allranks.cluster.sandbox.sandbox_config import SandboxConfig, SandboxRecord, load_record
from allranks.errors import SandboxError

_START_SECONDS = 90.0


def start(
    name: str, config: SandboxConfig, directory: Path | None, replace: bool
) -> tuple[SandboxRecord, Layout]:
    """Start a sandbox; when that fails, nothing of it is left."""
    chosen, reason = _check(config)
    with alone(name):
        _make_room(name, replace)
        place = layout.make_root(name, directory)
        record: SandboxRecord | None = None
        try:
            with ports.reserve(
                config.port, chosen, config.nodes, _taken_blocks(), isolation.network_conflict
            ) as block:
                version = programs.slurm_version()
                record = SandboxRecord(name, config, chosen, reason, block.port, version)
                record.save(place)
                _start_daemons(record, place)
        except BaseException:
            remove(name, place, record)
            raise
    return record, place


def remove(name: str, place: Layout, record: SandboxRecord | None) -> None:
    """Kill every process, then remove network, files and name; what is gone already is skipped."""
    processes.kill_all(place)
    if record is not None and record.isolation == "network":
        isolation.remove_network(record.block, record.config.nodes)
    if place.root.parent == layout.home() or place.record.exists():
        shutil.rmtree(place.root, ignore_errors=not place.root.exists())
    else:  # a directory given by the caller, which was not filled
        with contextlib.suppress(OSError):
            place.root.rmdir()
    layout.forget(name)


def cancel_jobs(place: Layout, patience: float) -> None:
    """Cancel all jobs, so that their clients elsewhere (srun, salloc) return."""
    jobs = (daemons.client(place, "squeue", "-h", "-o", "%A", timeout=5) or "").split()
    if not jobs:
        return
    daemons.client(place, "scancel", "--full", *sorted(set(jobs)), timeout=5)
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline and daemons.client(place, "squeue", "-h", timeout=5):
        time.sleep(0.1)


def wait_for_nodes(
    place: Layout,
    pids: dict[str, int],
    nodes: list[str],
    listener: tuple[str, int] | None = None,
) -> None:
    """Wait until these nodes accept jobs.

    The controller may not have noticed yet that a node was off, so the address where it listens is tried
    too.
    """

    def ready() -> bool:
        if listener is not None and not daemons.listens(*listener):
            return False
        states = status.node_states(place) or {}
        return all(_usable(states.get(node, "unknown")) for node in nodes)

    daemons.wait_for(ready, place, pids, time.monotonic() + _START_SECONDS)


@contextlib.contextmanager
def alone(name: str) -> Iterator[None]:
    """Keep other processes of this user from starting or stopping the same sandbox."""
    with ports.guard(f"name/{os.getuid()}/{layout.check_name(name)}", wait=60) as held:
        if not held:
            raise SandboxError(
                f"Sandbox '{name}' is being started or stopped by another process.\n"
                "Try again when it has finished, or use another --name."
            )
        yield


def registered() -> dict[str, Layout]:
    """Return this user's sandboxes by name, running or not."""
    folder = layout.home()
    try:
        entries = sorted(folder.iterdir())
    except FileNotFoundError:
        return {}
    return {
        entry.name: Layout(entry.resolve())
        for entry in entries
        if entry.is_symlink() or entry.is_dir()
    }


def _check(config: SandboxConfig) -> tuple[str, str]:
    """Check what can be checked before anything is created; return the isolation and why."""
    programs.require(config.isolation, config.accounting)
    daemons.user_name()
    return isolation.choose(config.isolation)


def _make_room(name: str, replace: bool) -> None:
    """Remove what an earlier sandbox of this name left; one that runs only with ``replace``."""
    place = registered().get(name)
    if place is None:
        return
    if processes.find(place) and not replace:
        raise SandboxError(
            f"Sandbox '{name}' is up already, in {place.root}.\n"
            "Use it with `allranks sandbox shell`, start it afresh with --replace, or start\n"
            "another with --name."
        )
    remove(name, place, load_record(place))


def _taken_blocks() -> set[int]:
    records = (load_record(place) for place in registered().values())
    return {record.block.number for record in records if record is not None}


def _start_daemons(record: SandboxRecord, place: Layout) -> None:
    deadline = time.monotonic() + _START_SECONDS
    daemons.write_files(record, place)
    daemons.start_munge(place, deadline)
    if record.isolation == "network":
        isolation.create_network(record.block)
    if record.config.accounting:
        daemons.start_accounting(record, place, deadline)
    pids = {"slurmctld": daemons.start_controller(record, place, deadline)}
    for node in record.nodes:
        pids[node] = daemons.start_node(record, place, node)
    wait_for_nodes(place, pids, record.nodes)


def _usable(state: str) -> bool:
    return state in ("idle", "mixed", "allocated", "completing")
