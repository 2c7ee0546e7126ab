"""How many processes a launch makes: nodes × tasks × what each launcher starts."""

from __future__ import annotations

from dataclasses import dataclass

from allranks.lint.job_resources import Shape
from allranks.lint.launch_commands import (
    ACCELERATE,
    DEEPSPEED,
    HOROVODRUN,
    LAUNCH,
    TORCHRUN,
    Launch,
)
from allranks.lint.shell.model import Word
from allranks.lint.word_values import Values

_BY_GPU = frozenset({"gpu", "auto"})


@dataclass(frozen=True)
class Processes:
    """The numbers of one launch; None is not known."""

    shape: Shape
    """Where the launcher itself runs."""
    each: int | None
    """Processes that each of its copies starts."""
    expected_nodes: int | None
    """Copies of itself that it expects: ``--nnodes``, ``--num_machines``."""
    expected_total: int | None
    """Processes that the training expects in all."""

    @property
    def total(self) -> int | None:
        """Processes that really start."""
        tasks = self.shape.tasks
        return tasks * self.each if tasks is not None and self.each is not None else None


def count_processes(launch: Launch, values: Values) -> Processes:
    """The numbers of a launch."""
    shape = values.shape(launch.step)
    if launch.kind in (TORCHRUN, LAUNCH):
        each = _each(launch.options.value("nproc-per-node"), values, default=1)
        nodes = _nodes(launch, values)
        expected = each * nodes if each is not None and nodes is not None else None
        return Processes(shape, each, nodes, expected)
    if launch.kind == ACCELERATE:
        return _accelerate(launch, values, shape)
    if launch.kind == DEEPSPEED:
        return _deepspeed(launch, values, shape)
    if launch.kind == HOROVODRUN:
        total = values.number(launch.options.value("np", "num-proc", "n"))
        return Processes(shape, total, None, total)
    return Processes(shape, 1, None, shape.tasks)


def _each(word: Word | None, values: Values, default: int) -> int | None:
    if word is None:
        return default
    if word.text in _BY_GPU:
        return values.allocation.gpus_per_node or None
    return values.number(word)


def _nodes(launch: Launch, values: Values) -> int | None:
    word = launch.options.value("nnodes")
    if word is None:
        return 1
    low, colon, high = (word.text or "").partition(":")
    if colon:  # elastic: 1:4
        return int(low) if low == high and low.isdecimal() else None
    return values.number(word)


def _accelerate(launch: Launch, values: Values, shape: Shape) -> Processes:
    total = values.number(launch.options.value("num-processes"))
    word = launch.options.value("num-machines")
    config = launch.options.has("config-file")
    machines = values.number(word) if word is not None else (None if config else 1)
    if machines and total is not None and total % machines == 0:
        return Processes(shape, total // machines, machines, total)
    return Processes(shape, None, machines, total)


def _deepspeed(launch: Launch, values: Values, shape: Shape) -> Processes:
    """DeepSpeed's own launcher goes to the other nodes by itself."""
    options = launch.options
    gpus = values.number(options.value("num-gpus")) if options.has("num-gpus") else None
    nodes = values.number(options.value("num-nodes")) if options.has("num-nodes") else None
    alone = not options.has("hostfile", "H", "num-nodes", "include", "i", "launcher")
    if alone and gpus is not None:
        nodes = 1
    total = gpus * nodes if gpus is not None and nodes is not None else None
    return Processes(shape, total, nodes, total)
