"""Start the ranks: fork, then exec a command or stay and run a script."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from allranks.runtime.agent.linux_processes import die_with
from allranks.runtime.agent.orphans import GuardProcess
from allranks.runtime.agent.rank_environment import RankPlacement
from allranks.runtime.agent.rank_output import Child

_F_SETPIPE_SZ = 1031
_PIPE_SIZE = 1 << 20
_FOR_RANKS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


class RankSpec(NamedTuple):
    """One rank to start."""

    placement: RankPlacement
    env: Mapping[str, str]
    cpus: frozenset[int] | None
    command: Sequence[str] | None
    """What to exec; None: the caller runs the script in the forked process."""


class StartSettings(NamedTuple):
    """What all ranks of an agent have in common."""

    mask: Iterable[int]
    """The signals that were blocked before the agent blocked its own."""
    private: Sequence[int]
    """Descriptors of the agent that no rank may hold open."""
    guard: GuardProcess
    keep_terminal: bool
    """A single rank that may read from the terminal stays in the agent's process group."""
    own_stdin: bool
    """A single rank reads the agent's stdin; several would steal each other's input."""


def start_ranks(specs: Sequence[RankSpec], settings: StartSettings) -> list[Child] | RankSpec:
    """Start all ranks. In a forked rank that shall run a script, returns its own spec."""
    children: list[Child] = []
    agent = os.getpid()
    for spec in specs:
        out_read, out_write = open_pipe()
        err_read, err_write = open_pipe()
        pid = os.fork()
        if pid == 0:
            inherited = [fd for child in children for fd in (child.out, child.err)]
            _become_rank(spec, settings, agent, out_write, err_write)
            _close([*inherited, *settings.private, out_read, out_write, err_read, err_write])
            if spec.command is None:
                return spec
            _exec(spec.command)
        settings.guard.watch(pid)
        _close([out_write, err_write])
        children.append(Child(pid, spec.placement.rank, out_read, err_read))
    return children


def open_pipe() -> tuple[int, int]:
    """Return a pipe whose reading end never blocks, as large as the system allows."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    try:
        import fcntl

        # A rank that prints a burst continues while its supervisor is busy elsewhere.
        fcntl.fcntl(writer, _F_SETPIPE_SZ, _PIPE_SIZE)
    except OSError:  # over this user's share of pipe memory, or not Linux: the default will do
        pass
    return reader, writer


def _become_rank(spec: RankSpec, settings: StartSettings, agent: int, out: int, err: int) -> None:
    """Turn this forked process into the rank."""
    # A session of its own for each rank. Ctrl-C in the terminal then reaches the agent alone, which
    # forwards it: in one group with the agent a rank would get it twice, the second time in the
    # middle of its own clean-up. A mere process group would not do: a rank that asks /dev/tty for a
    # password would be stopped for ever (SIGTTIN), where without a terminal it fails with an error.
    # And the guard finds by the session what the rank had started.
    if not settings.keep_terminal:
        os.setsid()
    die_with(agent)
    if spec.cpus:
        try:
            os.sched_setaffinity(0, spec.cpus)
        except OSError as error:
            os.write(err, f"allranks: cannot bind to CPUs {sorted(spec.cpus)}: {error}\n".encode())
    if not settings.own_stdin:
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
    os.dup2(out, 1)
    os.dup2(err, 2)
    for number in _FOR_RANKS:  # a launcher may ignore them, and that is inherited
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(spec.env)
    signal.pthread_sigmask(signal.SIG_SETMASK, settings.mask)


def exec_with_blocked_signals(command: Sequence[str]) -> None:
    """Become this command with the ranks' signals blocked; the agents below it unblock them."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _FOR_RANKS)
    _exec(command)


def _exec(command: Sequence[str]) -> None:
    # Python ignores these two, and an ignored signal stays so across exec: `yes | head` would not
    # end.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(command[0], list(command))
    except OSError as error:
        os.write(2, f"allranks: cannot run '{command[0]}': {error.strerror}\n".encode())
        os._exit(126 if isinstance(error, PermissionError) else 127)


def _close(descriptors: Iterable[int]) -> None:
    for fd in descriptors:
        os.close(fd)
