"""How much a job asks for, and what a step of it gets. What the text does not tell is None."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from allranks.lint.command_calls import Layer
from allranks.lint.command_options import CommandOptions, Option
from allranks.lint.directives import Directives
from allranks.lint.shell.model import Word

_GRES_GPU = re.compile(
    r"(?:^|,)(?:gres/)?gpu(?::(?P<type>[A-Za-z][\w.\-]*))?(?::(?P<count>\d+))?(?=\(|,|$)"
)
Number = Callable[[Word], int | None]
"""Gives the number that a word stands for."""
_TYPED = re.compile(r"^(?:(?P<type>[A-Za-z][\w.\-]*):)?(?P<count>\d+)$")


@dataclass(frozen=True)
class Allocation:
    """What the directives ask for."""

    options: CommandOptions
    known: bool = True
    """False for heterogeneous jobs and texts without directives: then nothing is sure."""

    @property
    def nodes(self) -> int | None:
        """Machines. One where nobody asks for more, and no number of tasks could spread."""
        if not self.known:
            return None
        given = self.number("nodes")
        if given is not None or self.options.has("nodes"):
            return given
        if self.options.has("nodelist", "nodefile", "ntasks") and self.number("ntasks") != 1:
            return None
        return 1

    @property
    def several_nodes(self) -> bool:
        """Whether the script itself asks for more than one node."""
        return self.known and (self.number("nodes") or self.smallest_nodes or 1) > 1

    @property
    def smallest_nodes(self) -> int | None:
        """The lower end of ``--nodes=2-4``."""
        match = re.match(r"^(\d+)-\d+$", self.text("nodes") or "")
        return int(match[1]) if match else None

    @property
    def tasks_per_node(self) -> int | None:
        """Tasks on each node, one unless more are asked for."""
        if not self.known:
            return None
        nodes = self.nodes
        if (given := self.number("ntasks-per-node")) is not None and not self.options.has("ntasks"):
            return given
        if self.options.has("ntasks"):
            total = self.number("ntasks")
            if total is None or not nodes or total % nodes:
                return None if total != 1 else 1
            return total // nodes
        if self.options.has("ntasks-per-node"):
            return None
        if self.options.has("ntasks-per-gpu"):
            per, gpus = self.number("ntasks-per-gpu"), self._gpus_by_node()
            return per * gpus if per is not None and gpus is not None else None
        if self.options.has("ntasks-per-socket", "ntasks-per-core", "tres-per-task"):
            return None
        return 1

    @property
    def tasks(self) -> int | None:
        """Tasks in all."""
        if not self.known:
            return None
        if (given := self.number("ntasks")) is not None:
            return given
        nodes, per = self.nodes, self.tasks_per_node
        return nodes * per if nodes is not None and per is not None else None

    @property
    def gpus_per_node(self) -> int | None:
        """GPUs on each node; 0 where the script asks for none."""
        if not self.known:
            return None
        direct = self._gpus_by_node()
        if direct is not None:
            return direct
        if self.options.has("gpus-per-task"):
            per, tasks = self.count("gpus-per-task"), self.tasks_per_node
            return per * tasks if per is not None and tasks is not None else None
        if self.options.has("gpus"):
            total, nodes = self.count("gpus"), self.nodes
            if total is None or not nodes or total % nodes:
                return None
            return total // nodes
        if self.options.has("gres", "gpus-per-node", "gpus-per-socket", "tres-per-task"):
            return None
        return 0

    @property
    def asks_for_gpus(self) -> bool:
        """Whether any option names GPUs."""
        if self.options.has("gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket"):
            return True
        return "gpu" in (self.text("gres") or "")

    @property
    def gpu_option(self) -> Option | None:
        """The option that asks for GPUs."""
        return self.options.find("gpus-per-node", "gpus-per-task", "gpus", "gres")

    @property
    def gpu_type(self) -> str | None:
        """The type of GPU that is asked for."""
        for name in ("gpus-per-node", "gpus-per-task", "gpus"):
            if (match := _TYPED.match(self.text(name) or "")) and match["type"]:
                return match["type"]
        match = _GRES_GPU.search(self.text("gres") or "")
        return match["type"] if match else None

    @property
    def cpus_per_task(self) -> int | None:
        """CPUs of each task, where the script says so."""
        return self.number("cpus-per-task")

    def _gpus_by_node(self) -> int | None:
        if (given := self.count("gpus-per-node")) is not None:
            return given
        match = _GRES_GPU.search(self.text("gres") or "")
        return int(match["count"] or 1) if match else None

    def text(self, name: str) -> str | None:
        """The value of an option as it is written."""
        return self.options.text(name)

    def number(self, name: str) -> int | None:
        """A value that is a plain number."""
        text = (self.text(name) or "").strip()
        if name == "nodes" and (match := re.match(r"^(\d+)-(\d+)$", text)):
            return int(match[1]) if match[1] == match[2] else None
        return int(text) if text.isdecimal() and len(text) < 9 else None

    def count(self, name: str) -> int | None:
        """A number of GPUs, perhaps with a type."""
        match = _TYPED.match((self.text(name) or "").strip())
        return int(match["count"]) if match else None


@dataclass(frozen=True)
class Shape:
    """How many nodes and tasks a step has."""

    nodes: int | None
    tasks: int | None

    @property
    def tasks_per_node(self) -> int | None:
        """Tasks on each node, where they are spread evenly."""
        if not self.nodes or self.tasks is None or self.tasks % self.nodes:
            return None
        return self.tasks // self.nodes


def allocation_of(directives: Directives) -> Allocation:
    """What a script asks for."""
    return Allocation(directives.options, bool(directives) and directives.components == 1)


def step_shape(job: Allocation, step: Layer | None, number: Number) -> Shape:
    """The shape of a step: its own options, then those of the job."""
    if step is None:
        return Shape(1, 1)
    if step.kind == "mpi":
        return _mpi_shape(job, step, number)
    own = step.options
    nodes = _own(own, number, "nodes") if own.has("nodes") else job.nodes
    if own.has("ntasks"):
        tasks = _own(own, number, "ntasks")
    elif own.has("ntasks-per-node"):
        per = _own(own, number, "ntasks-per-node")
        tasks = nodes * per if nodes is not None and per is not None else None
    elif own.has("ntasks-per-gpu", "gpus-per-task", "multi-prog", "het-group") or not job.known:
        tasks = None
    elif own.has("nodes") and not job.options.has("ntasks"):
        per = job.tasks_per_node
        tasks = nodes * per if nodes is not None and per is not None else None
    else:
        tasks = job.tasks
    if tasks is not None and nodes is not None and not own.has("nodes"):
        nodes = min(nodes, max(tasks, 1))
    return Shape(nodes, tasks)


def _mpi_shape(job: Allocation, step: Layer, number: Number) -> Shape:
    tasks = None
    given = step.options.find("np", "n", "c")
    if given is not None and given.value is not None:
        tasks = number(given.value)
    elif not step.options.has("N", "ppn", "npernode", "perhost", "map-by", "hostfile", "host", "H"):
        tasks = job.tasks
    return Shape(job.nodes, tasks)


def _own(options: CommandOptions, number: Number, name: str) -> int | None:
    value = options.value(name)
    return None if value is None else number(value)
