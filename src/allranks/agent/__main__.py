"""``python -m allranks.agent``: the three commands."""

from __future__ import annotations

import os
import sys

from allranks.agent.launch import run_rank, run_ranks
from allranks.agent.options import Options, read_options
from allranks.errors import AllranksError


def main(arguments: list[str]) -> object:
    """What to hand to ``sys.exit``; in a forked rank too, where it is the script's end."""
    try:
        options = read_options(arguments)
        return _summary(options) if options.verb == "summary" else _run(options)
    except AllranksError as error:
        print(f"allranks: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:  # no process, no pipe, no memory: ranks that run die with us
        print(f"allranks: cannot start the ranks: {error}", file=sys.stderr)
        return 1


def _run(options: Options) -> object:
    return run_rank(options) if options.verb == "rank" else run_ranks(options)


def _summary(options: Options) -> int:
    from pathlib import Path

    from allranks.agent.summary import summary

    if text := summary(Path(options.attempt or ".")):
        print(text)
    return 0


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
