"""Installs Horovod: a cached or a new wheel, tested before and after."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from allranks.errors import AllranksError, MissingDependencyError
from allranks.integrations.frameworks.build_commands import (
    defer_signals,
    exit_on_signals,
    run_logged,
)
from allranks.integrations.frameworks.build_failure import build_error, download_error
from allranks.integrations.frameworks.horovod_build import (
    BuildFolder,
    OnProgress,
    build,
    build_folder,
)
from allranks.integrations.frameworks.horovod_plan import VERSION, HorovodPlan
from allranks.integrations.frameworks.import_probe import probe_horovod
from allranks.integrations.frameworks.missing_requirements import in_horovod
from allranks.integrations.frameworks.python_environment import PythonEnvironment
from allranks.integrations.frameworks.wheel_cache import (
    cache_lock,
    find_wheel,
    logs_folder,
    open_in_cache,
    store_wheel,
)

RUNTIME = ("cloudpickle", "psutil", "pyyaml", "packaging", "cffi")
"""Packages that Horovod imports when it runs, all small."""


def installed_build(plan: HorovodPlan) -> dict[str, Any] | None:
    """Return what the installed Horovod was built with; None when it is not the one asked for."""
    found = plan.target.horovod
    if not found or found["version"] != VERSION or not all(found[part] for part in plan.parts):
        return None
    answers = {part: probe_horovod(plan.target, part) for part in plan.parts}
    if in_horovod(plan.target, answers):
        return None
    built = {key: value for answer in answers.values() for key, value in answer.values.items()}
    return None if _differs(plan, built) else built


def _differs(plan: HorovodPlan, built: dict[str, Any]) -> bool:
    """Whether it lacks what can be built now, or has MPI though --no-mpi was given."""
    lacks = (plan.mpi and not built["mpi"]) or (plan.nccl and not built["nccl"])
    return bool(lacks or (plan.no_mpi and built["mpi"]))


def install(plan: HorovodPlan, report: OnProgress, *, force: bool = False) -> dict[str, Any]:
    """Install Horovod and return what it was built with. ``force`` builds again even with a cached wheel."""
    target = plan.target
    place = hashlib.sha256(target.about["prefix"].encode()).hexdigest()[:16]
    lock = cache_lock(f"into-{place}", f"installing into {target.about['prefix']}")
    with exit_on_signals(), lock, log_file() as log:
        report(f"log: {log.name}", None)
        wheel = None if force else find_wheel(plan.key)
        if wheel:
            report(f"using the cached wheel {wheel}", None)
        else:
            wheel = build_and_store(plan, log, report)
        install_wheel(wheel, target, log, report)
        return verify(plan, log, report)


@contextmanager
def log_file() -> Iterator[IO[str]]:
    """Open the log file of this installation, which is kept."""
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S-%f")
    with open_in_cache(logs_folder() / f"horovod-{stamp}.log", "x") as log:
        yield log


def build_and_store(plan: HorovodPlan, log: IO[str], report: OnProgress) -> Path:
    """Build the wheel, test it outside the environment, and then store it."""
    with cache_lock(plan.key, "building the same wheel"), build_folder(plan, log) as shop:
        wheel = build(shop, report)
        report("trying the wheel", None)
        try_wheel(shop, wheel)
        return store_wheel(plan.key, wheel)


def try_wheel(shop: BuildFolder, wheel: Path) -> None:
    """Import Horovod from a temporary folder and sum a tensor."""
    stage = shop.folder / "stage"
    target = shop.plan.target
    words = ["install", "--quiet", "--no-deps", "--target", str(stage), str(wheel)]
    words += [name for name in RUNTIME if not target.packages[name]]
    if shop.run(shop.python, "-m", "pip", *words):
        raise build_error(shop.log, "The wheel that was built is not usable.")
    paths = os.pathsep.join(filter(None, [str(stage), os.environ.get("PYTHONPATH")]))
    for part in shop.plan.parts:
        answer = probe_horovod(target, part, run=True, PYTHONPATH=paths)
        if answer.problem:
            shop.log.write(f"error: {answer.problem}\n")
            raise build_error(shop.log, "The wheel was built but does not work.")


def install_wheel(wheel: Path, target: PythonEnvironment, log: IO[str], report: OnProgress) -> None:
    """Install the small packages, then the wheel while Ctrl-C is deferred: pip does not undo half of it."""
    report("installing", None)
    pip = pip_words(target)
    lacking = [name for name in RUNTIME if not target.packages[name]]
    if lacking and run_logged([*pip, "install", *lacking], log, target.process_environment()):
        raise download_error(log, "What Horovod needs to run", " ".join(lacking))
    words = [*pip, "install", "--no-deps", "--no-index", "--force-reinstall", str(wheel)]
    with defer_signals():
        if run_logged(words, log, target.process_environment()):
            raise build_error(log, f"pip could not install {wheel.name}.")


def pip_words(target: PythonEnvironment) -> list[str]:
    """Return the environment's pip, or ours (environments that uv makes have none)."""
    if target.packages["pip"]:
        return [target.python, "-m", "pip"]
    if importlib.util.find_spec("pip") is None:
        raise MissingDependencyError(
            f"{target.python} has no pip to install with.\n"
            f"Get one: {target.python} -m ensurepip, or uv pip install --python {target.python} pip"
        )
    return [sys.executable, "-m", "pip", "--python", target.python]


def verify(plan: HorovodPlan, log: IO[str], report: OnProgress) -> dict[str, Any]:
    """Run the installed Horovod with one process; uninstall it when that fails."""
    built: dict[str, Any] = {}
    for part in plan.parts:
        report(f"checking horovod.{part}", None)
        answer = probe_horovod(plan.target, part, run=True)
        if answer.problem:
            remove = [*pip_words(plan.target), "uninstall", "--yes", "horovod"]
            with defer_signals():
                run_logged(remove, log, plan.target.process_environment())
            raise AllranksError(
                f"Horovod was installed but does not work, so it was uninstalled.\n"
                f"  {answer.problem}\n"
                f"Build it again: {plan.target.allranks_command('install', 'horovod', '--force')}\n"
                f"The whole log: {log.name}"
            )
        built |= answer.values
    return built
