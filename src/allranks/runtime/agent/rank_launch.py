"""From the options to ranks that run, and to their end."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

from allranks.errors import UsageError
from allranks.runtime.agent import cpu_binding as binding
from allranks.runtime.agent import placement, preload
from allranks.runtime.agent.agent_options import Options, shown_ranks
from allranks.runtime.agent.attempt_files import Attempt, stamp
from allranks.runtime.agent.build_locks import check_build_locks
from allranks.runtime.agent.children import Child, Order, Setting, start
from allranks.runtime.agent.console import Console
from allranks.runtime.agent.guard import Guard
from allranks.runtime.agent.linux_processes import become_subreaper, open_signals
from allranks.runtime.agent.notices import Notices
from allranks.runtime.agent.placement import Place
from allranks.runtime.agent.rank_environment import SESSION, new_session, rank_environment
from allranks.runtime.agent.sampling_thread import sample_node
from allranks.runtime.agent.supervisor import HANDLED, Given, Grace, Supervisor
from allranks.runtime.telemetry import SAMPLED

_GRACE = 10.0
_TOLD_GRACE = 60.0


def run_ranks(options: Options) -> object:
    """All ranks of this node."""
    places = placement.place_node(options.nprocs, options.nnodes, options.node_rank, os.environ)
    cpus = binding.bind(_binding(), options.nprocs, _affinity(), os.environ)
    threads = _threads(cpus, options.nprocs)
    check_build_locks(options.command, os.environ)
    guard = Guard()  # before the preload: a copy of this process is small now
    words = _fork_words(options, threads, guard)
    command = preload.whole_command(options.command)
    _name_launch()
    orders = [
        Order(place, _environment(place, threads, options), mine, None if words else command)
        for place, mine in zip(places, cpus, strict=True)
    ]
    return _supervise(orders, options, guard, words)


def run_rank(options: Options) -> object:
    """The one rank that this process is."""
    place = placement.place_one(os.environ)
    allowed = _affinity()
    # srun binds each task: then the CPUs we see are this rank's already, not to be shared again.
    own = len(allowed) * place.local_size <= (os.cpu_count() or 1)
    setting = "none" if own and _binding() == "auto" else _binding()
    cpus = binding.bind(setting, place.local_size, allowed, os.environ)[place.local_rank]
    threads = _threads([cpus], 1 if own else place.local_size)
    command = list(options.command)
    if place.local_rank == 0:
        check_build_locks(command, os.environ)
    if options.local_rank_arg:
        command.append(f"--{options.local_rank_arg}={place.local_rank}")
    _name_launch()
    order = Order(place, rank_environment(place, os.environ, threads), cpus, command)
    return _supervise([order], options, Guard(), None)


def _environment(place: Place, threads: int, options: Options) -> dict[str, str]:
    if options.plain:
        return {**os.environ, "PYTHONUNBUFFERED": "1"}
    return rank_environment(place, os.environ, threads)


def _fork_words(options: Options, threads: int, guard: Guard) -> list[str] | None:
    """What the forked ranks run; None when they are to be started by exec."""
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


def _start_over(guard: Guard) -> None:
    """Become a fresh agent that does not preload.

    The thread that forbids the fork also has our signals unblocked: the kernel would give it those
    that the event loop waits for.
    """
    guard.dismiss()
    words = list(sys.orig_argv)
    at = words.index("--")
    os.execv(sys.executable, [sys.executable, *words[1:at], "--mode", "exec", *words[at:]])


def _supervise(
    orders: list[Order], options: Options, guard: Guard, words: list[str] | None
) -> object:
    places = [order.place for order in orders]
    prefix = options.prefix == "always" or (options.prefix == "auto" and places[0].size > 1)
    console = Console(
        prefix, shown_ranks(options.show, [place.rank for place in places]), os.environ
    )
    grace, alone = _grace(), places[0].size == 1
    keep_terminal = alone and os.isatty(0)
    become_subreaper()
    # Launchers run with these signals blocked (block-signals); the ranks get them unblocked.
    mask = {*signal.pthread_sigmask(signal.SIG_BLOCK, [])} - {*HANDLED}
    signals = open_signals(HANDLED)
    began = time.time()
    started = start(orders, Setting(mask, (signals, guard.fd), guard, keep_terminal, alone))
    if isinstance(started, Order):
        from allranks.runtime.agent import script_runner as script

        return script.run(words or [])
    attempt = Attempt(os.environ.get("ALLRANKS_ATTEMPT_DIR"), console.say)
    _note(started, attempt, began)
    notices = Notices()
    sampler = sample_node(attempt.folder, places, notices.say)
    command = orders[0].command or [sys.executable, *(words or [])]
    peers = attempt.failures if options.peers else None
    # Slurm signals every process of a step: passed on, a rank would get it twice. mpirun gives
    # signals to those that it started, and to nobody else.
    pass_on = not placement.in_step(os.environ) or os.environ.get("ALLRANKS_LAUNCHER") == "mpirun"
    given = Given(signals, notices, guard.pid, command, grace, keep_terminal, pass_on, peers)
    supervisor = Supervisor(started, console, attempt, given)
    code = supervisor.run()
    if sampler:
        sampler.stop()
    supervisor.tell()
    guard.dismiss()
    if supervisor.failed:
        _tell(supervisor.failed, options, places[0], attempt, began)
    return code


def _note(children: list[Child], attempt: Attempt, began: float) -> None:
    """Write down what was started."""
    for child in children:
        attempt.started(child.order.place.rank, _facts(child, began))
        if child.order.place.rank == 0:
            attempt.environment(child.order.env)


def _facts(child: Child, began: float) -> dict[str, Any]:
    place, env = child.order.place, child.order.env
    return {
        "rank": place.rank,
        "local_rank": place.local_rank,
        "node_rank": place.node_rank,
        "world_size": place.size,
        "host": place.host,
        "pid": child.pid,
        "cpus": binding.format_cpus(child.order.cpus or _affinity()),
        "devices": env.get("CUDA_VISIBLE_DEVICES", env.get("ROCR_VISIBLE_DEVICES")),
        "start": stamp(began),
        "launcher": place.launcher,
    }


def _tell(failed: list[dict[str, Any]], options: Options, place: Place, attempt: Attempt,
          began: float) -> None:  # fmt: skip
    """The last thing on the console: what went wrong."""
    from allranks.runtime.agent.first_error import describe_first, earliest, headline

    first = earliest(failed)[0]
    if options.verb == "ranks" and place.nodes == 1 and options.summary:
        log = attempt.path("ranks", first["rank"], "log")
        print(describe_first(earliest(failed), stamp(began), log), file=sys.stderr)
    else:
        print(f"allranks: {headline(first, stamp(began))}", file=sys.stderr)


def _name_launch() -> None:
    """What every process of this launch inherits from us."""
    os.environ.setdefault(SESSION, new_session())
    if os.environ.get("ALLRANKS_ATTEMPT_DIR"):
        os.environ[SAMPLED] = "1"


def _binding() -> str:
    return os.environ.get("ALLRANKS_BIND") or "auto"


def _threads(cpus: list[frozenset[int] | None], sharers: int) -> int:
    """OpenMP threads for each rank: the CPUs that it has to itself."""
    counts = [len(mine) if mine else len(_affinity()) // sharers for mine in cpus]
    return max(min(counts), 1)


def _affinity() -> frozenset[int]:
    return frozenset(os.sched_getaffinity(0))


def _grace() -> Grace:
    text = os.environ.get("ALLRANKS_GRACE", "")
    if not text:
        # Slurm kills after the time that the site grants; there is no need to do it sooner.
        return Grace(_GRACE, None if "SLURM_JOB_ID" in os.environ else _TOLD_GRACE)
    try:
        return Grace(float(text), float(text))
    except ValueError:
        raise UsageError(f"ALLRANKS_GRACE={text} is not a number of seconds.") from None
