"""Imports a package in a separate process to learn what only its compiled part knows.

Horovod reports what it was built with, mpi4py which MPI library it loads. Either may crash or hang, so
each runs in its own process with a time limit, and a failure becomes one line.
"""

from __future__ import annotations

import json
import signal
import subprocess
from dataclasses import dataclass, field
from typing import Any

from allranks.integrations.frameworks.python_environment import PythonEnvironment

MARK = "allranks-answer:"
LIMIT = 120.0
TRIAL = 900.0
"""Seconds for a trial after a build of minutes: a busy machine must not throw that away."""

_REPORT = f"""
import json
parts = ("gloo", "mpi", "nccl", "cuda", "rocm")
built = {{part: bool(getattr(hvd, part + "_built")()) for part in parts}}
print({MARK!r} + json.dumps(built))
"""
_TORCH = "import horovod.torch as hvd\n"
_TORCH_RUN = """
import torch
hvd.init()
assert hvd.size() == 1 and hvd.allreduce(torch.ones(3), op=hvd.Sum).tolist() == [1.0] * 3
"""
_TENSORFLOW = "import horovod.tensorflow as hvd\n"
_TENSORFLOW_RUN = """
import importlib.util, tensorflow as tf
if importlib.util.find_spec("tf_keras"):
    import horovod.tensorflow.keras
hvd.init()
assert hvd.size() == 1 and hvd.allreduce(tf.ones(3), op=hvd.Sum).numpy().tolist() == [1.0] * 3
"""
_MPI4PY = f"""
import json, mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
print({MARK!r} + json.dumps({{"library": MPI.Get_library_version()}}))
"""
_ONE_PROCESS = {
    "HOROVOD_CONTROLLER": "gloo",
    "HOROVOD_CPU_OPERATIONS": "gloo",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_USE_LEGACY_KERAS": "1",
}
"""One process without a launcher; gloo, since MPI on its own is refused on some login nodes."""


@dataclass(frozen=True)
class ImportResult:
    """What the package reported, or why it could not be imported."""

    values: dict[str, Any] = field(default_factory=dict)
    problem: str = ""


def probe_horovod(
    target: PythonEnvironment, part: str, *, run: bool = False, **env: str
) -> ImportResult:
    """Report what Horovod's ``torch`` or ``tensorflow`` part was built with; ``run`` also sums a tensor."""
    load, use = {"torch": (_TORCH, _TORCH_RUN), "tensorflow": (_TENSORFLOW, _TENSORFLOW_RUN)}[part]
    code = load + (use if run else "") + _REPORT
    limit = TRIAL if run else LIMIT
    return run_probe(target, code, f"import horovod.{part}", {**_ONE_PROCESS, **env}, limit)


def probe_mpi4py(target: PythonEnvironment) -> ImportResult:
    """Report the MPI library that mpi4py loads."""
    answer = run_probe(target, _MPI4PY, "from mpi4py import MPI")
    library = answer.values.get("library", "").partition(",")[0].partition("\n")[0]
    return ImportResult(
        {"library": " ".join(library.replace("Version:", "").split())}, answer.problem
    )


def run_probe(
    target: PythonEnvironment,
    code: str,
    title: str,
    env: dict[str, str] | None = None,
    limit: float = LIMIT,
) -> ImportResult:
    """Run ``code`` in the environment and read its report."""
    try:
        done = subprocess.run(
            [target.python, "-c", "import sys; sys.path[:] = [p for p in sys.path if p]\n" + code],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            env=target.process_environment(**(env or {})), timeout=limit, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return ImportResult(problem=f"{title} did not end within {limit:.0f} s")
    for line in done.stdout.splitlines():
        if line.startswith(MARK) and done.returncode == 0:
            return ImportResult(json.loads(line.removeprefix(MARK)))
    return ImportResult(problem=f"{title}: {_why(done.returncode, done.stderr)}")


def _why(code: int, text: str) -> str:
    if code < 0:
        return f"it crashed ({signal.Signals(-code).name})"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else f"it ended with code {code}"
