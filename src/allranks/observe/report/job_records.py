"""What a run requested, and the commands, versions and settings to run it again. Secrets are left out."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from allranks.cluster.slurm.job_usage import Usage
from allranks.core.redaction import redact_environment, redact_words
from allranks.core.units import Gpus
from allranks.errors import UsageError
from allranks.observe.report.model import RequestedResources
from allranks.runs.atomic_files import integer, read_json
from allranks.runs.run_folder import Run
from allranks.runs.run_records import environment as variables
from allranks.runs.run_records import plan_time, plan_values
from allranks.schedulers import scheduler_of

MIB = 2**20


def requested_resources(folder: Path, usage: Usage | None, on_slurm: bool) -> RequestedResources:
    """Return what a run requested; without Slurm that is only its number of ranks."""
    plan = read_json(folder / "plan.json")
    shape = plan.get("shape") if isinstance(plan.get("shape"), dict) else {}
    assert isinstance(shape, dict)
    values = plan_values(plan)
    base = _shape(shape)
    if not on_slurm:
        return RequestedResources(
            nodes=base.nodes, ranks=base.ranks, ranks_per_node=base.ranks_per_node
        )
    memory = integer(shape.get("memory_mib"))
    got = allocated_resources(usage) if usage else RequestedResources()
    return RequestedResources(
        nodes=base.nodes or got.nodes,
        ranks=base.ranks or got.ranks,
        ranks_per_node=base.ranks_per_node or got.ranks_per_node,
        tasks_per_node=base.tasks_per_node or got.tasks_per_node,
        cpus_per_task=base.cpus_per_task,
        cpus_per_node=base.cpus_per_node or got.cpus_per_node,
        memory_per_node=memory * MIB if memory else got.memory_per_node,
        gpus_per_node=base.gpus_per_node if base.gpus_per_node is not None else got.gpus_per_node,
        gpus=got.gpus,
        gpu_type=base.gpu_type or got.gpu_type,
        time_limit=plan_time(plan) or got.time_limit,
        partition=values.get("partition") or got.partition,
        account=values.get("account") or got.account,
        exclusive=values.get("exclusive") == "True",
        memory_is_all=memory == 0,
    )


def allocated_resources(usage: Usage) -> RequestedResources:
    """Return what Slurm allocated; per node only what all of its nodes have alike."""
    nodes = usage.nodes or 1
    return RequestedResources(
        nodes=usage.nodes or None,
        tasks_per_node=_each(usage.tasks, usage) or None,
        cpus_per_task=usage.cpus_per_task,
        cpus_per_node=_each(usage.cpus, usage) or None,
        memory_per_node=usage.memory // nodes if usage.memory and not usage.mixed else None,
        gpus_per_node=_each(usage.gpus, usage),
        gpus=usage.gpus,
        gpu_type=usage.gpu_type,
        time_limit=usage.time_limit,
        partition=usage.partition,
        account=usage.account,
    )


def _each(count: int, usage: Usage) -> int | None:
    """Return the count per node; None where the nodes differ."""
    whole, rest = divmod(count, usage.nodes or 1)
    return None if rest or usage.mixed else whole


def _shape(shape: Mapping[str, Any]) -> RequestedResources:
    tasks, cpus = integer(shape.get("tasks_per_node")), integer(shape.get("cpus_per_task"))
    try:
        gpus = Gpus.parse(str(shape["gpus_per_node"]))
    except (KeyError, ValueError, UsageError):
        gpus = None
    return RequestedResources(
        nodes=integer(shape.get("nodes")),
        ranks=integer(shape.get("world_size")),
        ranks_per_node=integer(shape.get("ranks_per_node")),
        tasks_per_node=tasks,
        cpus_per_task=cpus,
        cpus_per_node=tasks * cpus if tasks and cpus else None,
        gpus_per_node=gpus.count if gpus else None,
        gpu_type=(gpus.type or "") if gpus else "",
    )


_SETTINGS = (
    "strategy", "precision", "compile", "accumulate", "batch_size_is", "clip_norm", "activation_checkpointing",
    "checkpoint_async", "checkpoint_every", "checkpoint_every_steps", "checkpoint_every_time", "seed",
    "deterministic",
)  # fmt: skip
_PACKAGES = (
    "torch", "tensorflow", "jax", "allranks", "torchvision", "transformers", "accelerate", "deepspeed",
    "lightning", "horovod", "mpi4py", "numpy", "datasets", "flash-attn", "triton",
)  # fmt: skip
_PREFIXES = (
    "NCCL_", "CUDA_", "TORCH_", "PYTORCH_", "OMP_", "MKL_", "GLOO_", "UCX_", "FI_", "HSA_", "ROCR_",
    "MIOPEN_", "TF_", "XLA_", "SLURM_JOB_PARTITION", "SLURM_CPU_BIND", "SLURM_MEM", "ALLRANKS_LAUNCHER",
    "ALLRANKS_BIND", "ALLRANKS_SAMPLE", "VIRTUAL_ENV", "CONDA_DEFAULT_ENV", "HF_HOME",
)  # fmt: skip
_LONGEST = 300


def trainer_settings(folder: Path) -> dict[str, str]:
    """Return the Trainer's settings that affect speed and safety; empty without a Trainer."""
    found = read_json(folder / "training.json")
    return {name: str(found[name]) for name in _SETTINGS if found.get(name) is not None}


def installed_versions(folder: Path, plan: Mapping[str, Any]) -> dict[str, str]:
    """Return the versions of Python, the system and the main packages, and the code's commit."""
    found = read_json(folder / "versions.json")
    shown: dict[str, str] = {}
    if found.get("python"):
        shown["Python"] = str(found["python"])
    if found.get("platform"):
        shown["system"] = str(found["platform"])
    packages = found.get("packages")
    known = packages if isinstance(packages, dict) else {}
    shown |= {name: str(known[name]) for name in _PACKAGES if name in known}
    if "allranks" not in shown and plan.get("allranks"):
        shown["allranks"] = str(plan["allranks"])
    code = read_json(folder / "code.json")
    if code.get("commit"):
        changed = " and changes that are not committed" if code.get("dirty") else ""
        shown["code"] = f"commit {str(code['commit'])[:12]}{changed}"
    return shown


def training_environment(attempt: Path) -> dict[str, str]:
    """Return the variables of rank 0 that change how a training runs."""
    known = variables(attempt).items()
    kept = {name: value[:_LONGEST] for name, value in known if name.startswith(_PREFIXES)}
    return redact_environment(kept)


def original_command(run: Run) -> list[str]:
    """Return the commands that start the run again; empty for a point of a scaling study."""
    if not run.command or run.command[1:2] == ["scale"]:
        return []
    return [*_enter_folder(run), shlex.join(redact_words(run.command))]


def exact_command(run: Run) -> list[str]:
    """Return the commands that start the job exactly as it was planned, whatever the files contain today."""
    if not (run.path / "job.toml").is_file():
        return []
    verb = scheduler_of(run).verb
    job = shlex.quote(str(run.path / "job.toml"))
    return [*_enter_folder(run), f"allranks {verb} --config {job}"]


def _enter_folder(run: Run) -> list[str]:
    return [f"cd {shlex.quote(run.cwd)}"] if run.cwd else []
