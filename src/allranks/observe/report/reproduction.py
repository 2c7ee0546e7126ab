"""In which setting a run took place, and how to start it again. Secrets are left out."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from allranks.core.redaction import redact_environment, redact_words
from allranks.runs.atomic_files import read_json
from allranks.runs.run import Run
from allranks.runs.run_records import environment as variables
from allranks.schedulers import scheduler_of

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


def settings(folder: Path) -> dict[str, str]:
    """The Trainer's, as far as they matter for time and safety; empty without a Trainer."""
    found = read_json(folder / "training.json")
    return {name: str(found[name]) for name in _SETTINGS if found.get(name) is not None}


def versions(folder: Path, plan: Mapping[str, Any]) -> dict[str, str]:
    """Python, the system, the packages that a training depends on, and the code's commit."""
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


def environment(attempt: Path) -> dict[str, str]:
    """Variables of rank 0 that change how a training runs."""
    known = variables(attempt).items()
    kept = {name: value[:_LONGEST] for name, value in known if name.startswith(_PREFIXES)}
    return redact_environment(kept)


def reproduce(run: Run) -> list[str]:
    """What to type for the same again; nothing of a point of a study, whose command is the study's."""
    if not run.command or run.command[1:2] == ["scale"]:
        return []
    return [*_there(run), shlex.join(redact_words(run.command))]


def settled(run: Run) -> list[str]:
    """What to type for the job exactly as it was settled, whatever the files say today."""
    if not (run.path / "job.toml").is_file():
        return []
    verb = scheduler_of(run).verb
    job = shlex.quote(str(run.path / "job.toml"))
    return [*_there(run), f"allranks {verb} --config {job}"]


def _there(run: Run) -> list[str]:
    return [f"cd {shlex.quote(run.cwd)}"] if run.cwd else []
