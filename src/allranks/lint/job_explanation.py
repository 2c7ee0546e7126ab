"""A job drawn small: what it asks for, what it starts, where the ranks meet.

job.sh asks for 2 nodes × 4 GPUs, 1 task per node
line 9  srun torchrun: 2 nodes × 1 task × torchrun 4 = 8 processes for 8 GPUs

  node 0          node 1
  torchrun        torchrun
  rank 0 1 2 3    rank 4 5 6 7
"""

from __future__ import annotations

from collections.abc import Iterator

from allranks.lint.command_calls import BATCH, TASK
from allranks.lint.job_script import JobScript
from allranks.lint.launch_commands import DEEPSPEED, OTHER, PYTHON, Launch
from allranks.lint.process_counts import Processes
from allranks.lint.shell.model import Part, Word
from allranks.lint.word_values import (
    ALL_HOSTS,
    FIRST_HOST,
    FIXED,
    LOCALHOST,
    OWN_ADDRESS,
    OWN_HOST,
    origin,
)

_MOST_NODES, _MOST_RANKS, _WIDTH = 4, 8, 80
_ORIGINS = {
    FIRST_HOST: "the first node of the job",
    ALL_HOSTS: "the list of all nodes",
    OWN_HOST: "the name of the host that replaces it",
    OWN_ADDRESS: "the address of the host that replaces it",
    LOCALHOST: "this machine alone",
    FIXED: "fixed in the script",
}


def explain(job: JobScript) -> str:
    """The picture of one job."""
    lines = [_asks(job)]
    for launch in job.launches:
        lines += ["", *_launch(job, launch)]
    if not job.launches:
        lines.append("Nothing in it starts a training that could be read.")
    return "\n".join(lines)


def _asks(job: JobScript) -> str:
    ask = job.allocation
    if not job.is_batch:
        return f"{job.source.name} has no #SBATCH lines: its size is given elsewhere."
    words = [_count(ask.nodes, "node")]
    if ask.asks_for_gpus:
        kind = f" {ask.gpu_type}" if ask.gpu_type else ""
        many = "" if ask.gpus_per_node == 1 else "s"
        words.append(f"{_number(ask.gpus_per_node)}{kind} GPU{many} each")
    words.append(f"{_count(ask.tasks_per_node, 'task')} per node")
    if ask.cpus_per_task:
        words.append(f"{_count(ask.cpus_per_task, 'CPU')} per task")
    return f"{job.source.name} asks for {', '.join(words)}."


def _launch(job: JobScript, launch: Launch) -> Iterator[str]:
    made = job.processes(launch)
    around = " ".join(layer.name for layer in launch.call.all_layers if layer.kind != "wrapper")
    name = f"{around} {launch.written}".strip()
    yield f"line {launch.span.line}: {name}{'' if launch.certain else ' (in a branch)'}"
    yield f"  {sentence(job, launch, made)}"
    yield from (f"  {line}" for line in _meeting(launch))
    yield from (f"  {line}".rstrip() for line in _picture(made, launch))


def sentence(job: JobScript, launch: Launch, made: Processes) -> str:
    """``2 nodes × 1 task × torchrun 4 = 8 processes for 8 GPUs``."""
    shape, ask = made.shape, job.allocation
    words = [_count(shape.nodes, "node"), f"{_count(shape.tasks_per_node, 'task')}"]
    if _goes_itself(launch, made):
        each = made.each // made.expected_nodes if made.each and made.expected_nodes else None
        words = [_count(made.expected_nodes, "node"), f"{launch.written} {_number(each)}"]
    elif launch.kind not in (PYTHON, OTHER):
        words.append(f"{launch.written} {_number(made.each)}")
    total = f"{_number(made.total)} process{'' if made.total == 1 else 'es'}"
    gpus = ask.gpus_per_node
    machines = shape.nodes
    if _goes_itself(launch, made):
        machines = made.expected_nodes or ask.nodes
    have = f" for {_count(gpus * machines, 'GPU')}" if gpus and machines else ""
    expected = ""
    if (
        made.expected_total is not None
        and made.total is not None
        and made.expected_total != made.total
    ):
        expected = f"; the ranks expect {made.expected_total}"
    return f"{' × '.join(words)} = {total}{have}{expected}"


def _goes_itself(launch: Launch, made: Processes) -> bool:
    """A launcher that starts the other nodes from the first one."""
    if launch.kind != DEEPSPEED or launch.step is not None or launch.options.has("no-ssh"):
        return False
    return made.expected_nodes is None or made.expected_nodes > 1


def _meeting(launch: Launch) -> Iterator[str]:
    named = (
        ("address", ("rdzv-endpoint", "master-addr", "main-process-ip"), "MASTER_ADDR"),
        ("port", ("master-port", "main-process-port"), "MASTER_PORT"),
        ("node rank", ("node-rank", "machine-rank"), ""),
    )
    for what, options, variable in named:
        option = launch.options.find(*options)
        binding = launch.call.env.get(variable)
        if option is not None and option.value is not None:
            yield from _fact(what, "", option.value)
        elif what == "port" and launch.options.has("rdzv-endpoint"):
            continue
        elif binding is not None and binding.parts is not None:
            yield from _fact(what, f"{variable}=", Word(binding.parts, binding.span))


def _fact(what: str, lead: str, word: Word) -> Iterator[str]:
    """One value and where it comes from, on two lines where one is too long."""
    shown, where = f"{what}: {lead}{word.shown}", f"({_where(word)})"
    if len(shown) + len(where) < _WIDTH - 3:
        yield f"{shown} {where}"
    else:
        yield from (shown, f"  {where}")


def _where(word: Word) -> str:
    known = _ORIGINS.get(origin(_address(word)), "")
    kinds = {v.shell.kind for v in word.variables() if v.shell is not None}
    kinds |= {call.shell.kind for part in word.parts for call in getattr(part, "calls", ())}
    if BATCH in kinds:
        known += ", replaced once, in the batch shell" if known else "replaced in the batch shell"
    elif TASK in kinds:
        known += ", replaced in every task" if known else "replaced in every task"
    return known.removeprefix(", ") or "not known from the text"


def _address(word: Word) -> tuple[Part, ...]:
    """The part before the port."""
    kept = []
    for part in word.parts:
        text = getattr(part, "text", None)
        if text is not None and text.startswith(":"):
            break
        kept.append(part)
    return tuple(kept)


def _picture(made: Processes, launch: Launch) -> Iterator[str]:
    nodes, tasks, each = made.shape.nodes, made.shape.tasks_per_node, made.each
    if _goes_itself(launch, made):
        nodes, tasks = made.expected_nodes, 1
        each = made.each // nodes if made.each and nodes else None
    if not nodes or not tasks or not each or nodes * tasks * each > 4096:
        return
    columns = []
    per_node = tasks * each
    for node in range(min(nodes, _MOST_NODES)):
        first = node * per_node
        ranks = [str(first + rank) for rank in range(min(per_node, _MOST_RANKS))]
        more = " …" if per_node > _MOST_RANKS else ""
        starters = f"{tasks} × {launch.written}" if tasks > 1 else launch.written
        columns.append((f"node {node}", starters, f"rank {' '.join(ranks)}{more}"))
    width = max(len(text) for column in columns for text in column) + 4
    yield ""
    for row in range(3):
        more = "…" if nodes > _MOST_NODES and row == 0 else ""
        yield ("".join(column[row].ljust(width) for column in columns) + more).rstrip()


def _number(value: int | None) -> str:
    return "?" if value is None else str(value)


def _count(value: int | None, word: str) -> str:
    return f"{_number(value)} {word}" + ("" if value == 1 else "s")
