"""The options of sbatch and srun: long and short names, and which of them take a value."""

from __future__ import annotations

from dataclasses import dataclass

REQUIRED, OPTIONAL, NONE = "required", "optional", "none"


def names(text: str) -> list[str]:
    """Names that are written with blanks between them."""
    return text.split()


_VALUED = names(
    """
    account acctg-freq array batch bb bbf begin chdir clusters cluster-constraint comment constraint
    container container-id core-spec cores-per-socket cpu-freq cpus-per-gpu cpus-per-task deadline
    delay-boot dependency distribution error exclude export export-file extra extra-node-info gid
    gpu-bind gpu-freq gpus gpus-per-node gpus-per-socket gpus-per-task gres gres-flags hint input
    job-name kill-on-invalid-dep licenses mail-type mail-user mcs-label mem mem-bind mem-per-cpu
    mem-per-gpu mincpus network nodefile nodelist nodes ntasks ntasks-per-core ntasks-per-gpu
    ntasks-per-node ntasks-per-socket open-mode output partition power prefer priority profile qos
    reservation segment signal sockets-per-node switches tasks-per-node thread-spec threads-per-core
    time time-min tmp tres-bind tres-per-task uid wait-all-nodes wckey workdir wrap
    """
)
_BOTH_WAYS = names(
    """
    exclusive get-user-env nice no-kill oom-kill-step oversubscribe parsable propagate share x11
    """
)
_FLAGS = names(
    """
    bell no-bell contiguous exact hold ignore-pbs no-requeue overcommit quiet reboot requeue
    spread-job stepmgr test-only use-min-nodes verbose version wait help usage
    """
)
_SRUN_VALUED = names(
    """
    accel-bind bcast-exclude cpu-bind cpu_bind mem_bind epilog het-group pack-group jobid launch-cmd
    max-exit-timeout msg-timeout mpi prolog relative resv-ports slurmd-debug task-epilog task-prolog
    threads tree-width wait container-image container-mounts container-workdir container-name
    container-save container-env container-entrypoint-log environment image module volume
    """
)
_SRUN_BOTH_WAYS = names(
    """
    bcast compress immediate kill-on-bad-exit pty send-libs
    """
)
_SRUN_FLAGS = names(
    """
    debugger-test disable-status external-launcher interactive label multi-prog no-allocate overlap
    preserve-env quit-on-interrupt unbuffered whole container-mount-home no-container-mount-home
    container-remap-root no-container-remap-root container-entrypoint no-container-entrypoint
    container-writable container-readonly
    """
)

_SHORT = {
    "A": "account", "a": "array", "b": "begin", "B": "extra-node-info", "C": "constraint",
    "c": "cpus-per-task", "D": "chdir", "d": "dependency", "e": "error", "F": "nodefile",
    "G": "gpus", "H": "hold", "h": "help", "i": "input", "J": "job-name", "k": "no-kill",
    "L": "licenses", "M": "clusters", "m": "distribution", "N": "nodes", "n": "ntasks",
    "O": "overcommit", "o": "output", "p": "partition", "Q": "quiet", "q": "qos",
    "S": "core-spec", "s": "oversubscribe", "t": "time", "u": "usage", "V": "version",
    "v": "verbose", "W": "wait", "w": "nodelist", "x": "exclude",
}  # fmt: skip
_SRUN_SHORT = {
    **_SHORT, "E": "preserve-env", "I": "immediate", "K": "kill-on-bad-exit", "l": "label",
    "q": "quit-on-interrupt", "r": "relative", "T": "threads", "u": "unbuffered", "X": "disable-status",
    "Z": "no-allocate",
}  # fmt: skip
ALIASES = {
    "tasks-per-node": "ntasks-per-node",
    "share": "oversubscribe",
    "cpu_bind": "cpu-bind",
    "mem_bind": "mem-bind",
    "workdir": "chdir",
}


@dataclass(frozen=True)
class OptionTable:
    """The options of one command."""

    kinds: dict[str, str]
    short: dict[str, str]

    def long(self, name: str) -> str | None:
        """The whole name of a long option, which may be cut as far as it stays unique."""
        if name in self.kinds:
            return name
        known = [each for each in self.kinds if each.startswith(name)] if len(name) > 1 else []
        meant = {ALIASES.get(each, each) for each in known}
        return meant.pop() if len(meant) == 1 else None

    def kind(self, name: str) -> str:
        """Whether it takes a value; an option that is not known does not say."""
        return self.kinds.get(name, "")


def _table(groups: dict[str, list[str]], short: dict[str, str]) -> OptionTable:
    return OptionTable({name: kind for kind, names in groups.items() for name in names}, short)


SBATCH = _table({REQUIRED: _VALUED, OPTIONAL: _BOTH_WAYS, NONE: _FLAGS}, _SHORT)
SRUN = _table(
    {
        NONE: [*_FLAGS, *_SRUN_FLAGS],
        OPTIONAL: [*_BOTH_WAYS, *_SRUN_BOTH_WAYS],
        REQUIRED: [*_VALUED, *_SRUN_VALUED],
    },
    _SRUN_SHORT,
)
SITE_OPTIONS = frozenset(
    [*_SRUN_VALUED, "image", "module", "volume", "entrypoint", "uenv", "view", "gmem", "constraint"]
)
"""Options that plugins add to sbatch on some sites: not known is not wrong."""
