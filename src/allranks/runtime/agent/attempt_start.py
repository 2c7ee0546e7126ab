"""Checks at the start of an attempt: how the previous one ended, and whether its nodes are reliable.

An attempt without an end was killed: its node lost power, Slurm took the nodes away, or the kernel ran
out of memory. Only the next attempt can record that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from pathlib import Path

from allranks.errors import Interrupted
from allranks.runs.atomic_files import write_json, write_text
from allranks.runs.attempt import Attempt
from allranks.runs.attempt_history import attempts_of, attempts_without_progress, task_history
from allranks.runs.run_folder import RESUBMITTED
from allranks.runtime.agent.agent_options import RequeuePolicy
from allranks.runtime.agent.attempt_end import no_progress_reason
from allranks.runtime.agent.scontrol_job import lost_nodes
from allranks.runtime.world.hostlist import expand_hostlist

EXCLUDED = "excluded"
"""The file in the run folder with the nodes to avoid, in the form of sbatch's --exclude."""
NO_OPTION = "--requeue"
"""An option of sbatch that changes nothing, as the job has it already."""
TWICE = 2
_HARD = {"7", "9", "11"}  # SIGBUS, SIGKILL, SIGSEGV: what failing memory and drivers end in


def start_attempt(
    attempt: Attempt, policy: RequeuePolicy, nodes: str, exclude: str
) -> tuple[str, str]:
    """Return ``start``, ``resubmit OPTION`` (on other nodes) or ``stop CODE`` for the script, and why."""
    run = attempt.path.parent.parent
    earlier = [
        each for each in attempts_of(run, attempt.array_task) if each.number < attempt.number
    ]
    if not earlier:
        return "start", ""
    reasons = [record_kill(earlier[-1], nodes)] if earlier[-1].exit_code is None else []
    if reason := _limit_reached(attempt, policy, earlier):
        _stop(attempt, reason)
        return f"stop {Interrupted.EXIT_CODE}", reason
    if bad := _bad_here(run, attempt, exclude):
        reasons.append(f"{', '.join(bad)} failed {TWICE} times in this run: a new job avoids it.")
        attempt.finish(0, outcome="moved away", reason=reasons[-1], next="resubmit")
        return f"resubmit {exclude_option(run)}", " ".join(reasons)
    return "start", " ".join(reasons)


def exclude_option(run: Path) -> str:
    """Return the option of sbatch that avoids the nodes which failed twice in a run."""
    try:
        nodes = (run / EXCLUDED).read_text().strip()
    except OSError:
        return NO_OPTION
    return f"--exclude={nodes}" if nodes else NO_OPTION


def record_kill(previous: Attempt, nodes: str = "", then: str = "requeued") -> str:
    """Record the end of an attempt that was killed, and what followed; its time is not known."""
    if previous.outcome:
        return ""
    hosts = set(hosts_of(previous))
    lost = [name for name in lost_nodes(nodes, previous.start) if name in hosts]
    reason = f"Attempt {previous.number} was killed"
    reason += f": {', '.join(lost)} failed." if lost else " without a message."
    if lost:
        write_json(previous.path / "nodes.json", {"nodes": lost})
    outcome = "node lost" if lost else "killed"
    end = {"exit_code": None, "outcome": outcome, "reason": reason, "next": then}
    write_json(previous.path / "end.json", end)
    return reason


def _limit_reached(attempt: Attempt, policy: RequeuePolicy, earlier: list[Attempt]) -> str:
    """Slurm requeues a job without asking the agent, so the limits are checked here too."""
    if not attempt.restart and not _resubmitted(attempt):
        return ""  # submitted by a user
    if len(earlier) >= policy.max_attempts:
        return f"The run has had {len(earlier)} attempts, as many as --max-attempts allows."
    idle = attempts_without_progress(task_history([Attempt.open(each.path) for each in earlier]))
    if idle >= policy.max_no_progress:
        return no_progress_reason(idle)
    return ""


def _resubmitted(attempt: Attempt) -> bool:
    """Whether a job script of this run submitted the job."""
    try:
        known = (attempt.path.parent.parent / RESUBMITTED).read_text()
    except OSError:
        return False
    return attempt.job_id in known.split()


def _stop(attempt: Attempt, reason: str) -> None:
    attempt.finish(Interrupted.EXIT_CODE, outcome="stopped", reason=reason, next="stop")


def _bad_here(run: Path, attempt: Attempt, exclude: str) -> list[str]:
    """Return the nodes of this allocation that failed twice, and record them for every later job."""
    attempts = attempts_of(run)
    ignored = _signals_of_script(attempts)
    counts = Counter(node for each in attempts for node in failed_nodes(each, ignored))
    bad = sorted(node for node, count in counts.items() if count >= TWICE)
    here = set(hosts_of(attempt))
    if not here & set(bad):
        return []
    known = [name for name in exclude.split(",") if name]
    write_text(run / EXCLUDED, ",".join([*known, *bad]) + "\n")
    return [node for node in bad if node in here]


def failed_nodes(attempt: Attempt, ignored: Collection[str] = ()) -> list[str]:
    """Return the nodes that were lost, or on which the first rank died of a signal as memory errors cause.

    By the names that Slurm gave the attempt, since sbatch refuses a list with any other in it.
    """
    hosts, death = hosts_of(attempt), _fatal_signal(attempt)
    node = death[1] if death and death[0] not in ignored and len(hosts) >= TWICE else ""
    found = dict.fromkeys([*attempt.lost_nodes, node])
    return [name for name in found if name in hosts]


def _fatal_signal(attempt: Attempt) -> tuple[str, str] | None:
    """Return the signal that the first failing rank died of, and its node as Slurm calls it."""
    first = attempt.first_failure()
    if first is None or first.signal not in _HARD:
        return None
    hosts = hosts_of(attempt)
    return first.signal, first.host if first.host in hosts else first.host.partition(".")[0]


def _signals_of_script(attempts: list[Attempt]) -> set[str]:
    """Return signals that ranks died of on several nodes: a bug of the script, or too little memory."""
    deaths = {death for each in attempts if (death := _fatal_signal(each))}
    counts = Counter(signal for signal, _ in deaths)
    return {signal for signal, count in counts.items() if count >= TWICE}


def hosts_of(attempt: Attempt) -> list[str]:
    """Return the host names in ``n[1-2]``."""
    return [name for text in attempt.hosts for name in expand_hostlist(text)]
