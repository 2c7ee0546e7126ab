"""Run the commands of ``python -m allranks.runtime.agent``."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from allranks.errors import AllranksError
from allranks.runtime.agent.agent_options import AgentOptions, read_options
from allranks.runtime.agent.rank_launch import run_rank, run_ranks


def main(arguments: list[str]) -> object:
    """Run a command; returns the argument for ``sys.exit``, in a forked rank that of its script."""
    try:
        options = read_options(arguments)
        return VERBS[options.verb](options)
    except AllranksError as error:
        print(f"allranks: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:  # no process, no pipe, no memory: ranks that run die with us
        print(f"allranks: cannot start the ranks: {error}", file=sys.stderr)
        return 1


def _block_signals(options: AgentOptions) -> None:
    """Run a launcher with TERM, USR1 and USR2 blocked: at one of them it would end its ranks."""
    from allranks.runtime.agent.fork_exec import exec_with_blocked_signals

    exec_with_blocked_signals(options.command)


def _summary(options: AgentOptions) -> int:
    """The first error on stderr; with an exit code given, the one to leave with on stdout.

    srun's own code is the highest of all tasks', so a rank that others' failure ended hides the cause.
    """
    from pathlib import Path

    from allranks.runtime.agent.failures import read_failures, summary

    attempt = Path(options.attempt or ".")
    if text := summary(attempt):
        print(text, file=sys.stderr)
    if options.exit_code is not None:
        failures = read_failures(attempt)
        print(failures[0]["exit_code"] if failures else options.exit_code)
    return 0


def _attempt_start(options: AgentOptions) -> int:
    """Print one line for the job script: ``start``, ``resubmit OPTION`` or ``stop CODE``."""
    from pathlib import Path

    from allranks.runs.attempt import Attempt
    from allranks.runtime.agent.attempt_start import start_attempt

    attempt = Attempt.open(Path(options.attempt or "."))
    nodes = sys.stdin.read() if options.nodes else ""
    verdict, reason = start_attempt(attempt, options.policy, nodes, options.exclude)
    if reason:
        print(f"allranks: {reason}", file=sys.stderr)
    print(verdict)
    return 0


def _attempt_end(options: AgentOptions) -> int:
    """Print one line for the job script: what follows, the exit code, an option for sbatch, the job's state.

    The script acts only while the job is in that state. The reason goes to stderr, below the first error.
    """
    from pathlib import Path

    from allranks.runs.attempt import Attempt
    from allranks.runtime.agent.attempt_end import (
        AttemptEnd,
        end_attempt,
        first_error,
        requeue_early,
    )
    from allranks.runtime.agent.attempt_start import NO_OPTION, exclude_option
    from allranks.runtime.agent.failures import summary
    from allranks.runtime.agent.scontrol_job import gone_nodes, read_job

    attempt = Attempt.open(Path(options.attempt or "."))
    code = first_error(attempt.path, options.exit_code or 0)
    job = read_job(options.job, attempt.restart)
    end = AttemptEnd(
        attempt,
        code,
        options.policy,
        job._replace(may_requeue=False) if options.refused else job,
        terminated=options.terminated,
        lost=gone_nodes(sys.stdin.read()) if options.nodes and (code or job.ended_by) else [],
        not_started=options.not_started,
        gave_up=options.retry_after == "",
    )
    decision = requeue_early(end) if options.ranks_running else end_attempt(end)
    if decision is None:
        print("wait 0")
        return 0
    if decision.outcome == "failed" and (text := summary(attempt.path)):
        print(text, file=sys.stderr)
    if decision.reason != attempt.reason:  # not when the same was decided before
        print(f"allranks: {decision.reason}", file=sys.stderr)
    option = exclude_option(end.run) if options.refused != "resubmit" else NO_OPTION
    print(decision.next, decision.code, option, job.state)
    return 0


def _horovod_server(options: AgentOptions) -> int:
    """Serve the rendezvous of Horovod's ranks until the shell that started this process ends.

    Prints the address and the port in one line when ranks may connect. It listens on the address by
    which this machine and ``--host`` reach each other, and on no other.
    """
    import signal

    from allranks.runtime.agent.linux_processes import die_with
    from allranks.runtime.world.endpoints import route_address
    from allranks.runtime.world.horovod_rendezvous import open_rendezvous_server

    shell = os.getppid()
    with open_rendezvous_server(route_address(options.host)[0], options.port) as table:
        die_with(shell)
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
        print(table.server_name, table.server_port, flush=True)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the reader takes one line and closes
        table.serve_forever()
    return 0


VERBS: dict[str, Callable[[AgentOptions], object]] = {
    "ranks": run_ranks,
    "rank": run_rank,
    "block-signals": _block_signals,
    "summary": _summary,
    "attempt-start": _attempt_start,
    "attempt-end": _attempt_end,
    "horovod-server": _horovod_server,
}


if __name__ == "__main__":
    agent = os.getpid()
    try:
        code = main(sys.argv[1:])
    except KeyboardInterrupt:
        code = 130
    if os.getpid() == agent and isinstance(code, int):
        # The agent may hold all of torch after a preload: taking that apart costs 0.3 s and frees
        # nothing that the kernel does not free.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)  # type: ignore[arg-type]
