"""In which setting a run took place, and how to start it again. Secrets are left out."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from allranks.redact import redact_environment, redact_words
from allranks.runs.files import read_json
from allranks.runs.folder import Run

_SETTINGS = (
    "strategy", "precision", "compile", "accumulate", "batch_size_is", "activation_checkpointing",
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
    """Variables of rank 0 that change how a training runs; the agent has redacted them already."""
    try:
        lines = (attempt / "environment.txt").read_text("utf-8", "replace").splitlines()
    except OSError:
        return {}
    pairs = (line.partition("=") for line in lines if "=" in line)
    kept = {name: value[:_LONGEST] for name, _, value in pairs if name.startswith(_PREFIXES)}
    return redact_environment(kept)


def reproduce(run: Run) -> list[str]:
    """What to type: the same command where it was given, or the job as it was settled."""
    commands = []
    if run.cwd and run.command:
        words = redact_words(run.command)
        commands += [f"cd {shlex.quote(run.cwd)}", shlex.join(words)]
    if (run.path / "job.toml").is_file():
        verb = "submit" if run.scheduler == "slurm" else "run"
        commands.append(f"allranks {verb} --config {shlex.quote(str(run.path / 'job.toml'))}")
    return commands
