"""The command line of ``python -m allranks.runtime.agent``."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from allranks.errors import UsageError

USAGE = """\
python -m allranks.runtime.agent ranks --nprocs N [options] -- COMMAND   start and supervise a node's ranks
python -m allranks.runtime.agent rank [options] -- COMMAND               supervise the one rank that this is
python -m allranks.runtime.agent block-signals -- COMMAND                run a launcher with TERM, USR1, USR2 blocked
python -m allranks.runtime.agent summary ATTEMPT_DIR [EXIT_CODE]         print its first error
python -m allranks.runtime.agent attempt-start ATTEMPT_DIR [options]     may it start on these nodes
python -m allranks.runtime.agent attempt-end ATTEMPT_DIR EXIT_CODE [options]  what follows it
python -m allranks.runtime.agent horovod-server --host A --port N        serve the rendezvous of Horovod's ranks"""

_WITH_COMMAND = ("ranks", "rank", "block-signals")


class RequeuePolicy(NamedTuple):
    """The options ``--requeue --max-attempts N …`` of a job script."""

    requeue: bool = False
    """Whether another attempt may follow through the queue."""
    max_attempts: int = 100
    """Attempts of a run, restarts in place included."""
    max_no_progress: int = 3
    """Consecutive attempts without a newer checkpoint after which the run stops."""
    restarts: int = 0
    """How many times failed ranks are started again in the same allocation."""


class AgentOptions(NamedTuple):
    """The options of one agent command."""

    verb: str
    command: tuple[str, ...] = ()
    prefix: str = "auto"
    show: str = "all"
    nprocs: int = 1
    mode: str = "exec"
    preload: tuple[str, ...] = ()
    nnodes: int | None = None
    node_rank: int | None = None
    summary: bool = True
    local_rank_arg: str | None = None
    plain: bool = False
    """The script starts its own ranks: it gets no rank variables."""
    peers: bool = False
    """End when another rank of the attempt has failed, for launchers that let the others run."""
    attempt: str | None = None
    exit_code: int | None = None
    host: str = ""
    port: int = 0
    policy: RequeuePolicy = RequeuePolicy()
    job: str = ""
    """The output of ``scontrol show job -o``."""
    nodes: bool = False
    """Whether the output of ``scontrol show node -o`` is on stdin."""
    terminated: bool = False
    ranks_running: bool = False
    not_started: bool = False
    refused: str = ""
    """What Slurm refused before: requeue or resubmit."""
    retry_after: str = "0"
    """Seconds after which the script asks again if Slurm refuses; empty if it does not."""
    exclude: str = ""
    """Nodes that the job itself avoids."""


def read_options(arguments: Sequence[str]) -> AgentOptions:
    """Return the options, or raise a `UsageError`."""
    ours, command = _split(arguments)
    found = vars(_parser().parse_args(ours))
    if found["verb"] in _WITH_COMMAND and not command:
        raise UsageError(f"No command to run. Write it after --, like this:\n{USAGE}")
    if found.get("nprocs", 1) < 1:
        raise UsageError(f"--nprocs {found['nprocs']}: a node has at least one rank.")
    policy = {name: found.pop(name) for name in RequeuePolicy._fields if name in found}
    return AgentOptions(command=command, policy=RequeuePolicy(**policy), **found)


def shown_ranks(show: str, local: Sequence[int]) -> frozenset[int]:
    """Return those of our ranks whose lines reach the console."""
    if show == "all":
        return frozenset(local)
    return frozenset(local) & {int(word) for word in show.split(",")}


def _split(arguments: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    # By hand: argparse would take options of the training command that look like ours.
    words = list(arguments)
    if "--" not in words:
        return words, ()
    at = words.index("--")
    return words[:at], tuple(words[at + 1 :])


def _rank_list(text: str) -> str:
    if text != "all" and not all(word.isdigit() for word in text.split(",")):
        raise UsageError(
            f"--show {text}: write all, 0 or 0,2 (ranks whose lines reach the console)."
        )
    return text


def _module_names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]
        raise UsageError(f"{message}\n{USAGE}")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m allranks.runtime.agent", usage=USAGE, allow_abbrev=False)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser(
        "block-signals",
        help="run a launcher with the signals for ranks blocked",
        allow_abbrev=False,
    )
    ranks = verbs.add_parser("ranks", help="start and supervise a node's ranks", allow_abbrev=False)
    ranks.add_argument("--nprocs", type=int, required=True, help="ranks on this node")
    ranks.add_argument("--mode", choices=("fork", "exec"), default="exec")
    ranks.add_argument(
        "--preload", type=_module_names, default=(), help="modules to import before the fork"
    )
    ranks.add_argument("--nnodes", type=int, help="default: from the Slurm step, else 1")
    ranks.add_argument("--node-rank", type=int, help="default: from the Slurm step, else 0")
    ranks.add_argument(
        "--no-summary", dest="summary", action="store_false", help="do not print the first error"
    )
    ranks.add_argument("--plain", action="store_true", help="no rank variables: one bare process")
    rank = verbs.add_parser("rank", help="supervise the one rank that this is", allow_abbrev=False)
    rank.add_argument("--local-rank-arg", metavar="NAME", help="append --NAME=N to the command")
    rank.add_argument("--peers", action="store_true", help="end when another rank has failed")
    for each in (ranks, rank):
        each.add_argument("--prefix", choices=("auto", "always", "never"), default="auto")
        each.add_argument(
            "--show",
            type=_rank_list,
            default=os.environ.get("ALLRANKS_SHOW") or "all",
            help="ranks whose lines reach the console: all, 0, 0,2",
        )
    summary = verbs.add_parser("summary", help="print the first error")
    summary.add_argument("attempt")
    summary.add_argument(
        "exit_code", nargs="?", type=int, help="print the first error's, else this"
    )
    _add_attempt_verbs(verbs)
    server = verbs.add_parser("horovod-server", help="serve the rendezvous of Horovod's ranks")
    server.add_argument("--host", required=True, help="the address to listen on, and no other")
    server.add_argument("--port", type=int, required=True)
    return parser


def _add_attempt_verbs(verbs: Any) -> None:
    """Add ``attempt-start`` and ``attempt-end``; a script passes both its policy."""
    start = verbs.add_parser("attempt-start", help="may an attempt start here", allow_abbrev=False)
    end = verbs.add_parser("attempt-end", help="what follows an attempt", allow_abbrev=False)
    usual = RequeuePolicy()
    for each in (start, end):
        each.add_argument("attempt")
        each.add_argument("--requeue", action="store_true", help="the job may be requeued")
        each.add_argument("--max-attempts", type=int, default=usual.max_attempts)
        each.add_argument("--max-no-progress", type=int, default=usual.max_no_progress)
        each.add_argument("--restarts", type=int, default=usual.restarts)
        each.add_argument("--job", default="", help="the output of scontrol show job -o")
        each.add_argument("--nodes", action="store_true", help="scontrol show node -o is on stdin")
        each.add_argument("--terminated", action="store_true", help="the script received TERM")
        each.add_argument("--ranks-running", action="store_true", help="the ranks still run")
        each.add_argument("--not-started", action="store_true", help="it failed before its launch")
        each.add_argument("--refused", default="", help="what Slurm refused: requeue or resubmit")
        each.add_argument("--retry-after", default="0", help="seconds to the next try; empty: none")
        each.add_argument("--exclude", default="", help="nodes that the job avoids")
    end.add_argument("exit_code", type=int)
