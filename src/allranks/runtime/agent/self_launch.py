"""Start the ranks that a script run by plain ``python train.py`` asks for with ``nprocs``.

The process that asks becomes the first rank of its node and starts the missing ones by running its
own command line again, with the variables of a rank. Every rank runs the whole script, as under
torchrun: nothing is pickled or forked, lambdas and CUDA work, and the trained model is in the
caller's process. srun with one task per node is the same case on each node.

``ALLRANKS_SPAWNED`` marks these ranks. Its value is an id that they share: they find each other
by it, trust RANK and the other variables, and start no further ranks.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from allranks.errors import UsageError
from allranks.runtime.agent.console import print_line
from allranks.runtime.world import process_group
from allranks.runtime.world.detection import launch_id
from allranks.runtime.world.env_variables import read_int
from allranks.runtime.world.launcher_env.rank_variables import SPAWNED
from allranks.runtime.world.model import World

_SOURCES = {
    "environment": "RANK and WORLD_SIZE set",
    "kubernetes": "RANK and WORLD_SIZE set",
    "tensorflow": "TF_CONFIG sets",
    "override": "ALLRANKS_WORLD sets",
}
_is_settled = False
"""Whether a call has settled how many ranks there are: some work may have been done with them."""
_is_reported = False


def _working_folder() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:  # the folder was removed under us
        return Path("/")


_FOLDER = _working_folder()
"""Where Python was started, as long as the script imports us before it changes the folder."""


def ensure_ranks(nprocs: int | None, *, log_folder: Path | None = None) -> World:
    """Make sure that ``nprocs`` ranks take part; returns this process's world.

    Call it before `init`, in the main thread. None takes what the launcher started, and so does a
    number that differs from a launcher's own. The output of the ranks that are started goes to
    ``ranks/`` in the run's attempt folder or in ``log_folder``, else to files that a good end removes.
    """
    global _is_settled
    here = process_group.world()
    if nprocs is not None and nprocs < 1:
        raise UsageError(f"nprocs={nprocs}: must be at least 1.")
    if nprocs is not None and nprocs != here.size:
        if here.launcher == "spawn" or (_may_start(here, nprocs) and _is_late()):
            raise _too_late(here, nprocs)
        if _may_start(here, nprocs):
            here = _start(here, nprocs, log_folder)
        else:
            _keep_launcher_ranks(here, nprocs)
    _is_settled = True
    return here


def _may_start(here: World, nprocs: int) -> bool:
    """Return whether ranks are missing that no launcher was asked to start."""
    one_per_node = here.launcher == "srun" and here.size == here.nodes and here.local_size == 1
    return nprocs > here.size and (here.launcher == "plain" or one_per_node)


def _is_late() -> bool:
    return _is_settled or process_group.is_running()


def _start(here: World, nprocs: int, log_folder: Path | None) -> World:
    """Start the missing ranks of this node and become the first one."""
    if nprocs % here.nodes:
        raise UsageError(
            f"nprocs={nprocs} cannot be shared evenly by {here.nodes} nodes (srun started one task "
            f"on each). Use nprocs={nprocs - nprocs % here.nodes or here.nodes} or "
            f"{nprocs + here.nodes - nprocs % here.nodes}."
        )
    if why := relaunch_obstacle():
        raise UsageError(
            f"nprocs={nprocs} needs {nprocs - 1} more processes like this one, and it cannot be "
            f"started again: {why}.\nPut the training into a file, for example train.py, and type: "
            f"allranks run --nprocs {nprocs} train.py"
        )
    from allranks.runtime.agent.local_ranks import start_local_ranks

    _note_idle_nodes(here, nprocs)
    local = nprocs // here.nodes
    first = _variables(here, local)
    others = [first | _numbers(here.rank * local + at, at) for at in range(1, local)]
    base = {name: value for name, value in os.environ.items() if name not in _stale(here)}
    base.setdefault("PYTHONUNBUFFERED", "1")  # a rank that dies must not lose its last lines
    command = ([sys.executable, *sys.orig_argv[1:]], _FOLDER)
    start_local_ranks(command, [base | each for each in others], _log_folder(log_folder))
    return _become(here, first | _numbers(here.rank * local, 0))


def _variables(here: World, local: int) -> dict[str, str]:
    """Return the variables of all ranks of this node. All ranks share the mark, also over nodes."""
    alone = here.nodes == 1
    own = f"{os.getpid()}-{os.urandom(6).hex()}"
    values = {
        "WORLD_SIZE": str(here.nodes * local),
        "LOCAL_WORLD_SIZE": str(local),
        # One task per node: with another distribution, the rendezvous is still at task 0.
        "NODE_RANK": str(here.rank),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS") or str(max(1, _cpus() // local)),
        SPAWNED: own if alone else f"{launch_id(os.environ)}/spawn",
    }
    address = "127.0.0.1" if alone else here.master_addr
    return values | ({"MASTER_ADDR": address} if address else {})


def _numbers(rank: int, local_rank: int) -> dict[str, str]:
    return {"RANK": str(rank), "LOCAL_RANK": str(local_rank)}


def _stale(here: World) -> tuple[str, ...]:
    """Return the variables to drop: on one node a MASTER_PORT in the environment may be taken."""
    return () if here.port_is_given and here.nodes > 1 else ("MASTER_PORT",)


def _become(here: World, variables: dict[str, str]) -> World:
    """Make this process a rank by its variables; returns its world."""
    asked = os.environ.get("OMP_NUM_THREADS")
    for name in _stale(here):
        os.environ.pop(name, None)
    os.environ.update(variables)
    torch = sys.modules.get("torch")
    if torch is not None and not asked:
        torch.set_num_threads(int(variables["OMP_NUM_THREADS"]))
    return process_group.detect_again()


def _log_folder(asked: Path | None) -> Path | None:
    attempt = os.environ.get("ALLRANKS_ATTEMPT_DIR")
    folder = Path(attempt) if attempt else asked
    return None if folder is None else folder.absolute()


def _cpus() -> int:
    with suppress(AttributeError):  # not Linux
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _note_idle_nodes(here: World, nprocs: int) -> None:
    """Report that a batch script which calls python without srun uses only the first node."""
    nodes = read_int(os.environ, "SLURM_JOB_NUM_NODES", "SLURM_NNODES") or 1
    if here.launcher == "plain" and nodes > 1:
        print_line(
            f"All {nprocs} ranks start on {here.host}, though the job has {nodes} nodes. To use "
            "them all: srun --ntasks-per-node=1 python …"
        )


def _keep_launcher_ranks(here: World, nprocs: int) -> None:
    """Keep the launcher's number of ranks; rank 0 reports it once."""
    global _is_reported
    if here.is_main and not _is_reported:
        source = _SOURCES.get(here.launcher, f"{here.launcher} started")
        ranks = "1 rank" if here.size == 1 else f"{here.size} ranks"
        print_line(f"nprocs={nprocs} is ignored: {source} {ranks}.")
    _is_reported = True


def _too_late(here: World, nprocs: int) -> UsageError:
    """Return the error: ranks that start now would run the script from its beginning."""
    running = "1 rank is" if here.size == 1 else f"{here.size} ranks are"
    return UsageError(
        f"nprocs={nprocs} was asked for, but {running} running ({here.reason}), and their number "
        f"stays for the whole script.\nAsk for nprocs={nprocs} from the first Trainer on, or train "
        "in two scripts."
    )


def relaunch_obstacle() -> str:
    """Return why this process cannot be started a second time; empty when it can."""
    reasons: dict[str, Callable[[], object]] = {
        "it is a notebook": _is_notebook,
        "it is interactive": lambda: hasattr(sys, "ps1") or sys.flags.inspect,
        "its script was typed or came through a pipe": lambda: not names_a_program(sys.orig_argv),
        # The test process itself, not a script that a test started.
        "it runs pytest": lambda: "_pytest" in sys.modules and "PYTEST_CURRENT_TEST" in os.environ,
        "it was started by multiprocessing": _is_worker,
        # Linux ends the ranks with the thread that started them, so it must be the one that stays.
        "this is not its main thread": lambda: (
            threading.current_thread() is not threading.main_thread()
        ),
    }
    return next((reason for reason, holds in reasons.items() if holds()), "")


def names_a_program(words: list[str]) -> bool:
    """Return whether Python's command line has a script, ``-m module`` or ``-c code``."""
    rest = iter(words[1:])
    for word in rest:
        if word == "-":
            return False
        if not word.startswith("-"):
            return True
        if word.startswith("--"):
            next(rest, "")  # the one long option that runs a program: --check-hash-based-pycs HOW
            continue
        letters = word[1:]
        value = min((letters.find(each) for each in "WX" if each in letters), default=len(letters))
        if any(each in letters[:value] for each in "cm"):
            return True
        if value == len(letters) - 1:
            next(rest, "")  # -W and -X take the next word, unless theirs is attached
    return False


def _is_notebook() -> bool:
    ask = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return "ipykernel_launcher" in sys.orig_argv[:4] or bool(ask and ask() is not None)


def _is_worker() -> bool:
    ask = getattr(sys.modules.get("multiprocessing.process"), "parent_process", None)
    return bool(ask and ask() is not None)
