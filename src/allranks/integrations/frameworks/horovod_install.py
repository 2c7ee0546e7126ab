"""Horovod into a Python: out of the cache or built, tried before and after, never half."""

from __future__ import annotations

import hashlib
import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from allranks.errors import AllranksError, MissingDependencyError
from allranks.integrations.frameworks.build_failure import build_failed, download_failed
from allranks.integrations.frameworks.horovod_build import Tell, Workshop, build, workshop
from allranks.integrations.frameworks.horovod_plan import VERSION, HorovodPlan
from allranks.integrations.frameworks.loads import ask_horovod
from allranks.integrations.frameworks.missing import in_horovod
from allranks.integrations.frameworks.processes import ended_by_signals, held_signals, run_logged
from allranks.integrations.frameworks.target import Target, here
from allranks.integrations.frameworks.wheel_cache import (
    find_wheel,
    keep_wheel,
    locked,
    logs_folder,
    opened,
)

RUNTIME = ("cloudpickle", "psutil", "pyyaml", "packaging", "cffi")
"""What Horovod imports when it runs, all small."""


def already_there(plan: HorovodPlan) -> dict[str, Any] | None:
    """What the Horovod that is there was built with, when it is the one that is asked for."""
    found = plan.target.horovod
    if not found or found["version"] != VERSION or not all(found[part] for part in plan.parts):
        return None
    answers = {part: ask_horovod(plan.target, part) for part in plan.parts}
    if in_horovod(plan.target, answers):
        return None
    said = {key: value for answer in answers.values() for key, value in answer.said.items()}
    return None if _differs(plan, said) else said


def _differs(plan: HorovodPlan, said: dict[str, Any]) -> bool:
    """Whether it lacks what can be built now, or has what is not wanted."""
    lacks = (plan.mpi and not said["mpi"]) or (plan.nccl and not said["nccl"])
    return bool(lacks or (plan.no_mpi and said["mpi"]))


def install(plan: HorovodPlan, tell: Tell, *, force: bool = False) -> dict[str, Any]:
    """Install it; returns what it was built with. ``force`` builds anew even when a wheel is kept."""
    target = plan.target
    place = hashlib.sha256(target.about["prefix"].encode()).hexdigest()[:16]
    lock = locked(f"into-{place}", f"installing into {target.about['prefix']}")
    with ended_by_signals(), lock, log_file() as log:
        tell(f"log: {log.name}", None)
        wheel = None if force else find_wheel(plan.key)
        if wheel:
            tell(f"taking the wheel that was built before: {wheel}", None)
        else:
            wheel = build_and_keep(plan, log, tell)
        put(wheel, target, log, tell)
        return prove(plan, log, tell)


@contextmanager
def log_file() -> Iterator[IO[str]]:
    """A file of its own for this installation, kept."""
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S-%f")
    with opened(logs_folder() / f"horovod-{stamp}.log", "x") as log:
        yield log


def build_and_keep(plan: HorovodPlan, log: IO[str], tell: Tell) -> Path:
    """Build, try the wheel beside the target, and only then keep it."""
    with locked(plan.key, "building the same wheel"), workshop(plan, log) as shop:
        wheel = build(shop, tell)
        tell("trying the wheel", None)
        try_wheel(shop, wheel)
        return keep_wheel(plan.key, wheel)


def try_wheel(shop: Workshop, wheel: Path) -> None:
    """Load it and sum a tensor, from a folder that only this process sees."""
    stage = shop.folder / "stage"
    target = shop.plan.target
    words = ["install", "--quiet", "--no-deps", "--target", str(stage), str(wheel)]
    words += [name for name in RUNTIME if not target.packages[name]]
    if shop.run(shop.python, "-m", "pip", *words):
        raise build_failed(shop.log, "The wheel that was built is not usable.")
    paths = os.pathsep.join(filter(None, [str(stage), os.environ.get("PYTHONPATH")]))
    for part in shop.plan.parts:
        answer = ask_horovod(target, part, run=True, PYTHONPATH=paths)
        if answer.problem:
            shop.log.write(f"error: {answer.problem}\n")
            raise build_failed(shop.log, "The wheel was built but does not work.")


def put(wheel: Path, target: Target, log: IO[str], tell: Tell) -> None:
    """The small packages first, then the wheel while Ctrl-C waits: pip does not undo half of it."""
    tell("installing", None)
    pip = pip_words(target)
    lacking = [name for name in RUNTIME if not target.packages[name]]
    if lacking and run_logged([*pip, "install", *lacking], log, target.environ()):
        raise download_failed(log, "What Horovod needs to run", " ".join(lacking))
    words = [*pip, "install", "--no-deps", "--no-index", "--force-reinstall", str(wheel)]
    with held_signals():
        if run_logged(words, log, target.environ()):
            raise build_failed(log, f"pip could not install {wheel.name}.")


def pip_words(target: Target) -> list[str]:
    """The target's own pip, or ours on its behalf (environments that uv makes have none)."""
    if target.packages["pip"]:
        return [target.python, "-m", "pip"]
    if importlib.util.find_spec("pip") is None:
        raise MissingDependencyError(
            f"{target.python} has no pip to install with.\n"
            f"Get one: {target.python} -m ensurepip, or uv pip install --python {target.python} pip"
        )
    return [here(), "-m", "pip", "--python", target.python]


def prove(plan: HorovodPlan, log: IO[str], tell: Tell) -> dict[str, Any]:
    """Load what was installed and start it with one process; take it out again when that fails."""
    said: dict[str, Any] = {}
    for part in plan.parts:
        tell(f"checking horovod.{part}", None)
        answer = ask_horovod(plan.target, part, run=True)
        if answer.problem:
            remove = [*pip_words(plan.target), "uninstall", "--yes", "horovod"]
            with held_signals():
                run_logged(remove, log, plan.target.environ())
            raise AllranksError(
                f"Horovod was installed but does not work, so it was taken out again.\n"
                f"  {answer.problem}\n"
                f"Build it anew: {plan.target.ours('install', 'horovod', '--force')}\n"
                f"The whole log: {log.name}"
            )
        said |= answer.said
    return said
