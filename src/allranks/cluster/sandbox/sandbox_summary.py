"""Sandboxes as text, for a terminal of 80 columns."""

from __future__ import annotations

from allranks.cluster.sandbox.sandbox_cluster import Sandbox
from allranks.cluster.sandbox.sandbox_status import SandboxStatus


def started(sandbox: Sandbox, seconds: float) -> str:
    """Describe a sandbox that was just started, and what to type next."""
    record = sandbox.record
    which = "" if record.name == "default" else f" --name {record.name}"
    return f"""\
Slurm {record.slurm_version} is up after {seconds:.1f} s.

  nodes       {_span(sandbox.nodes)}: {record.config.describe_node()}{_each(sandbox.nodes)}
  partitions  main (default), low (preempted by main, then requeued)
  isolation   {record.isolation} ({record.reason})
  directory   {sandbox.directory}

Use it from a shell of its own, or from this one:

  allranks sandbox shell{which}
  export SLURM_CONF={sandbox.env["SLURM_CONF"]}

Stop it, and remove all of it:

  allranks sandbox down{which}"""


def status(state: SandboxStatus) -> str:
    """Describe daemons, nodes and jobs."""
    daemons = [f"{name} {'runs' if on else 'IS DEAD'}" for name, on in state.daemons.items()]
    nodes = [(node.name, "on" if node.on else "off", node.state) for node in state.nodes]
    parts = [
        f"Sandbox '{state.name}' is {_health(state)}: Slurm {state.slurm_version}, "
        f"isolation {state.isolation}, port {state.port}\n"
        f"SLURM_CONF={state.slurm_conf}\n{', '.join(daemons)}",
        _table([("NODE", "POWER", "STATE"), *nodes]),
        _jobs(state),
    ]
    return "\n\n".join(parts)


def listing(states: list[SandboxStatus]) -> str:
    """List sandboxes, one per line."""
    if not states:
        return "There is no sandbox. Start one with: allranks sandbox up"
    rows = [
        (each.name, _health(each), _power(each), str(len(each.jobs)), each.directory)
        for each in states
    ]
    return _table([("NAME", "STATE", "NODES ON", "JOBS", "DIRECTORY"), *rows])


def _jobs(state: SandboxStatus) -> str:
    if not state.jobs:
        return "No jobs." if state.running else "The controller does not answer."
    rows = [
        (job.id, job.name[:16], job.user[:12], job.partition, job.state, job.where)
        for job in state.jobs
    ]
    return _table([("JOB", "NAME", "USER", "PARTITION", "STATE", "WHERE"), *rows])


def _health(state: SandboxStatus) -> str:
    return "up" if state.running else "dead"


def _power(state: SandboxStatus) -> str:
    return f"{sum(node.on for node in state.nodes)} of {len(state.nodes)}"


def _span(nodes: list[str]) -> str:
    return ", ".join(nodes) if len(nodes) < 3 else f"{nodes[0]} to {nodes[-1]}"


def _each(nodes: list[str]) -> str:
    return " each" if len(nodes) > 1 else ""


def _table(rows: list[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    cells = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows]
    return "\n".join("  ".join(row).rstrip() for row in cells)
