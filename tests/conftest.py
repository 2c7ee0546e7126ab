"""What all tests share: the command, isolated from the user's own files, and one real cluster."""

from __future__ import annotations

import importlib.util
import itertools
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from command_rig import ROOT, Allranks, runner

pytest_plugins = ["second_try", "random_order"]
BIN = Path(sys.executable).parent

# Started in the background, a shell makes us and all our children deaf to Ctrl-C, which is tested.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Threads of torch that wait must not spin: several processes share few cores here, and it took most of their time.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

OUTER = ("SLURM_", "SBATCH_", "SRUN_", "PMI", "OMPI_COMM", "ALLRANKS_", "TORCHELASTIC_")
CONTRACT = {
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "NODE_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
}


@pytest.fixture
def clean_env(tmp_path: Path) -> dict[str, str]:
    """An environment without an outer job, with its own home for state and configuration."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(OUTER) and k not in CONTRACT}
    for name in ("COLUMNS", "LINES"):  # of the terminal that the tests were started from
        env.pop(name, None)
    env["PATH"] = f"{BIN}{os.pathsep}{env['PATH']}"
    env["XDG_STATE_HOME"] = str(tmp_path / "state")
    env["XDG_CONFIG_HOME"] = str(tmp_path / "config")
    env["HF_HOME"] = str(tmp_path / "huggingface")
    env["OMPI_ALLOW_RUN_AS_ROOT"] = env["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"
    return env


@pytest.fixture
def new_process(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Forget what this process remembers of signals, its run folder and its fits; called, do so again."""

    def forget() -> None:
        for module, name, value in (
            ("runtime.preemption.deadline", "_shared", None),
            ("train.trainer_run", "_own", {}),
            ("train.trainer_run", "_fits", {}),
            ("integrations.tensorflow.keras_backup", "_calls", itertools.count(1)),
        ):
            assert importlib.util.find_spec(f"allranks.{module}"), f"{module} has moved"
            if found := sys.modules.get(f"allranks.{module}"):
                monkeypatch.setattr(found, name, value)

    forget()
    return forget


@pytest.fixture
def allranks(tmp_path: Path, clean_env: dict[str, str]) -> Allranks:
    """The command, run in ``tmp_path``: ``allranks("script", "train.py")``."""
    return runner(tmp_path, clean_env)


@pytest.fixture(scope="session")
def sandbox() -> Iterator[object]:
    """One cluster for the whole session: two nodes of 8 CPUs and 4 pretended GPUs."""
    from allranks.cluster.sandbox.testing import sandbox_for_tests
    from allranks.errors import MissingDependencyError

    try:
        context = sandbox_for_tests(nodes=2)
        with context as cluster:
            yield cluster
    except MissingDependencyError as error:
        pytest.skip(f"no Slurm here: {str(error).splitlines()[0]}")


@pytest.fixture
def slurm_env(sandbox: object, clean_env: dict[str, str]) -> dict[str, str]:
    return {**clean_env, **sandbox.env}  # type: ignore[attr-defined]


@pytest.fixture
def slurm(tmp_path: Path, slurm_env: dict[str, str]) -> Allranks:
    """The command on the cluster."""
    return runner(tmp_path, slurm_env)


@pytest.fixture
def report_script(tmp_path: Path) -> Path:
    """Every rank all-reduces and prints what it knows, as one line of JSON."""
    path = tmp_path / "report.py"
    path.write_text((ROOT / "tests" / "report.py").read_text())
    return path
