"""What a script does before the training: modules, environments, variables, containers → keys of a job."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from allranks.lint.command_calls import TASK, Call
from allranks.lint.job_script import JobScript
from allranks.lint.launch_commands import Launch
from allranks.lint.shell.model import Assignment
from allranks.lint.slurm_options import names

if TYPE_CHECKING:
    from allranks.lint.conversion import Conversion

_CONDA = "/etc/profile.d/conda.sh"
_OURS = frozenset(
    {"MASTER_ADDR", "MASTER_PORT", "RANK", "LOCAL_RANK", "WORLD_SIZE", "NODE_RANK", "SRUN_CPUS_PER_TASK",
     "OMP_NUM_THREADS", "LOCAL_WORLD_SIZE", "NNODES"}
)  # fmt: skip
"""Variables that every rank gets from allranks."""
_QUIET = frozenset(
    names(
        """echo printf date hostname nvidia-smi rocm-smi env printenv set pwd ls which whoami module ml conda cat
    scontrol squeue wait sleep [ [[ test true : nproc exit local trap python srun shopt tee function eval"""
    )
)
"""Commands that only show something, or that allranks replaces."""


def convert_setup(job: JobScript, launch: Launch, found: Conversion) -> None:
    """Reads the commands around the launch."""
    _container(launch, found)
    started = {id(each.call) for each in job.launches}
    for call in job.calls:
        if (
            call.inside in ("substitution", "trap")
            or id(call) in started
            or not call.certain
            or call.function
        ):
            continue
        if call.nested or call is launch.call:
            continue
        if not _environment(call, found) and not _variables(call, found):
            _rest(call, found)


def _environment(call: Call, found: Conversion) -> bool:
    """Modules, conda and virtual environments; whether the command was one of these."""
    words = [word.shown for word in call.args]
    before = dict(found.values)
    if call.name in ("module", "ml"):
        _modules(words, found)
    elif (
        call.name in ("conda", "mamba", "micromamba")
        and words[:1] == ["activate"]
        and len(words) > 1
    ):
        found.values["conda"] = words[1]
        if "venv" in found.values:  # it was conda's own activate
            found.values["conda_root"] = found.values.pop("venv")
    elif call.name in ("source", ".") and words:
        _sourced(words, call, found)
    else:
        return False
    if found.values != before and call.shell.kind == TASK:
        found.values["setup_on"] = "node"
    return True


def _modules(words: list[str], found: Conversion) -> None:
    if words[:1] == ["purge"]:
        found.values["module_purge"] = True
        return
    names = words[1:] if words[:1] in (["load"], ["add"]) else words
    if words[:1] in (["list"], ["use"], ["unload"], ["avail"], ["swap"]):
        return
    kept = [name for name in names if not name.startswith("-")]
    found.values["modules"] = [*found.values.get("modules", []), *kept]


def _sourced(words: list[str], call: Call, found: Conversion) -> None:
    file = words[0]
    if file.endswith(_CONDA):
        found.values["conda_root"] = file[: -len(_CONDA)]
    elif file == "activate" and len(words) > 1:
        found.values["conda"] = words[1]
    elif file.endswith("/bin/activate") and len(words) > 1:
        found.values |= {"conda_root": file[: -len("/bin/activate")], "conda": words[1]}
    elif file.endswith("/bin/activate"):
        found.values["venv"] = file[: -len("/bin/activate")]
    elif call.args[0].text is not None:
        found.values["setup"] = [*found.values.get("setup", []), file]
    else:
        found.left.append((call.span.line, call.span.text, "a file whose path has a variable"))


def _variables(call: Call, found: Conversion) -> bool:
    """Exported variables; those of the script alone are of no use outside of it."""
    if call.words and call.name not in ("export", "declare", "readonly"):
        return False
    for item in call.assignments if call.name == "export" else ():
        _export(item, call, found)
    return True


def _export(item: Assignment, call: Call, found: Conversion) -> None:
    if item.name in _OURS or item.value is None:
        return
    text = item.value.text
    if text is not None:
        found.values["env"] = {**found.values.get("env", {}), item.name: text}
    else:
        line = f"export {item.span.text}"
        if "\n" in line or re.search(r"scontrol|torchrun|launch|LAUNCH|deepspeed", line):
            found.left.append((call.span.line, line, "a variable of the launch"))
            return
        found.values["setup_commands"] = [*found.values.get("setup_commands", []), line]


def _container(launch: Launch, found: Conversion) -> None:
    for layer in launch.call.all_layers:
        if layer.kind == "container" and layer.name in ("singularity", "apptainer"):
            found.values["container"] = layer.words[-1].shown
            found.values["container_runtime"] = layer.name
            binds = [
                o.value.shown for o in layer.options.items if o.name in ("B", "bind") and o.value
            ]
            if binds:
                found.values["binds"] = [part for each in binds for part in each.split(",")]
        elif layer.kind == "container":
            found.left.append(
                (layer.span.line, layer.name, "a container runtime that allranks does not start")
            )
        elif layer.kind == "srun" and (image := layer.options.value("container-image")):
            found.values |= {"container": image.shown, "container_runtime": "pyxis"}
            if mounts := layer.options.value("container-mounts"):
                found.values["binds"] = mounts.shown.split(",")


def _rest(call: Call, found: Conversion) -> None:
    if call.name == "cd" and call.args and call.args[0].text:
        found.values["chdir"] = call.args[0].text
    elif (
        call.name not in _QUIET
        and call.first not in _QUIET
        and call.span.source.path == call.shell.source.path
    ):
        text = call.span.text.split("\n")[0]
        if call.name in ("ulimit", "umask", "unset"):
            found.values["setup_commands"] = [*found.values.get("setup_commands", []), text]
        else:
            found.left.append((call.span.line, text, "a command of its own"))
