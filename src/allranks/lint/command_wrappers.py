"""Commands that run other commands. Each is peeled off; one that is not known is left alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from allranks.lint.command_calls import Layer, command_name
from allranks.lint.command_options import PROGRAM, CommandOptions, plain_options, slurm_options
from allranks.lint.shell.model import Variable, Word
from allranks.lint.slurm_options import SRUN


@dataclass(frozen=True)
class Wrapper:
    """How the words of a wrapper end and those of the wrapped command begin."""

    kind: str = "wrapper"
    verbs: tuple[str, ...] = ()
    """A word that must follow the name: ``exec`` in ``singularity exec``."""
    valued: tuple[str, ...] = ()
    """Options that take the next word."""
    skip: int = 0
    """Words between the options and the command: the image, a duration."""
    image_option: str = ""
    """An option that replaces the skipped word: shifter's ``--image``."""


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_SINGULARITY = _names(
    "B bind H home W workdir pwd env env-file o overlay n network scratch S network-args security "
    "add-caps drop-caps apply-cgroups app dns hostname mount pem-path fakeroot-uid cpus memory cwd"
)
_DOCKER = _names(
    "v volume e env w workdir u user name network net gpus ipc m memory mount device p publish "
    "shm-size ulimit h hostname entrypoint env-file pid cap-add security-opt runtime userns"
)
WRAPPERS: dict[str, Wrapper] = {
    "time": Wrapper(valued=("f", "o")),
    "nohup": Wrapper(),
    "exec": Wrapper(),
    "command": Wrapper(),
    "builtin": Wrapper(),
    "setsid": Wrapper(),
    "unbuffer": Wrapper(),
    "catchsegv": Wrapper(),
    "sudo": Wrapper(valued=("u", "g")),
    "nice": Wrapper(valued=("n", "adjustment")),
    "ionice": Wrapper(valued=("c", "n")),
    "stdbuf": Wrapper(valued=("o", "e", "i")),
    "timeout": Wrapper(valued=("s", "k", "signal", "kill-after"), skip=1),
    "numactl": Wrapper(valued=_names("C N m i p cpunodebind membind interleave physcpubind preferred")),
    "numawrap": Wrapper(),
    "taskset": Wrapper(skip=1),
    "strace": Wrapper(valued=_names("e o p s")),
    "nsys": Wrapper(
        verbs=("profile",),
        valued=_names("o output t trace s sample c capture-range d duration y delay e env-var stats w "
                      "sampling-period x cpuctxsw f force-overwrite gpu-metrics-device backtrace "
                      "capture-range-end cuda-memory-usage cuda-graph-trace trace-fork-before-exec "
                      "python-sampling pytorch python-backtrace gpu-metrics-devices show-output kill"),
    ),
    "ncu": Wrapper(valued=_names("o export k kernel-name c launch-count s launch-skip set section metrics")),
    "nvprof": Wrapper(valued=_names("o export-profile")),
    "rocprof": Wrapper(valued=_names("i o d")),
    "rocprofv3": Wrapper(valued=_names("i o d output-directory")),
    "omnitrace-run": Wrapper(),
    "perf": Wrapper(verbs=("stat", "record"), valued=("o", "e")),
    "xvfb-run": Wrapper(valued=("s", "n")),
    "conda": Wrapper(verbs=("run",), valued=_names("n name p prefix cwd")),
    "mamba": Wrapper(verbs=("run",), valued=_names("n name p prefix cwd")),
    "micromamba": Wrapper(verbs=("run",), valued=_names("n name p prefix cwd r root-prefix")),
    "uv": Wrapper(verbs=("run",), valued=_names(
        "with extra group project python p directory env-file index-url no-group package")),
    "poetry": Wrapper(verbs=("run",)),
    "pipenv": Wrapper(verbs=("run",)),
    "pixi": Wrapper(verbs=("run",), valued=_names("e environment manifest-path")),
    "singularity": Wrapper("container", ("exec", "run"), _SINGULARITY, 1),
    "apptainer": Wrapper("container", ("exec", "run"), _SINGULARITY, 1),
    "shifter": Wrapper("container", (), _names("image i volume V module env e entrypoint w workdir"), 0),
    "docker": Wrapper("container", ("run", "exec"), _DOCKER, 1),
    "podman": Wrapper("container", ("run", "exec"), _DOCKER, 1),
    "podman-hpc": Wrapper("container", ("run", "exec", "shared-run"), _DOCKER, 1),
    "sarus": Wrapper("container", ("run",), ("mount", "workdir", "w", "e", "env"), 1),
    "enroot": Wrapper("container", ("start", "exec"), _names("c conf e env m mount"), 1),
    "ch-run": Wrapper("container", (), _names("b bind c cd"), 1),
    "uenv": Wrapper("container", ("run",), ("view", "v"), 1),
    "ssh": Wrapper("remote", (), _names("i p o l F J L R D b c"), 1),
    "pdsh": Wrapper("remote", (), _names("w x R l f"), 0),
    "clush": Wrapper("remote", (), _names("w x g"), 0),
}  # fmt: skip

_MPI_TWO = frozenset({"mca", "gmca", "genv", "env", "pmca"})
_MPI_VALUED = frozenset(
    _names(
        "n np c npernode N ppn perhost host H hosts f hostfile machinefile map-by bind-to rank-by x "
        "wdir cwd output-filename display-map-to path prefix rankfile cpu-set cpus-per-proc tag-output-to "
        "genvlist envlist iface bootstrap launcher rmk timeout oversubscribe-to npersocket d depth cpu-bind "
        "env-file gpu-bind mem-bind line-buffer-to"
    )
) - frozenset({"tag-output-to", "display-map-to", "oversubscribe-to", "line-buffer-to"})
MPI = frozenset(
    {"mpirun", "mpiexec", "orterun", "mpiexec.hydra", "ibrun", "aprun", "prun", "mpirun_rsh"}
)
LEFT_ALONE = frozenset({"jsrun", "parallel", "xargs", "flux", "dask-mpi", "launch_on_nodes"})
"""Starters that are known to exist, and not read."""


def peel(words: Sequence[Word]) -> tuple[tuple[Layer, ...], tuple[Word, ...]]:
    """The wrappers around a command, outermost first, and the command itself."""
    layers: list[Layer] = []
    rest = tuple(words)
    while rest and len(layers) < 12:
        name = command_name(rest[0])
        if not name and _may_be_nothing(rest):
            layers.append(Layer("", "unknown", CommandOptions(), rest[0].span, rest[:1]))
            rest = rest[1:]
            continue
        taken = _take(name, rest)
        if taken is None or (taken[1] >= len(rest) and name not in ("srun", *MPI)):
            break
        options, count, kind = taken
        layers.append(Layer(name, kind, options, rest[0].span, rest[:count]))
        rest = rest[count:]
    return tuple(layers), rest


def _may_be_nothing(words: tuple[Word, ...]) -> bool:
    """``"${wrapper[@]}" python …``: a list that is not known, before a program that is.

    It may be empty, or hold srun: what it runs is followed, where it runs is not known.
    """
    part = words[0].parts[0] if len(words) > 1 and len(words[0].parts) == 1 else None
    listed = isinstance(part, Variable) and part.index in ("@", "*")
    return listed and PROGRAM.match(words[1].start) is not None


def _take(name: str, words: tuple[Word, ...]) -> tuple[CommandOptions, int, str] | None:
    if name == "srun":
        options, count = slurm_options(words[1:], SRUN)
        return options, count + 1, "srun"
    if name in MPI:
        options, count = _mpi(words[1:])
        return options, count + 1, "mpi"
    if name == "env":
        return _env(words)
    wrapper = WRAPPERS.get(name)
    return None if wrapper is None else _wrapped(wrapper, words)


def _wrapped(wrapper: Wrapper, words: tuple[Word, ...]) -> tuple[CommandOptions, int, str] | None:
    at = 1
    if wrapper.verbs:
        # options may stand before the verb: singularity -q exec
        while at < len(words) and words[at].start.startswith("-"):
            at += 1
        if at >= len(words) or words[at].text not in wrapper.verbs:
            return None
        at += 1
    options, count = plain_options(words[at:], (), wrapper.valued)
    return options, at + count + wrapper.skip, wrapper.kind


def _env(words: tuple[Word, ...]) -> tuple[CommandOptions, int, str]:
    options, count = plain_options(words[1:], (), ("u", "unset", "C", "chdir"))
    at = 1 + count
    while at < len(words) and "=" in words[at].start:
        at += 1
    return options, at, "wrapper"


def _mpi(words: tuple[Word, ...]) -> tuple[CommandOptions, int]:
    """Like others, but ``-mca NAME VALUE`` takes two words."""
    found: list[CommandOptions] = []
    at = 0
    while at < len(words) and words[at].start.startswith("-"):
        name = words[at].start.lstrip("-")
        if name in _MPI_TWO:
            at += 3
            continue
        options, count = plain_options(words[at : at + 2], (), _MPI_VALUED)
        found.append(CommandOptions(options.items[:1]))
        first = options.items[0] if options.items else None
        at += (
            2 if first is not None and first.value is not None and "=" not in words[at].start else 1
        )
        del count
    return CommandOptions(tuple(item for each in found for item in each.items)), at
