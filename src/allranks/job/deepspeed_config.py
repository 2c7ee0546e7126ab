"""DeepSpeed's configuration file, checked before the job starts.

Users write comments and trailing commas into it, which some tools accept and some do not: a job gets a
copy that is strict JSON. A batch size that does not fit the number of processes is an error now, not an
assertion in every rank after hours in the queue.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from allranks.core.lenient_json import Correction, LenientJSONError, read_lenient, strict_text
from allranks.errors import JobError, UsageError
from allranks.job.plan import Plan

CONFIG = ("--deepspeed_config", "--deepspeed-config")
"""DeepSpeed's own option. Transformers names the file by ``--deepspeed``, which is a flag elsewhere."""

# With one of these (None: a ``**``) the call has more settings than the file.
_BESIDE_THE_FILE = {None, "config", "config_params", "mpu", "mesh_device", "mesh_param"}
# With a model that is split over ranks, fewer batches are in flight than there are processes.
_SPLITS = re.compile(
    r"\bmpu\b|pipelinemodule|(tensor|sequence|pipeline|context)_parallel|autotp|megatron|ulysses",
    re.IGNORECASE,
)
TRAIN, MICRO, ACCUMULATION = SIZES = (
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
)


@dataclass(frozen=True)
class _Named:
    """A configuration file in the script's arguments."""

    index: int
    option: str
    prefix: str
    """The text before the path in that argument: ``--deepspeed_config=`` or nothing."""
    value: str
    path: Path


def check_deepspeed_config(plan: Plan, on_cluster: bool) -> tuple[str, ...]:
    """Return notes about the file; raise if the job cannot start with it."""
    notes: list[str] = []
    for named in _named(plan):
        if named.path.is_file():
            notes += _check(plan, named)
        elif not on_cluster and not plan.job.container:
            raise UsageError(f"There is no file {named.value} ({named.option}) to read.")
        else:
            notes.append(
                f"{named.value} ({named.option}) does not exist here, so it is not checked."
            )
    return tuple(notes)


def with_strict_copies(plan: Plan, folder: Path) -> tuple[str, ...]:
    """Return the script's arguments, with a strict copy in ``folder`` for a file that is not JSON."""
    args = list(plan.job.args)
    if plan.job.container and not plan.agent:  # then the container does not see the folder
        return tuple(args)
    for named in _named(plan):
        text = _read(named.path) if named.path.is_file() else ""
        try:
            strict, corrections = strict_text(text)
        except LenientJSONError:  # Hjson: DeepSpeed's reader takes it as it is
            continue
        if corrections:
            copy = folder / named.path.name
            copy = copy.with_name(f"{named.index}-{copy.name}") if copy.exists() else copy
            copy.write_text(strict, encoding="utf-8")
            args[named.index] = f"{named.prefix}{copy}"
    return tuple(args)


def _named(plan: Plan) -> Iterator[_Named]:
    args = plan.job.args
    taken = (*CONFIG, "--deepspeed") if _of_transformers(plan) else CONFIG
    for index, word in enumerate(args):
        option, equals, value = word.partition("=")
        if option not in taken and not (equals and option == "--deepspeed"):
            continue
        if not equals:
            index += 1
            value = args[index] if index < len(args) else ""
        path = Path(plan.job.chdir or ".", value).expanduser()
        # DeepSpeed also takes the configuration itself, in base64.
        if value.endswith(".json") or (value and option in CONFIG and path.is_file()):
            yield _Named(index, option, f"{option}=" if equals else "", value, path)


def _of_transformers(plan: Plan) -> bool:
    """Whether ``--deepspeed`` has a value; elsewhere it is a flag, and a file after it is data."""
    modules = plan.imports.modules if plan.imports else ()
    return any(name.partition(".")[0] == "transformers" for name in modules)


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None


def _check(plan: Plan, named: _Named) -> Iterator[str]:
    text = _read(named.path)
    try:
        value, corrections = read_lenient(text)
    except LenientJSONError as error:
        loads = _hjson_reader()
        if loads is None and named.option in CONFIG:
            place = f"line {error.line}, column {error.column}: {error.why}"
            yield f"{named.value} is not JSON: {place}; DeepSpeed may still read it as Hjson."
            return
        value, corrections = _hjson(text, named, error, loads), []
    if corrections:
        yield _corrected_note(named, corrections)
    if not isinstance(value, dict):
        raise UsageError(f"{named.value} has no object: DeepSpeed's settings are in {{ }}.")
    if why := _wrong_batch(value, plan, named):
        if not _sure(plan, named, value):
            yield f"{named.value}: {why}"
            return
        raise JobError(f"{named.value}: {why}")


def _hjson_reader() -> Callable[[str], Any] | None:
    """Return DeepSpeed's own reader, which allows more; a login node may not have it."""
    try:
        loads: Callable[[str], Any] = importlib.import_module("hjson").loads
    except ImportError:
        return None
    return loads


def _hjson(
    text: str, named: _Named, error: LenientJSONError, loads: Callable[[str], Any] | None
) -> dict[str, Any]:
    """Return what DeepSpeed would read; transformers reads JSON only."""
    try:
        value = loads(text) if loads and named.option in CONFIG else None
    except ValueError:
        value = None
    if isinstance(value, dict):
        return value
    raise UsageError(f"{named.value} is not JSON: {error}") from None


def _corrected_note(named: _Named, corrections: list[Correction]) -> str:
    shown = ", ".join(f"line {each.line}: {each.what}" for each in corrections[:4])
    more = f" and {len(corrections) - 4} more" if len(corrections) > 4 else ""
    return (
        f"{named.value} is not strict JSON ({shown}{more}). "
        "The job gets a corrected copy in its run folder."
    )


def _wrong_batch(value: dict[str, Any], plan: Plan, named: _Named) -> str | None:
    """Return why DeepSpeed would refuse the batch sizes, or None."""
    if not plan.launcher.supervised or "elasticity" in value:
        return None  # the script or DeepSpeed decides on the number of processes
    train, micro, steps = (value.get(name) for name in SIZES)
    if train is None and micro is None:
        return (
            f"it has neither {TRAIN} nor {MICRO}; DeepSpeed needs one of them.\n"
            f'Add the batch of one process: "{MICRO}": 16'
        ) if named.option in CONFIG else None  # fmt: skip
    given = [size for size in (train, micro, steps) if size is not None]
    if train is None or any(type(size) is not int or size < 1 for size in given):
        return None  # "auto", or for DeepSpeed to judge
    world = plan.shape.world_size
    product = (micro or 1) * (steps or 1) * world
    if train == product or (train % product == 0 and (micro is None or steps is None)):
        return None
    return _mismatch(train, micro, steps, world)


def _mismatch(train: int, micro: int | None, steps: int | None, world: int) -> str:
    product = (micro or 1) * (steps or 1) * world
    factors = [f"{MICRO} {micro}"] if micro else []
    factors += [f"{ACCUMULATION} {steps}"] if steps else []
    terms = " × ".join([*factors, f"{world} processes"])
    if micro and steps:
        change = f"Set {TRAIN} to {product}, or leave it out: DeepSpeed then computes it."
        if train % (steps * world) == 0:
            change += f" Or set {MICRO} to {train // (steps * world)}."
        elif train % (micro * world) == 0:
            change += f" Or set {ACCUMULATION} to {train // (micro * world)}."
        return f"{TRAIN} {train} is not {terms} = {product}.\n{change}"
    near = max(1, round(train / product)) * product
    return f"{TRAIN} {train} is not a multiple of {terms} = {product}.\nSet {TRAIN} to {near}."


def _sure(plan: Plan, named: _Named, value: dict[str, Any]) -> bool:
    """Whether the file alone sets the sizes, and every process has its own batch."""
    sources = [path.read_bytes() for path in (plan.imports.files if plan.imports else ())]
    texts = [*value, *(source.decode("utf-8", "replace") for source in sources)]
    if any(_SPLITS.search(text) for text in texts):
        return False
    if named.option not in CONFIG:
        return _of_transformers(plan)
    try:
        calls = [names for source in sources for names in _engine_calls(source)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return bool(calls) and all("args" in names and not names & _BESIDE_THE_FILE for names in calls)


def _engine_calls(source: bytes) -> Iterator[set[str | None]]:
    """Yield the keywords of each call of ``deepspeed.initialize``."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "deepspeed.initialize":
            yield {keyword.arg for keyword in node.keywords}
