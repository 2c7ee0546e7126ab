"""``python -m allranks.agent``: its commands."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from allranks.agent.launch import run_rank, run_ranks
from allranks.agent.options import Options, read_options
from allranks.errors import AllranksError


def main(arguments: list[str]) -> object:
    """What to hand to ``sys.exit``; in a forked rank too, where it is the script's end."""
    try:
        options = read_options(arguments)
        return VERBS[options.verb](options)
    except AllranksError as error:
        print(f"allranks: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:  # no process, no pipe, no memory: ranks that run die with us
        print(f"allranks: cannot start the ranks: {error}", file=sys.stderr)
        return 1


def _summary(options: Options) -> int:
    """The first error on stderr; with an exit code given, the one to leave with on stdout.

    srun's own code is the highest of all tasks', so a rank that others' failure ended hides the cause.
    """
    from pathlib import Path

    from allranks.agent.summary import read_failures, summary

    attempt = Path(options.attempt or ".")
    if text := summary(attempt):
        print(text, file=sys.stderr)
    if options.exit_code is not None:
        failures = read_failures(attempt)
        print(failures[0]["exit_code"] if failures else options.exit_code)
    return 0


def _horovod_server(options: Options) -> int:
    from allranks.agent.horovod import serve

    serve(options.host, options.port)
    return 0


VERBS: dict[str, Callable[[Options], object]] = {
    "ranks": run_ranks,
    "rank": run_rank,
    "summary": _summary,
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
