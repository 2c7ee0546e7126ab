"""A job script → the same job as an ``allranks.toml``, and a list of what could not be carried over."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from allranks.errors import UsageError
from allranks.job.fields import options, read
from allranks.lint.command_options import Option
from allranks.lint.conversion_setup import convert_setup
from allranks.lint.directives import option_lines
from allranks.lint.job_script import JobScript
from allranks.lint.launch_commands import (
    ACCELERATE,
    DEEPSPEED,
    HOROVODRUN,
    LAUNCH,
    OTHER,
    PER_NODE,
    PYTHON,
    TORCHRUN,
    Launch,
)
from allranks.lint.shell.model import Word

_SAME = {
    "job-name": "name", "partition": "partition", "account": "account", "qos": "qos", "constraint": "constraint",
    "reservation": "reservation", "nodelist": "nodelist", "exclude": "exclude", "array": "array",
    "dependency": "dependency", "comment": "comment", "mail-type": "mail_type", "mail-user": "mail_user",
    "signal": "signal", "output": "output", "error": "error", "time": "time", "mem": "memory",
    "cpus-per-task": "cpus_per_task", "chdir": "chdir", "gpus-per-node": "gpus_per_node",
    "distribution": "distribution",
}  # fmt: skip
_FLAGS = {
    "exclusive": ("exclusive", True),
    "requeue": ("requeue", True),
    "no-requeue": ("requeue", False),
}
_SIZES = frozenset(
    {"nodes", "ntasks", "ntasks-per-node", "gres", "gpus", "gpus-per-task", "ntasks-per-gpu"}
)
_LAUNCHERS = {
    TORCHRUN: "torchrun",
    LAUNCH: "launch",
    ACCELERATE: "accelerate",
    DEEPSPEED: "deepspeed",
    HOROVODRUN: "horovod",
}
_OURS = frozenset(
    {"nnodes", "nproc-per-node", "node-rank", "rdzv-id", "rdzv-backend", "rdzv-endpoint", "rdzv-conf", "master-addr",
     "master-port", "standalone", "num-machines", "num-processes", "machine-rank", "main-process-ip", "same-network",
     "main-process-port", "hostfile", "H", "hosts", "num-nodes", "num-gpus", "np", "m", "module", "use-env",
     "multi-gpu"}
)  # fmt: skip
"""Options that allranks gives each launcher by itself."""


@dataclass
class Conversion:
    """The job, and what is left for its author to decide."""

    values: dict[str, Any] = field(default_factory=dict)
    left: list[tuple[int, str, str]] = field(default_factory=list)
    """Line, text, and why it was not carried over."""

    def put(self, name: str, value: Any, line: int, text: str) -> None:
        """Sets a key, if allranks can read the value."""
        try:
            if name not in ("script", "args"):
                read(name, value, options()[name])
        except UsageError as error:
            self.left.append((line, text, str(error).split("\n")[0]))
        else:
            self.values[name] = value


def convert(job: JobScript) -> Conversion:
    """The job that a script describes."""
    launch = main_launch(job)
    if launch is None:
        raise UsageError(
            f"Nothing in {job.source.name} starts a training that can be read.\n"
            "See what is understood: allranks lint --explain"
        )
    found = Conversion()
    _launcher(job, launch, found)
    _sizes(job, launch, found)
    _directives(job, found)
    convert_setup(job, launch, found)
    for other in job.launches:
        if other is not launch and other.kind != OTHER:
            text = other.call.span.text.split("\n")[0]
            found.left.append((other.span.line, text, "another launch; a job has one"))
    found.left.sort()
    return found


def main_launch(job: JobScript) -> Launch | None:
    """The training: the last launch of a launcher, else of Python under srun, else of Python."""
    ranked = sorted(
        (each for each in job.launches if each.script is not None and each.kind != OTHER),
        key=lambda each: (each.certain, each.kind != PYTHON, each.step is not None),
    )
    return ranked[-1] if ranked else None


def to_toml(job: JobScript, found: Conversion) -> str:
    """The file, with what is left as comments at its end."""
    import tomli_w

    tables = {name: value for name, value in found.values.items() if isinstance(value, dict)}
    plain = {name: value for name, value in found.values.items() if name not in tables}
    lines = [
        f"# Made from {job.source.name} by allranks convert.",
        tomli_w.dumps(plain | tables).rstrip(),
    ]
    if found.left:
        lines += ["", "# Not carried over:"]
        lines += [
            f"#   line {line}: {' '.join(text.split())[:80]} ({why})"
            for line, text, why in found.left
        ]
    return "\n".join(lines) + "\n"


def _launcher(job: JobScript, launch: Launch, found: Conversion) -> None:
    line = launch.span.line
    script = launch.script
    if script is None:
        return
    found.values["script"] = script.text or script.shown
    if script.text is None:
        found.left.append((line, script.shown, "the script's path has a variable: write the path"))
    args = [_text(job, word) for word in launch.args]
    for word, text in zip(launch.args, args, strict=True):
        if text is None:
            found.left.append(
                (word.span.line, word.shown, "an argument with a variable: write its value")
            )
    kept = [text for text in args if text is not None]
    if kept:
        found.values["args"] = kept
    if launch.module:
        found.values["module"] = True
    found.values["launcher"] = _name(launch)
    extra = [
        _word(job, option, found) for option in launch.options.items if option.name not in _OURS
    ]
    if words := [word for word in extra if word]:
        found.put("launcher_args", words, line, launch.span.text)


def _name(launch: Launch) -> str:
    if launch.kind in _LAUNCHERS:
        return _LAUNCHERS[launch.kind]
    if launch.step is None:
        return "python"
    return "srun" if launch.step.kind == "srun" else "mpirun"


def _text(job: JobScript, word: Word) -> str | None:
    """The word where it is known, or the number that it stands for."""
    if word.text is not None:
        return word.text
    number = job.values.number(word)
    return None if number is None else str(number)


def _word(job: JobScript, option: Option, found: Conversion) -> str:
    if option.value is None:
        return option.written
    text = _text(job, option.value)
    if text is None:
        found.left.append((option.span.line, option.span.text, "an option with a variable"))
        return ""
    return f"{option.written}={text}"


def _sizes(job: JobScript, launch: Launch, found: Conversion) -> None:
    ask, made = job.allocation, job.processes(launch)
    if ask.nodes:
        found.values["nodes"] = ask.nodes
    per_task = ask.options.find("gpus-per-task")
    if per_task is not None and per_task.value is not None and launch.kind not in PER_NODE:
        found.put("gpus_per_task", per_task.value.text, per_task.span.line, per_task.span.text)
    elif ask.gpus_per_node:
        kind = f"{ask.gpu_type}:" if ask.gpu_type else ""
        found.values["gpus_per_node"] = f"{kind}{ask.gpus_per_node}" if kind else ask.gpus_per_node
    total = made.expected_total if launch.kind in _LAUNCHERS else made.total
    if total and _name(launch) != "python":
        found.values["nprocs"] = total


def _directives(job: JobScript, found: Conversion) -> None:
    extra: dict[str, str] = {}
    for line, option in option_lines(job.directives):
        text = option.value.text if option.value is not None else None
        number = line.span.line
        if option.name in _SIZES or (
            option.name == "gpus-per-node" and "gpus_per_node" in found.values
        ):
            continue
        if option.name in _FLAGS and not text:
            name, value = _FLAGS[option.name]
            found.values[name] = value
        elif option.name == "wait-all-nodes":
            found.values["wait_all_nodes"] = text == "1"
        elif option.name in _SAME and text:
            plain = option.name == "cpus-per-task" and text.isdecimal()
            found.put(_SAME[option.name], int(text) if plain else text, number, option.span.text)
        elif text is not None:
            extra[option.name] = text
        else:
            found.left.append((number, line.span.text, "an option without a value"))
    if extra:
        found.put("sbatch", extra, 1, ", ".join(extra))
