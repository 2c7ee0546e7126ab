"""Before an attempt begins: what became of the one before it, and whether these nodes can be trusted.

An attempt without an end was killed hard: its node lost power, Slurm took the nodes away, or the kernel
ran out of memory. Only the next one can write that down.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from pathlib import Path

from allranks.errors import Interrupted
from allranks.runs.atomic_files import write_json, write_text
from allranks.runs.attempt import Attempt
from allranks.runs.attempt_history import attempts_of, attempts_without_progress, task_history
from allranks.runs.run import RESUBMITTED
from allranks.runtime.agent.requeue_policy import Policy
from allranks.runtime.agent.scontrol_facts import lost_nodes
from allranks.runtime.world.hostlist import expand

EXCLUDED = "excluded"
"""The file in the run folder that names the nodes to keep away from, as sbatch's --exclude takes it."""
TWICE = 2
_HARD = {"7", "9", "11"}  # SIGBUS, SIGKILL, SIGSEGV: what failing memory and drivers end in


def before(attempt: Attempt, policy: Policy, nodes: str, exclude: str) -> tuple[str, str]:
    """A word for the job script, and the sentence that explains it."""
    run = attempt.path.parent.parent
    earlier = [
        each for each in attempts_of(run, attempt.array_task) if each.number < attempt.number
    ]
    if not earlier:
        return "go", ""
    told = [record_kill(earlier[-1], nodes)] if earlier[-1].exit_code is None else []
    if reason := _too_often(attempt, policy, earlier):
        _stop(attempt, reason)
        return f"stop {Interrupted.EXIT_CODE}", reason
    if bad := _bad_here(run, attempt, exclude):
        told.append(f"{', '.join(bad)} failed {TWICE} times in this run and is kept away from.")
        attempt.finish(0, outcome="moved away", reason=told[-1], next="resubmit")
        return "avoid", " ".join(told)
    return "go", " ".join(told)


def record_kill(previous: Attempt, nodes: str = "", then: str = "requeued") -> str:
    """Write the end that the attempt could not write itself, and what followed. Its time is not known."""
    if previous.outcome:
        return ""
    hosts = set(hosts_of(previous))
    lost = [name for name in lost_nodes(nodes, previous.start) if name in hosts]
    reason = f"Attempt {previous.number} was killed"
    reason += f": {', '.join(lost)} failed." if lost else " without a word."
    if lost:
        write_json(previous.path / "nodes.json", {"nodes": lost})
    outcome = "node lost" if lost else "killed"
    end = {"exit_code": None, "outcome": outcome, "reason": reason, "next": then}
    write_json(previous.path / "end.json", end)
    return reason


def _too_often(attempt: Attempt, policy: Policy, earlier: list[Attempt]) -> str:
    """Slurm puts a job back without asking us, so what it may is counted here too."""
    if not attempt.restart and not _by_itself(attempt):
        return ""  # a user has submitted it
    if len(earlier) >= policy.max_attempts:
        return f"{len(earlier)} attempts were made, as many as --max-attempts allows: it stops."
    idle = attempts_without_progress(task_history([Attempt.open(each.path) for each in earlier]))
    if idle >= policy.max_no_progress:
        return f"{idle} attempts in a row left no newer checkpoint (--max-no-progress): it stops."
    return ""


def _by_itself(attempt: Attempt) -> bool:
    """Whether a job script of this run has submitted the job."""
    try:
        known = (attempt.path.parent.parent / RESUBMITTED).read_text()
    except OSError:
        return False
    return attempt.job_id in known.split()


def _stop(attempt: Attempt, reason: str) -> None:
    attempt.finish(Interrupted.EXIT_CODE, outcome="stopped", reason=reason, next="stop")


def _bad_here(run: Path, attempt: Attempt, exclude: str) -> list[str]:
    """Nodes of this allocation that failed twice; they are written down for every later job."""
    attempts = attempts_of(run)
    wandering = _wandering(attempts)
    counts = Counter(node for each in attempts for node in failed_nodes(each, wandering))
    bad = sorted(node for node, count in counts.items() if count >= TWICE)
    here = set(hosts_of(attempt))
    if not here & set(bad):
        return []
    known = [name for name in exclude.split(",") if name]
    write_text(run / EXCLUDED, ",".join([*known, *bad]) + "\n")
    return [node for node in bad if node in here]


def failed_nodes(attempt: Attempt, wandering: Collection[str] = ()) -> list[str]:
    """Nodes that were lost, or where the first rank died hard while other nodes lived on.

    By the names that Slurm gave the attempt: sbatch refuses a list with any other in it.
    """
    hosts, death = hosts_of(attempt), _hard_death(attempt)
    node = death[1] if death and death[0] not in wandering and len(hosts) >= TWICE else ""
    found = dict.fromkeys([*attempt.lost_nodes, node])
    return [name for name in found if name in hosts]


def _hard_death(attempt: Attempt) -> tuple[str, str] | None:
    """The signal that the first failing rank died of, and its node as Slurm calls it."""
    first = attempt.first_failure()
    if first is None or first.signal not in _HARD:
        return None
    hosts = hosts_of(attempt)
    return first.signal, first.host if first.host in hosts else first.host.partition(".")[0]


def _wandering(attempts: list[Attempt]) -> set[str]:
    """Signals that ranks died of on several nodes: the script's doing, or too little memory."""
    deaths = {death for each in attempts if (death := _hard_death(each))}
    counts = Counter(signal for signal, _ in deaths)
    return {signal for signal, count in counts.items() if count >= TWICE}


def hosts_of(attempt: Attempt) -> list[str]:
    """The names behind ``n[1-2]``."""
    return [name for text in attempt.hosts for name in expand(text)]
