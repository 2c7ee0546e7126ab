"""The Job: every value that a user can set, in one table.

The command's options, the keys of ``allranks.toml``, the arguments of ``Job(...)``, the reference page
and the ``#SBATCH`` lines are all generated from it. A field without a value is ``None`` (or empty) and is
derived later, see ``defaults.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from allranks.core.units import Gpus, parse_memory, parse_time
from allranks.job import field_parsing as parse
from allranks.job.launchers import LAUNCHERS

LAUNCHER_NAMES = ("auto", *LAUNCHERS)
FRAMEWORKS = ("auto", "torch", "tensorflow", "horovod", "none")
GROUPS = ("What to run", "How much", "Queue", "Launch", "Environment", "Run folder")


@dataclass(frozen=True)
class FieldOption:
    """The properties of a field on the command line, in files and in the docs."""

    help: str
    group: str
    parse: parse.Parser = parse.text
    metavar: str = "TEXT"
    many: bool = False
    flag: bool = False
    directive: str | None = None
    """The sbatch option that takes the value unchanged."""
    short: str | None = None
    spelling: str | None = None
    """The option's name if it is not the field's."""


def option(help: str, group: str, **how: Any) -> Any:  # noqa: A002
    """Return a dataclass field of Job with its properties."""
    spec = FieldOption(help, group, **how)
    empty: dict[str, Any] = {}
    if spec.many:
        table = spec.parse in (parse.pairs, parse.variables, parse.directives)
        empty = {"default_factory": dict if table else tuple}
    return field(**(empty or {"default": None}), metadata={"option": spec})


def _what(help: str, **how: Any) -> Any:  # noqa: A002
    return option(help, "What to run", **how)


def _much(help: str, **how: Any) -> Any:  # noqa: A002
    return option(help, "How much", **how)


def _queue(help: str, directive: str | None = None, **how: Any) -> Any:  # noqa: A002
    return option(help, "Queue", directive=directive, **how)


def _launch(help: str, **how: Any) -> Any:  # noqa: A002
    return option(help, "Launch", **how)


def _environment(help: str, **how: Any) -> Any:  # noqa: A002
    return option(help, "Environment", **how)


def _run(help: str, **how: Any) -> Any:  # noqa: A002
    return option(help, "Run folder", **how)


@dataclass(frozen=True)
class Job:
    """What to run and on how much."""

    script: str | None = None
    args: tuple[str, ...] = ()

    module: bool | None = _what(
        "SCRIPT is a module name, as with python -m.", parse=parse.switch, flag=True, short="m"
    )
    python: str | None = _what(
        "Python interpreter of the job [default: python].", metavar="PROGRAM"
    )
    chdir: str | None = _what("Working directory [default: the current one].", metavar="DIR")
    site: str | None = _what("Cluster: a site name or a site file.", metavar="NAME")

    nodes: int | None = _much(
        "Number of nodes [default: 1].", parse=parse.count, metavar="N", short="N"
    )
    gpus_per_node: Gpus | None = _much(
        "GPUs per node, with an optional type: A100:2.", parse=Gpus.parse, metavar="[TYPE:]N"
    )
    gpus_per_task: Gpus | None = _much(
        "GPUs per Slurm task, instead of --gpus-per-node.",
        parse=Gpus.parse,
        metavar="[TYPE:]N",
    )
    nprocs: int | None = _much(
        "Total number of ranks [default: one per GPU].", parse=parse.count, metavar="N", short="n"
    )
    tasks_per_node: int | None = _much(
        "Slurm tasks per node [default: what the launcher needs].",
        parse=parse.count,
        metavar="N",
    )
    cpus_per_task: int | None = _much(
        "CPUs per Slurm task [default: in proportion to the GPUs].",
        parse=parse.count,
        metavar="N",
        short="c",
    )
    memory: int | None = _much(
        "Memory per node: 64G; 0 for all [default: in proportion to the GPUs].",
        parse=parse_memory,
        metavar="SIZE",
    )
    time: int | None = _much(
        "Time limit: 2h, 90m, 12:00:00, 0-03:00.", parse=parse_time, metavar="TIME", short="t"
    )

    name: str | None = _queue("Job name [default: the script's name].", "job-name", short="J")
    partition: str | None = _queue("Partition (queue).", "partition", short="p")
    account: str | None = _queue("Account (project) to charge.", "account", short="A")
    qos: str | None = _queue("Quality of service.", "qos")
    constraint: str | None = _queue("Required node features.", "constraint", short="C")
    reservation: str | None = _queue("Reservation to use.", "reservation")
    exclusive: bool | None = _queue(
        "Do not share the nodes with other jobs.", parse=parse.switch, flag=True
    )
    nodelist: str | None = _queue("Nodes that the allocation must contain.", "nodelist", short="w")
    exclude: str | None = _queue("Nodes to exclude.", "exclude", short="x")
    array: str | None = _queue("Job array: 0-9, 1-20%4.", "array", short="a")
    dependency: str | None = _queue("Start after other jobs: afterok:123.", "dependency", short="d")
    comment: str | None = _queue("Comment that Slurm stores with the job.", "comment")
    mail_type: str | None = _queue("When to send mail: END,FAIL.", "mail-type")
    mail_user: str | None = _queue("Recipient of the mail.", "mail-user")
    wait_all_nodes: bool | None = _queue(
        "Wait until all nodes are up before the script starts.", parse=parse.switch, flag=True
    )
    signal: str | None = _queue(
        "Signal before the time limit: B:USR1@120.", "signal", parse=parse.signal
    )
    requeue: bool | None = _queue(
        "Requeue and resume after the time limit, a preemption or a node failure.",
        parse=parse.switch,
        flag=True,
    )
    max_attempts: int | None = _queue(
        "Total number of attempts with --requeue or --restarts [default: 100].",
        parse=parse.count,
        metavar="N",
    )
    max_no_progress: int | None = _queue(
        "Stop after N consecutive attempts without a newer checkpoint [default: 3].",
        parse=parse.count,
        metavar="N",
    )
    output: str | None = _queue(
        "Log file of the Slurm job [default: in the run folder].", metavar="PATTERN", short="o"
    )
    error: str | None = _queue(
        "Log file of its stderr [default: same as --output].", "error", metavar="PATTERN", short="e"
    )
    sbatch: Mapping[str, str] = _queue(
        "Any other sbatch option.", parse=parse.directives, many=True, metavar="KEY=VALUE"
    )

    launcher: str | None = _launch(
        "How processes start: " + ", ".join(LAUNCHER_NAMES) + " [default: auto].",
        parse=parse.one_of(*LAUNCHER_NAMES),
        metavar="NAME",
        short="l",
    )
    launcher_args: tuple[str, ...] = _launch(
        "Further argument of the launcher's command.",
        parse=parse.texts, many=True, metavar="WORD", spelling="launcher-arg",
    )  # fmt: skip
    rendezvous: str | None = _launch(
        "Rendezvous of torchrun and accelerate: c10d or static [default: c10d].",
        parse=parse.one_of("c10d", "static"),
        metavar="KIND",
    )
    framework: str | None = _launch(
        "Framework whose variables the ranks get: " + ", ".join(FRAMEWORKS) + " [default: auto].",
        parse=parse.one_of(*FRAMEWORKS),
        metavar="NAME",
    )
    head: str | None = _launch(
        "Node of MASTER_ADDR and rank 0 [default: the first].", metavar="NODE"
    )
    interface: str | None = _launch(
        "Network interface of MASTER_ADDR [default: by route].", metavar="NAME"
    )
    port: int | None = _launch("MASTER_PORT [default: a free port].", parse=parse.port, metavar="N")
    distribution: str | None = _launch(
        "Distribution of ranks over nodes: block, cyclic, … [default: block].", metavar="KIND"
    )
    mpi: str | None = _launch(
        "MPI plugin for srun (pmix, pmi2), or the MPI of mpirun (openmpi, mpich, intel).",
        metavar="KIND",
    )
    bind: str | None = _launch(
        "CPU binding: auto (near the GPU), none, or one list per local rank: '0-7;8-15'.",
        parse=parse.binding,
        metavar="KIND",
    )
    restarts: int | None = _launch(
        "How many times failed ranks are restarted in place [default: 0].",
        parse=parse.whole,
        metavar="N",
    )

    modules: tuple[str, ...] = _environment(
        "Environment module to load.",
        parse=parse.texts,
        many=True,
        spelling="load",
        metavar="MODULE",
    )
    module_purge: bool | None = _environment(
        "Run `module purge` first [default: yes, if --load is given].",
        parse=parse.switch,
        flag=True,
    )
    conda: str | None = _environment("Conda environment to activate.", metavar="NAME")
    conda_root: str | None = _environment(
        "Installation directory of conda [default: ask conda].", metavar="DIR"
    )
    venv: str | None = _environment("Virtual environment to activate.", metavar="DIR")
    uv: str | None = _environment("uv project whose .venv is activated.", metavar="DIR")
    setup: tuple[str, ...] = _environment(
        "Shell file to source.", parse=parse.texts, many=True, metavar="FILE"
    )
    setup_commands: tuple[str, ...] = _environment(
        "Shell command to run.",
        parse=parse.commands, many=True, spelling="setup-command", metavar="LINE",
    )  # fmt: skip
    setup_on: str | None = _environment(
        "Where the setup runs: batch (once) or node (in every task) [default: batch].",
        parse=parse.one_of("batch", "node"),
        metavar="WHERE",
    )
    env: Mapping[str, str] = _environment(
        "Environment variable of the job.", parse=parse.variables, many=True, metavar="NAME=VALUE"
    )
    container: str | None = _environment("Container image to run in.", metavar="IMAGE")
    container_runtime: str | None = _environment(
        "apptainer, singularity or pyxis [default: apptainer].",
        parse=parse.one_of("apptainer", "singularity", "pyxis"),
        metavar="NAME",
    )
    binds: tuple[str, ...] = _environment(
        "Directory to mount in the container: FROM[:TO[:ro]].",
        parse=parse.texts, many=True, spelling="mount", metavar="BIND",
    )  # fmt: skip
    container_args: tuple[str, ...] = _environment(
        "Further argument of the container's command.",
        parse=parse.texts, many=True, spelling="container-arg", metavar="WORD",
    )  # fmt: skip
    container_setup: tuple[str, ...] = _environment(
        "Shell command to run in the container before the training.",
        parse=parse.commands, many=True, metavar="LINE",
    )  # fmt: skip

    runs: str | None = _run("Directory of the run folders [default: runs].", metavar="DIR")
    snapshot: str | None = _run(
        "Save the code in the run folder: copy, reference or off [default: copy; for run, reference].",
        parse=parse.one_of("copy", "reference", "off"),
        metavar="MODE",
    )
    agent: bool | None = _run(
        "Run the allranks agent: a log per rank, the first error last [default: yes].",
        parse=parse.switch,
        flag=True,
    )

    def __post_init__(self) -> None:
        """Parse every value as from a file or an option, so that Python users get the same checks."""
        for name, spec in options().items():
            value = getattr(self, name)
            if value is not None and value not in ((), {}):
                object.__setattr__(self, name, read(name, value, spec))
        if self.script is not None:
            object.__setattr__(self, "script", parse.text(self.script))
        object.__setattr__(self, "args", parse.words(self.args))


def read(name: str, value: Any, spec: FieldOption) -> Any:
    """Return the parsed value; an error names the field."""
    from allranks.errors import UsageError

    if spec.parse in (parse_time, parse_memory) and isinstance(value, int):
        return value  # parsed already: seconds or mebibytes
    try:
        return spec.parse(value)
    except UsageError as error:
        raise UsageError(f"{flag(name, spec)}: {error}") from None


def flag(name: str, spec: FieldOption | None = None) -> str:
    """Return the option of a field: ``--gpus-per-node``."""
    spec = spec or options()[name]
    return "--" + (spec.spelling or name.replace("_", "-"))


_OPTIONS: dict[str, FieldOption] = {}


def options() -> dict[str, FieldOption]:
    """Return the fields that options and files can set, by name."""
    if not _OPTIONS:
        _OPTIONS.update(
            {
                item.name: item.metadata["option"]
                for item in fields(Job)
                if "option" in item.metadata
            }
        )
    return _OPTIONS


def empty(name: str) -> Any:
    """Return the value of a field that is not set."""
    item = Job.__dataclass_fields__[name]
    return item.default_factory() if item.default_factory is not MISSING else item.default
