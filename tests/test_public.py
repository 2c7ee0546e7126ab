"""What the package promises: its names, and what importing it costs."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import allranks

SOURCE = Path(allranks.__file__).parent

PUBLIC = {
    "AllranksError",
    "Job",
    "Run",
    "TrainConfig",
    "Trainer",
    "World",
    "__version__",
    "deadline",
    "init",
    "launch",
    "prepare",
    "shutdown",
    "world",
}


def test_the_public_names() -> None:
    assert set(allranks.__all__) == PUBLIC
    for name in PUBLIC:
        assert getattr(allranks, name) is not None


def test_world_stays_a_function_after_its_module_was_imported() -> None:
    code = (
        "import allranks; allranks.world(); allranks.world(); from allranks import world; world()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={})


HEAVY = {
    "torch", "numpy", "rich", "pydantic", "asyncio", "multiprocessing", "http", "ssl", "tomli_w",
    "concurrent", "unittest", "email", "logging", "xml", "sqlite3", "psutil", "tree_sitter",
}  # fmt: skip


def _loaded(code: str) -> set[str]:
    code += "\nimport sys; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {name.partition(".")[0] for name in done.stdout.split()}


def test_importing_allranks_loads_nothing_else() -> None:
    before = _loaded("pass")
    assert _loaded("import allranks") - before <= {"allranks", "typing", "re", "collections",
        "functools", "importlib", "operator", "keyword", "reprlib", "contextlib", "warnings",
        "enum", "types", "copyreg", "sre_compile", "sre_parse", "sre_constants", "_operator",
        "_collections", "_functools", "itertools", "_sre", "_typing", "__future__", "_weakrefset",
        "_warnings"}  # fmt: skip


@pytest.mark.parametrize(
    "module", ["allranks.agent.__main__", "allranks.cli", "allranks.cli.script"]
)
def test_what_a_start_may_load(module: str) -> None:
    loaded = _loaded(f"import {module}")
    assert not loaded & HEAVY
    if module.startswith("allranks.agent"):
        assert "click" not in loaded  # containers have no click


def test_printing_a_script_loads_nothing_heavy(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\n")
    code = (
        "import os, sys, contextlib, io\n"
        f"os.chdir({str(tmp_path)!r})\n"
        "sys.argv = ['allranks', 'script', '--nodes', '2', 'train.py']\n"
        "from allranks.cli import main\n"
        "with contextlib.redirect_stdout(io.StringIO()):\n"
        "    try: main()\n"
        "    except SystemExit as end: assert not end.code\n"
    )
    assert not _loaded(code) & HEAVY


ROOMS = {
    "errors": set(),
    "shell": set(),
    "units": {"errors"},
    "imports": {"errors"},
    "redact": set(),
    "wording": set(),
    "lenient_json": {"errors"},
    "build_locks": {"wording"},
    "distributed": {"errors"},
    "mpi": {"distributed"},
    "agent": {
        "build_locks",
        "errors",
        "distributed",
        "measure",
        "units",
        "imports",
        "redact",
        "runs",
    },
    "site": {"errors", "units", "slurm"},
    "job": {"errors", "units", "shell", "imports", "site", "redact", "lenient_json"},
    "environment": {"errors", "shell", "job", "redact"},
    "launchers": {"errors", "shell", "job"},
    "script": {"agent", "errors", "launchers", "environment", "job", "shell", "units"},
    "slurm": {"errors", "units"},
    "runs": {"errors", "units", "redact"},
    "checkpoint": {"errors", "runs"},
    "leaving": {"errors", "distributed", "runs", "wording"},
    "checks": {"errors", "job", "runs", "slurm"},
    "tensorflow": {"errors", "distributed", "leaving"},
    "schedulers": {
        "redact",
        "units",
        "runs",
        "script",
        "slurm",
        "launchers",
        "environment",
        "shell",
        "job",
        "agent",
        "distributed",
        "errors",
    },
    "sandbox": {"errors"},
    "frameworks": {"errors", "shell"},
    "lint": {"errors", "units", "shell", "job", "site", "lenient_json", "imports", "redact"},
    "data": {"errors", "distributed"},
    "strategies": {
        "build_locks",
        "checkpoint",
        "errors",
        "distributed",
        "lenient_json",
        "wording",
    },
    "train": {
        "checkpoint",
        "leaving",
        "errors",
        "units",
        "distributed",
        "data",
        "strategies",
        "runs",
        "measure",
        "plots",
        "wording",
        "optimize_step",
    },
    "optimize_step": {"data", "train"},
    "launch": {"job", "runs", "shell", "script", "schedulers"},
    "measure": {"errors", "runs"},
    "plots": {"wording"},
    "pages": {"wording", "plots"},
    "monitor": {
        "errors",
        "units",
        "wording",
        "imports",
        "runs",
        "slurm",
        "schedulers",
        "lint",
        "checks",
    },
    "top": {"errors", "units", "wording", "runs", "slurm", "schedulers", "monitor"},
    "report": {
        "errors",
        "units",
        "wording",
        "job",
        "runs",
        "slurm",
        "schedulers",
        "lint",
        "measure",
        "monitor",
        "plots",
        "pages",
        "redact",
    },
    "export": {"errors", "wording", "runs", "slurm", "schedulers", "monitor"},
    "web": {
        "errors",
        "units",
        "wording",
        "runs",
        "slurm",
        "schedulers",
        "monitor",
        "plots",
        "report",
        "export",
        "redact",
    },
    "scaling": {
        "errors",
        "units",
        "wording",
        "shell",
        "job",
        "runs",
        "slurm",
        "schedulers",
        "monitor",
        "plots",
        "pages",
    },
}
"""Which room may import which; ``cli`` may import all, and nothing imports ``cli``."""


@pytest.mark.parametrize("room", ROOMS)
def test_imports_run_one_way(room: str) -> None:
    files = (
        [SOURCE / f"{room}.py"]
        if (SOURCE / f"{room}.py").exists()
        else (SOURCE / room).rglob("*.py")
    )
    for file in files:
        for name in _imports(file):
            target = name.split(".")[1] if "." in name else ""
            if target and target not in (room, "_version", "_lazy"):
                assert target in ROOMS[room], f"{file.relative_to(SOURCE)} imports {name}"


def _imports(file: Path) -> list[str]:
    names: list[str] = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("allranks"):
            names += [node.module or ""] if node.module != "allranks" else []
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names if alias.name.startswith("allranks.")]
    return names


def test_every_room_is_listed() -> None:
    rooms = {path.stem for path in SOURCE.iterdir() if not path.name.startswith(("_", "py"))}
    assert rooms - {"cli"} == set(ROOMS)
