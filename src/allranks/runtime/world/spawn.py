"""``python train.py`` becomes several ranks when the script asks for them.

The process that asks becomes the first rank of its node and starts the missing ones by running its
own command line again, with the variables of a rank. Every rank runs the whole script, as under
torchrun: nothing is pickled or forked, lambdas and CUDA work, and what was trained is in the
caller's own hands. srun with one task per node is the same case on each node.

``ALLRANKS_SPAWNED`` marks these ranks. Its value is an id that they share: they find each other
by it, take RANK and the rest as the truth, and start no further ranks.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

from allranks.errors import UsageError
from allranks.runtime.world import process_group
from allranks.runtime.world.detection import launch_id
from allranks.runtime.world.env_variables import number
from allranks.runtime.world.local_ranks import LocalRanks
from allranks.runtime.world.model import World
from allranks.runtime.world.rank_output import say
from allranks.runtime.world.relaunch import relaunch_command, relaunch_obstacle
from allranks.runtime.world.sources.spawned_ranks import NAME as MARK

_STARTERS = {
    "environment": "that RANK and WORLD_SIZE state",
    "kubernetes": "that RANK and WORLD_SIZE state",
    "tensorflow": "that TF_CONFIG states",
    "override": "that ALLRANKS_WORLD states",
}
_begun = False
"""A first call has settled how many ranks there are: some work may have been done with them."""
_told = False


def ensure_ranks(nprocs: int | None, *, log_folder: Path | None = None) -> World:
    """Make sure that ``nprocs`` ranks take part; returns this process's world.

    Call it before `init`, in the main thread. None takes what the launcher started, and so does a
    number that differs from a launcher's own. The output of the ranks that are started goes to
    ``ranks/`` in the run's attempt folder or in ``log_folder``, else to files that a good end removes.
    """
    global _begun
    here = process_group.world()
    if nprocs is not None and nprocs < 1:
        raise UsageError(f"nprocs={nprocs}: must be at least 1.")
    if nprocs is not None and nprocs != here.size:
        if here.launcher == "spawn" or (_may_start(here, nprocs) and _is_late()):
            raise _too_late(here, nprocs)
        if _may_start(here, nprocs):
            here = _start(here, nprocs, log_folder)
        else:
            _give_way(here, nprocs)
    _begun = True
    return here


def _may_start(here: World, nprocs: int) -> bool:
    """Whether ranks are missing that no launcher was told to start."""
    one_per_node = here.launcher == "srun" and here.size == here.nodes and here.local_size == 1
    return nprocs > here.size and (here.launcher == "plain" or one_per_node)


def _is_late() -> bool:
    return _begun or process_group.is_running()


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
    _note_idle_nodes(here, nprocs)
    local = nprocs // here.nodes
    first = _variables(here, local)
    others = [first | _numbers(here.rank * local + at, at) for at in range(1, local)]
    base = {name: value for name, value in os.environ.items() if name not in _stale(here)}
    base.setdefault("PYTHONUNBUFFERED", "1")  # a rank that dies must not take its last lines along
    LocalRanks(_logs(log_folder)).start(relaunch_command(), [base | each for each in others])
    return _become(here, first | _numbers(here.rank * local, 0))


def _variables(here: World, local: int) -> dict[str, str]:
    """What all ranks of this node are told. All ranks share the mark, also over nodes."""
    alone = here.nodes == 1
    own = f"{os.getpid()}-{os.urandom(6).hex()}"
    values = {
        "WORLD_SIZE": str(here.nodes * local),
        "LOCAL_WORLD_SIZE": str(local),
        # One task per node: where they are dealt out otherwise, task 0 is still where they meet.
        "NODE_RANK": str(here.rank),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS") or str(max(1, _cpus() // local)),
        MARK: own if alone else f"{launch_id(os.environ)}/spawn",
    }
    address = "127.0.0.1" if alone else here.master_addr
    return values | ({"MASTER_ADDR": address} if address else {})


def _numbers(rank: int, local_rank: int) -> dict[str, str]:
    return {"RANK": str(rank), "LOCAL_RANK": str(local_rank)}


def _stale(here: World) -> tuple[str, ...]:
    """On one node the ranks find a free port themselves: one in the environment may be taken."""
    return () if here.port_is_given and here.nodes > 1 else ("MASTER_PORT",)


def _become(here: World, variables: dict[str, str]) -> World:
    """This process takes its own place among the ranks."""
    asked = os.environ.get("OMP_NUM_THREADS")
    for name in _stale(here):
        os.environ.pop(name, None)
    os.environ.update(variables)
    torch = sys.modules.get("torch")
    if torch is not None and not asked:
        torch.set_num_threads(int(variables["OMP_NUM_THREADS"]))
    return process_group.read_again()


def _logs(asked: Path | None) -> Path | None:
    attempt = os.environ.get("ALLRANKS_ATTEMPT_DIR")
    folder = Path(attempt) if attempt else asked
    return None if folder is None else folder.absolute() / "ranks"


def _cpus() -> int:
    with suppress(AttributeError):  # not Linux
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _note_idle_nodes(here: World, nprocs: int) -> None:
    """A batch script of several nodes that calls python without srun uses only the first."""
    nodes = number(os.environ, "SLURM_JOB_NUM_NODES", "SLURM_NNODES") or 1
    if here.launcher == "plain" and nodes > 1:
        say(
            f"All {nprocs} ranks start on {here.host}, though the job has {nodes} nodes. To use "
            "them all: srun --ntasks-per-node=1 python …"
        )


def _give_way(here: World, nprocs: int) -> None:
    """The launcher's number wins; rank 0 says so once."""
    global _told
    if here.is_main and not _told:
        starter = _STARTERS.get(here.launcher, f"that {here.launcher} started")
        ranks = "1 rank" if here.size == 1 else f"{here.size} ranks"
        say(f"nprocs={nprocs} gives way to the {ranks} {starter}.")
    _told = True


def _too_late(here: World, nprocs: int) -> UsageError:
    """Ranks that start now would run the script from its beginning, this one is past that."""
    running = "1 rank is" if here.size == 1 else f"{here.size} ranks are"
    return UsageError(
        f"nprocs={nprocs} was asked for, but {running} running ({here.reason}), and their number "
        f"stays for the whole script.\nAsk for nprocs={nprocs} from the first Trainer on, or train "
        "in two scripts."
    )
