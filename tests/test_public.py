"""What the package promises: its names, and what importing it costs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import allranks

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
    "mpi",
    "prepare",
    "shutdown",
    "tensorflow",
    "world",
}


def test_the_public_names() -> None:
    assert set(allranks.__all__) == PUBLIC
    for name in PUBLIC - {"mpi"}:  # which registers a backend with torch when it is loaded
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
    "module", ["allranks.runtime.agent.__main__", "allranks.cli", "allranks.cli.script"]
)
def test_what_a_start_may_load(module: str) -> None:
    loaded = _loaded(f"import {module}")
    assert not loaded & HEAVY
    if module.startswith("allranks.runtime.agent"):
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
