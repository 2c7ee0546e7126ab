"""The commands that start a training: which launcher, with which options, for which script."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from allranks.lint.command_calls import Call, Layer
from allranks.lint.command_options import CommandOptions, plain_options
from allranks.lint.command_wrappers import LEFT_ALONE
from allranks.lint.evaluation.nested_scripts import SHELLS
from allranks.lint.shell.model import Word
from allranks.lint.slurm_options import names
from allranks.lint.source_text import Span

TORCHRUN, LAUNCH, ACCELERATE, DEEPSPEED = (
    "torchrun",
    "torch.distributed.launch",
    "accelerate",
    "deepspeed",
)
HOROVODRUN, PYTHON, OTHER = "horovodrun", "python", "other"
PER_NODE = frozenset({TORCHRUN, LAUNCH, ACCELERATE})
"""Launchers of which one runs on each node."""

_PYTHON = re.compile(r"^(python|pypy|ipython)[\d.]*$")
_TORCHRUN_FLAGS = {
    "standalone", "no-python", "run-path", "m", "module", "use-env", "virtual-local-rank", "h", "help",
}  # fmt: skip
_ACCELERATE_FLAGS = {
    "multi-gpu", "cpu", "tpu", "use-deepspeed", "use-fsdp", "use-megatron-lm", "same-network", "m", "module",
    "no-python", "debug", "quiet", "q", "tpu-use-cluster", "no-tpu-cluster", "tpu-use-sudo", "ipex", "use-xpu",
    "use-mps-device", "dynamo-use-fullgraph", "dynamo-use-dynamic", "enable-cpu-affinity", "h", "help",
    "downcast-bf16-flag", "use-parallelism-config", "dynamo-use-regional-compilation",
}  # fmt: skip
_DEEPSPEED_FLAGS = {
    "module", "no-python", "no-local-rank", "no-ssh", "no-ssh-check", "force-multi", "save-pid",
    "elastic-training", "bind-cores-to-rank", "h", "help",
}  # fmt: skip
_HOROVOD_VALUED = {
    "np", "num-proc", "n", "H", "hosts", "hostfile", "host-file", "p", "ssh-port", "min-np", "max-np",
    "host-discovery-script", "slots-per-host", "i", "ssh-identity-file", "network-interfaces", "nics",
    "output-filename", "start-timeout", "config-file", "fusion-threshold-mb", "cycle-time-ms", "cache-capacity",
    "timeline-filename", "log-level", "mpi-args", "reset-limit", "elastic-timeout", "num-nccl-streams",
}  # fmt: skip
MODULES = {
    "torch.distributed.run": TORCHRUN,
    "torch.distributed.launch": LAUNCH,
    "accelerate.commands.launch": ACCELERATE,
    "accelerate.launch": ACCELERATE,
    "deepspeed.launcher.runner": DEEPSPEED,
    "deepspeed": DEEPSPEED,
    "horovod.runner": HOROVODRUN,
    "horovod.runner.launch": HOROVODRUN,
}
_QUIET = frozenset(
    names(
        """
        hostname echo printf env printenv set date ls cat mkdir rm cp mv rsync sleep true false test [
        [[ id nvidia-smi rocm-smi lscpu df du free uname whoami pwd cd module ml tar unzip touch chmod
        ln find grep awk sed sort head tail wc tee kill pkill killall scontrol squeue sacct sinfo sstat
        scancel sbatch seq tr cut uniq dirname basename realpath readlink which type command git pip
        pip3 conda mamba source . export ulimit umask trap wait exit return shift local declare unset
        readonly eval exec getopts read xargs bc ip ifconfig ibstat ping nc curl wget ssh scp stat sync
        dd ps top lsof numactl nproc hostnamectl getent mktemp python-config tput clear script dcgmi
        pkill bash sh zsh srun mpirun mpiexec
        """
    )
)


@dataclass(eq=False)
class Launch:
    """One command that starts training processes."""

    call: Call
    kind: str
    options: CommandOptions
    span: Span
    """The launcher's name, as it is written."""
    script: Word | None = None
    module: bool = False
    """The script is named as a module."""
    args: tuple[Word, ...] = ()

    @property
    def step(self) -> Layer | None:
        """The srun or mpirun around it."""
        return self.call.step

    @property
    def certain(self) -> bool:
        """Whether it surely runs."""
        return self.call.certain and not self.call.doubtful

    @property
    def written(self) -> str:
        """What people call the launcher."""
        return self.kind if self.kind != OTHER else self.call.name or "the program"


def find_launches(calls: Iterable[Call]) -> Iterator[Launch]:
    """The launches among the commands of a script."""
    for call in calls:
        if call.inside in ("substitution", "trap") or not (call.program or call.layers):
            continue
        launch = _launcher(call)
        if launch is not None:
            yield launch


def _launcher(call: Call) -> Launch | None:
    if not call.program:
        return None
    name = call.name
    words = tuple(word for word in call.program if word.text != "\\")  # reported by its own rule
    if not words:
        return None
    if name == "torchrun" or name == "torchrun-script":
        return _made(call, TORCHRUN, words[1:], words[0].span)
    if name == "deepspeed" or name == "ds":
        return _made(call, DEEPSPEED, words[1:], words[0].span)
    if name == "horovodrun":
        return _made(call, HOROVODRUN, words[1:], words[0].span)
    if name == "accelerate" or name == "accelerate-launch":
        return _accelerate(call, words)
    if _PYTHON.match(name) or (not name and _is_python(words)):
        return _python(call, words)
    return _other(call, name, words)


def _accelerate(call: Call, words: tuple[Word, ...]) -> Launch | None:
    if call.name == "accelerate-launch":
        return _made(call, ACCELERATE, words[1:], words[0].span)
    if len(words) > 1 and words[1].text == "launch":
        return _made(call, ACCELERATE, words[2:], words[0].span.to(words[1].span))
    return None


def _is_python(words: tuple[Word, ...]) -> bool:
    """``$PYTHON train.py``: a command that is not known, with a Python file or ``-m``."""
    rest = [word.shown for word in words[1:4]]
    return bool(rest) and (rest[0].endswith(".py") or (rest[0] in ("-m", "-u") and len(rest) > 1))


def _python(call: Call, words: tuple[Word, ...]) -> Launch | None:
    at = 1
    while at < len(words):
        text = words[at].start
        if text == "-m" and at + 1 < len(words):
            return _module(call, words, at + 1)
        if text in ("-c", "-V", "--version", "-h", "-"):
            return None
        if text in ("-W", "-X"):
            at += 2
        elif text.startswith("-"):
            at += 1
        else:
            break
    if at >= len(words):
        return None
    return Launch(call, PYTHON, CommandOptions(), words[0].span, words[at], False, words[at + 1 :])


def _module(call: Call, words: tuple[Word, ...], at: int) -> Launch | None:
    name = words[at].text or ""
    if name in ("pip", "venv", "ipykernel", "json.tool", "http.server"):
        return None
    kind = MODULES.get(name)
    if kind is not None:
        rest = words[at + 1 :]
        if name == "accelerate" and rest and rest[0].text == "launch":
            rest = rest[1:]
        return _made(call, kind, rest, words[0].span.to(words[at].span))
    return Launch(call, PYTHON, CommandOptions(), words[0].span, words[at], True, words[at + 1 :])


def _made(call: Call, kind: str, words: tuple[Word, ...], span: Span) -> Launch:
    if kind == HOROVODRUN:
        options, count = plain_options(words, (), _HOROVOD_VALUED)
    else:
        flags = {ACCELERATE: _ACCELERATE_FLAGS, DEEPSPEED: _DEEPSPEED_FLAGS}.get(
            kind, _TORCHRUN_FLAGS
        )
        options, count = plain_options(words, flags)
    rest = words[count:]
    module = options.has("m", "module")
    if kind == HOROVODRUN and rest and (rest[0].start.startswith("python") and len(rest) > 1):
        rest = rest[1:]
        while rest and rest[0].start.startswith("-"):
            rest = rest[1:]
    script = rest[0] if rest else None
    return Launch(call, kind, options, span, script, module, tuple(rest[1:]))


def _other(call: Call, name: str, words: tuple[Word, ...]) -> Launch | None:
    """A program under srun or mpirun; without one it is only a command of the script."""
    own = any(layer.starts for layer in call.layers)
    if not own and not (call.shell.step and call.inside == "worker"):
        return None
    if not own or name in _QUIET or name in LEFT_ALONE:
        return None
    if call.nested:
        return None
    if name in SHELLS and len(words) < 2:
        return None
    return Launch(call, OTHER, CommandOptions(), words[0].span, words[0], False, words[1:])
