"""Start the ranks of a node as the options ask, and supervise them to their end."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from allranks.runtime.agent import cpu_binding as binding
from allranks.runtime.agent import preload
from allranks.runtime.agent.agent_options import AgentOptions, shown_ranks
from allranks.runtime.agent.attempt_files import AttemptFiles, stamp
from allranks.runtime.agent.build_locks import check_build_locks
from allranks.runtime.agent.console import Console
from allranks.runtime.agent.fork_exec import RankSpec, StartSettings, start_ranks
from allranks.runtime.agent.linux_processes import become_subreaper
from allranks.runtime.agent.orphans import LAUNCH_ID, GuardProcess, new_launch_id
from allranks.runtime.agent.rank_environment import (
    RankPlacement,
    in_step,
    place_node,
    place_one,
    rank_environment,
)
from allranks.runtime.agent.rank_output import Child, ThreadMessages
from allranks.runtime.agent.rank_supervisor import RankSettings, RankSupervisor
from allranks.runtime.agent.supervisor import HANDLED, SignalEvents, read_grace
from allranks.runtime.telemetry import SAMPLED

if TYPE_CHECKING:
    from allranks.runtime.telemetry.sampler import Sampler


def run_ranks(options: AgentOptions) -> object:
    """Start and supervise all ranks of this node."""
    placements = place_node(options.nprocs, options.nnodes, options.node_rank, os.environ)
    cpus = binding.bind(_binding(), options.nprocs, _affinity(), os.environ)
    threads = _threads(cpus, options.nprocs)
    check_build_locks(options.command, os.environ)
    guard = GuardProcess()  # before the preload: a copy of this process is small now
    words = _fork_words(options, threads, guard)
    command = preload.whole_command(options.command)
    _set_launch_variables()
    specs = [
        RankSpec(each, _environment(each, threads, options), mine, None if words else command)
        for each, mine in zip(placements, cpus, strict=True)
    ]
    return _supervise(specs, options, guard, words)


def run_rank(options: AgentOptions) -> object:
    """Start and supervise the one rank that this process stands for."""
    placement = place_one(os.environ)
    allowed = _affinity()
    # srun binds each task: then the CPUs we see are this rank's already, not to be shared again.
    own = len(allowed) * placement.local_size <= (os.cpu_count() or 1)
    setting = "none" if own and _binding() == "auto" else _binding()
    cpus = binding.bind(setting, placement.local_size, allowed, os.environ)[placement.local_rank]
    threads = _threads([cpus], 1 if own else placement.local_size)
    command = list(options.command)
    if placement.local_rank == 0:
        check_build_locks(command, os.environ)
    if options.local_rank_arg:
        command.append(f"--{options.local_rank_arg}={placement.local_rank}")
    _set_launch_variables()
    spec = RankSpec(placement, rank_environment(placement, os.environ, threads), cpus, command)
    return _supervise([spec], options, GuardProcess(), None)


def _environment(placement: RankPlacement, threads: int, options: AgentOptions) -> dict[str, str]:
    if options.plain:
        return {**os.environ, "PYTHONUNBUFFERED": "1"}
    return rank_environment(placement, os.environ, threads)


def _fork_words(options: AgentOptions, threads: int, guard: GuardProcess) -> list[str] | None:
    """Return what the forked ranks run; None when they are to be started by exec."""
    if options.mode != "fork":
        return None
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    if why := preload.prepare(options.command, options.preload, os.environ):
        print(
            f"allranks: ranks are started one by one, not forked: {why}",
            file=sys.stderr,
            flush=True,
        )
        if preload.tasks() > 1:
            _start_over(guard)
        return None
    return preload.python_part(options.command)


def _start_over(guard: GuardProcess) -> None:
    """Become a fresh agent that does not preload.

    The thread that forbids the fork also has our signals unblocked: the kernel would give it those
    that the event loop waits for.
    """
    guard.dismiss()
    words = list(sys.orig_argv)
    at = words.index("--")
    os.execv(sys.executable, [sys.executable, *words[1:at], "--mode", "exec", *words[at:]])


def _supervise(
    specs: list[RankSpec], options: AgentOptions, guard: GuardProcess, words: list[str] | None
) -> object:
    placements = [spec.placement for spec in specs]
    first = placements[0]
    prefix = options.prefix == "always" or (options.prefix == "auto" and first.size > 1)
    shown = shown_ranks(options.show, [placement.rank for placement in placements])
    console = Console(prefix, shown, os.environ)
    grace, alone = read_grace(os.environ), first.size == 1
    keep_terminal = alone and os.isatty(0)
    become_subreaper()
    # Launchers run with these signals blocked (block-signals); the ranks get them unblocked.
    mask = {*signal.pthread_sigmask(signal.SIG_BLOCK, [])} - {*HANDLED}
    events = SignalEvents()
    began = time.time()
    started = start_ranks(
        specs, StartSettings(mask, (events.fd, guard.fd), guard, keep_terminal, alone)
    )
    if isinstance(started, RankSpec):
        from allranks.runtime.agent import script_runner

        return script_runner.run(words or [])
    files = AttemptFiles(os.environ.get("ALLRANKS_ATTEMPT_DIR"), console.print_line)
    _write_starts(started, specs, files, began)
    messages = ThreadMessages()
    sampler = _start_sampler(files.folder, placements, messages)
    command = specs[0].command or [sys.executable, *(words or [])]
    # Slurm signals every process of a step: forwarded, a rank would get it twice. mpirun sends
    # signals only to the processes that it started.
    forward = not in_step(os.environ) or os.environ.get("ALLRANKS_LAUNCHER") == "mpirun"
    settings = RankSettings(messages, guard.pid, command, keep_terminal, forward, options.peers)
    ranks = list(zip(started, placements, strict=True))
    supervisor = RankSupervisor(ranks, events, console, files, grace, settings)
    code = supervisor.run()
    if sampler:
        sampler.stop()
    supervisor.show_messages()
    guard.dismiss()
    if supervisor.failed:
        _print_failures(supervisor.failed, options, first, files, began)
    return code


def _write_starts(
    children: list[Child], specs: list[RankSpec], files: AttemptFiles, began: float
) -> None:
    """Record what was started."""
    for child, spec in zip(children, specs, strict=True):
        files.write_start(child.rank, _start_record(child, spec, began))
        if child.rank == 0:
            files.write_environment(spec.env)


def _start_record(child: Child, spec: RankSpec, began: float) -> dict[str, Any]:
    placement, env = spec.placement, spec.env
    return {
        "rank": placement.rank,
        "local_rank": placement.local_rank,
        "node_rank": placement.node_rank,
        "world_size": placement.size,
        "host": placement.host,
        "pid": child.pid,
        "cpus": binding.format_cpus(spec.cpus or _affinity()),
        "devices": env.get("CUDA_VISIBLE_DEVICES", env.get("ROCR_VISIBLE_DEVICES")),
        "start": stamp(began),
        "launcher": placement.launcher,
    }


def _start_sampler(
    folder: Path | None, placements: list[RankPlacement], messages: ThreadMessages
) -> Sampler | None:
    """Sample the node in a thread beside the event loop; None without an attempt folder.

    To be called when the ranks have been forked: a process with threads must not fork.
    """
    if folder is None:
        return None
    from allranks.runtime.telemetry.sampler import start_sampler

    first = placements[0]
    return start_sampler(
        folder, first.node_rank, first.local_rank, first.local_size, os.getpid(),
        lambda text: messages.add(f"allranks: {text}"),
        alone=len(placements) == first.local_size,
    )  # fmt: skip


def _print_failures(failed: list[dict[str, Any]], options: AgentOptions, placement: RankPlacement,
                    files: AttemptFiles, began: float) -> None:  # fmt: skip
    """Print what failed, as the last thing on the console."""
    from allranks.runtime.agent.failures import describe_first, earliest, headline

    first = earliest(failed)[0]
    if options.verb == "ranks" and placement.nodes == 1 and options.summary:
        log = files.path("ranks", first["rank"], "log")
        print(describe_first(earliest(failed), stamp(began), log), file=sys.stderr)
    else:
        print(f"allranks: {headline(first, stamp(began))}", file=sys.stderr)


def _set_launch_variables() -> None:
    """Set what every process of this launch inherits from the agent."""
    os.environ.setdefault(LAUNCH_ID, new_launch_id())
    if os.environ.get("ALLRANKS_ATTEMPT_DIR"):
        os.environ[SAMPLED] = "1"


def _binding() -> str:
    return os.environ.get("ALLRANKS_BIND") or "auto"


def _threads(cpus: list[frozenset[int] | None], sharers: int) -> int:
    """Return the OpenMP threads of each rank: the CPUs that it has to itself."""
    counts = [len(mine) if mine else len(_affinity()) // sharers for mine in cpus]
    return max(min(counts), 1)


def _affinity() -> frozenset[int]:
    return frozenset(os.sched_getaffinity(0))
