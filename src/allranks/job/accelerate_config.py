"""Accelerate's configuration file, which ``accelerate launch`` reads silently.

The job's options override the file's, so most differences do not matter. Those that do are errors here:
fewer GPUs than ranks, one process on the CPU of a job with GPUs, another kind of machine.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from allranks.errors import JobError, UsageError

if TYPE_CHECKING:
    from allranks.job.plan import Plan

_KEY = re.compile(r"(?P<key>[A-Za-z_]\w*)\s*:(?:\s+(?P<value>.*))?$")
_COMMENT = re.compile(r"(^|\s)#.*$")
OURS = {
    "--num_processes": "--nprocs",
    "--num_machines": "--nodes",
    "--machine_rank": "",
    "--main_process_ip": "--head or --interface",
    "--main_process_port": "--port",
    "--rdzv_backend": "--rendezvous",
}
"""Options that allranks passes to accelerate, and the job's options for them."""
MODES = ("--multi_gpu", "--use_deepspeed", "--use_fsdp", "--use_megatron_lm", "--tpu")
OWN_ENGINES = ("DEEPSPEED", "FSDP", "MEGATRON_LM")
"""Engines that the file selects; ``--multi_gpu`` would silently replace them by DDP."""


@dataclass(frozen=True)
class AccelerateFile:
    """The settings in the file that a launch depends on."""

    path: str
    values: Mapping[str, str] = field(default_factory=dict)
    """Its scalar values as they are written, without null and nested ones."""

    @property
    def kind(self) -> str:
        """``distributed_type``: MULTI_GPU, FSDP, NO, …"""
        return self.values.get("distributed_type", "NO").upper()

    def is_true(self, key: str) -> bool:
        """Whether the key is set and true."""
        return self.values.get(key, "").lower() in ("true", "yes", "on")


def find_accelerate_file(plan: Plan) -> AccelerateFile | None:
    """Return the file that ``accelerate launch`` would read in this job, if there is one here."""
    if plan.launcher.module != "accelerate":
        return None
    named = _option(plan, "--config_file")
    path = Path(plan.job.chdir or ".", named).expanduser() if named else _default(plan)
    return read_accelerate_file(path) if path.is_file() else None


def read_accelerate_file(path: Path) -> AccelerateFile:
    """Read YAML or JSON: ``accelerate config default`` writes JSON into either."""
    return parse_accelerate(str(path), path.read_text("utf-8", "replace"))


def parse_accelerate(name: str, text: str) -> AccelerateFile:
    """Parse the text of such a file."""
    try:
        return AccelerateFile(name, _of_json(json.loads(text)))
    except ValueError:  # accelerate itself reports errors in a .json file
        return AccelerateFile(name, _of_yaml("" if name.endswith(".json") else text))


def check_accelerate_file(plan: Plan, on_cluster: bool) -> Iterator[str]:
    """Return notes about the file; a contradiction to the job raises `JobError`."""
    if plan.launcher.module != "accelerate":
        return
    _check_words(plan)
    file, named = plan.accelerate_file, _option(plan, "--config_file")
    if file is None:
        if named:
            yield _missing(plan, named, on_cluster)
        return
    for wrong, change in _contradictions(plan, file):
        raise JobError(f"{file.path}: {wrong}\n{change}")
    for wrong, change in _other_sizes(plan, file) if named else ():
        raise JobError(f"{file.path}: {wrong}\n{change}")
    yield from _on_gpus(plan, file)


def _missing(plan: Plan, named: str, on_cluster: bool) -> str:
    """Return a note if the file may exist on the cluster or in the container only."""
    if not on_cluster and not plan.job.container:
        raise UsageError(
            f"There is no file {named} (--launcher-arg=--config_file={named}).\n"
            "Create it with: accelerate config --config_file FILE"
        )
    note = f"{named} (--config_file) does not exist here, so it is not checked."
    if plan.shape.world_size == 1 or any(word in MODES for word in plan.job.launcher_args):
        return note
    return (
        f"{note} The job trains with DDP; for the engine in the file add "
        "--launcher-arg=--use_fsdp, --use_deepspeed or --use_megatron_lm."
    )


def _check_words(plan: Plan) -> None:
    for option, ours in OURS.items():
        if (value := _option(plan, option)) is not None:
            hint = f"Use {ours} instead." if ours else "Leave it out: every node gets its own."
            raise JobError(f"--launcher-arg={option}={value}: allranks sets this itself.\n{hint}")
    if "--cpu" in plan.job.launcher_args and plan.shape.world_size > 1:
        raise JobError(
            f"--launcher-arg=--cpu: accelerate then starts one process, not {plan.shape.world_size}."
            "\nLeave it out: a job without GPUs trains on CPUs anyway."
        )


def _contradictions(plan: Plan, file: AccelerateFile) -> Iterator[tuple[str, str]]:
    """Yield each contradiction of the file to the job, with what to change."""
    other = "Choose another file: --launcher-arg=--config_file=FILE"
    gpus, ranks = plan.shape.gpus_per_node.count, plan.shape.ranks_per_node
    where = file.values.get("compute_environment", "LOCAL_MACHINE")
    if where != "LOCAL_MACHINE":
        yield f"compute_environment is {where}, but the job runs here or on Slurm.", other
    if file.kind in ("XLA", "TPU"):
        yield f"distributed_type is {file.kind} (TPUs), but the job has {_ranks(plan)}.", other
    if gpus and plan.shape.world_size == 1 and file.is_true("use_cpu"):
        change = f"Set use_cpu: false there, or use --gpus-per-node 0.\n{other}"
        yield f"use_cpu is true, but the job has {_ranks(plan)}.", change
    ids = file.values.get("gpu_ids", "all")
    if gpus and ids != "all" and len(ids.split(",")) < ranks and not _option(plan, "--gpu_ids"):
        change = "Set gpu_ids: all there, or add --launcher-arg=--gpu_ids=all"
        yield f"gpu_ids is {ids}, but the job has {ranks} ranks on each node.", change
    if plan.shape.nodes > 1 and file.is_true("same_network") and plan.job.rendezvous == "c10d":
        change = "Set same_network: false there, or use --rendezvous static."
        yield "same_network is true, which does not work with --rendezvous c10d.", change


def _on_gpus(plan: Plan, file: AccelerateFile) -> Iterator[str]:
    """Yield a note about CPU settings without effect, as the job passes ``--multi_gpu`` or an engine."""
    said = ["use_cpu: true"] if file.is_true("use_cpu") else []
    said += ["distributed_type: MULTI_CPU"] if file.kind == "MULTI_CPU" else []
    if said and plan.shape.gpus_per_node.count:
        yield f"{file.path} has {' and '.join(said)}; the job still trains on its GPUs."


def _other_sizes(plan: Plan, file: AccelerateFile) -> Iterator[tuple[str, str]]:
    """Yield the sizes in a file given for this job that differ from the job's."""
    job = {
        "num_machines": (plan.shape.nodes, "--nodes"),
        "num_processes": (plan.shape.world_size, "--nprocs"),
    }
    for key, (size, option) in job.items():
        said = file.values.get(key, str(size))
        if said not in (str(size), "-1"):
            change = f"Remove that line (then the job's size is used), or use {option} {said}."
            yield f"{key} is {said}, but the job has {size}.", change


def _ranks(plan: Plan) -> str:
    gpus = plan.shape.gpus_per_node.count
    if gpus == 1:
        return "1 GPU per node"
    return f"{gpus} GPUs per node" if gpus else f"{plan.shape.world_size} processes on CPUs"


def _option(plan: Plan, name: str) -> str | None:
    """Return the value of an option in the launcher's arguments, in either spelling."""
    words = plan.job.launcher_args
    spelled = (name, name.replace("_", "-"))
    for index, word in enumerate(words):
        option, equals, value = word.partition("=")
        if option in spelled:
            return value if equals else (words[index + 1] if index + 1 < len(words) else "")
    return None


def _default(plan: Plan) -> Path:
    """Return the default file of accelerate, which does not read ``default_config.json``."""
    env = {**os.environ, **plan.job.env}
    cache = env.get("XDG_CACHE_HOME") or "~/.cache"
    home = env.get("HF_HOME") or f"{cache}/huggingface"
    return Path(home).expanduser() / "accelerate" / "default_config.yaml"


def _of_yaml(text: str) -> dict[str, str]:
    """Return the scalars at the top level of a YAML file."""
    values: dict[str, str] = {}
    for line in text.splitlines():
        if match := _KEY.match(_COMMENT.sub("", line).rstrip()):
            value = (match["value"] or "").strip().strip("'\"")
            if value and value not in ("null", "~", "{}", "[]"):
                values[match["key"]] = value
    return values


def _of_json(found: Any) -> dict[str, str]:
    """Return the scalars at the top level of a JSON file, written as in YAML."""
    return {
        key: value if isinstance(value, str) else json.dumps(value)
        for key, value in (found.items() if isinstance(found, dict) else ())
        if value not in (None, "") and not isinstance(value, (dict, list))
    }
