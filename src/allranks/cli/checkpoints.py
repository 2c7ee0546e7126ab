"""allranks checkpoints: list and verify the checkpoints of a run, and export the weights."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Sequence

    from allranks.train.checkpoint.checkpoint_folder import CheckpointStore
    from allranks.train.checkpoint.checkpoint_list import CheckpointRow

_TORCH_FILES = (".pt", ".pth", ".bin", ".ckpt")
_COLOURS = {"broken": "red", "unreadable": "red", "set aside": "yellow", "newer": "yellow"}


@click.command()
@click.argument("run", default="last")
@click.option(
    "--verify", is_flag=True, help="Verify all checksums; exit with 1 if a checkpoint is corrupt."
)
@click.option(
    "--export", "out", type=click.Path(path_type=Path), metavar="FILE",
    help="Write the model weights to FILE.",
)  # fmt: skip
@click.option("--step", type=int, metavar="N", help="Export this step [default: newest].")
@click.option("--best", is_flag=True, help="Export the best checkpoint by the monitored metric.")
@click.option(
    "--format", "kind", type=click.Choice(["safetensors", "torch"]),
    help="File format [default: torch for .pt, .pth, .bin, .ckpt, else safetensors].",
)  # fmt: skip
@click.option("--average", is_flag=True, help="Export the averaged (EMA) weights.")
@click.option(
    "--dtype", type=click.Choice(["float32", "bfloat16", "float16"]),
    help="Convert floating-point weights to this type.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def checkpoints(
    run: str,
    verify: bool,
    out: Path | None,
    step: int | None,
    best: bool,
    kind: str | None,
    average: bool,
    dtype: str | None,
    as_json: bool,
) -> None:
    """List the checkpoints of RUN (a name, a folder, a job id or `last`), newest first."""
    from allranks.train.checkpoint.checkpoint_list import find_stores

    found = find_stores(run)
    if out is not None:
        path = _export(found, run, out, step, best, kind, average, dtype)
        click.echo(f"Wrote {out}, the weights of {path}")
        return
    _require_export(step, best, kind, average, dtype)
    _list(found, run, verify, as_json)


def _require_export(step: int | None, best: bool, *options: object) -> None:
    if step is not None or best or any(options):
        raise click.UsageError(
            "--step, --best, --format, --average and --dtype need --export FILE."
        )


def _list(found: Sequence[CheckpointStore], run: str, verify: bool, as_json: bool) -> None:
    from allranks.train.checkpoint.checkpoint_list import list_checkpoints

    listed = {store.folder: list_checkpoints(store, verify=verify) for store in found}
    everything = [row for each in listed.values() for row in each]
    if as_json:
        import json

        click.echo(json.dumps([row.record() for row in everything], indent=2))
    elif not everything:
        click.echo(f"{run} has no checkpoints yet. State: allranks ps {run}", err=True)
    else:
        for folder, each in listed.items():
            if len(listed) > 1:
                click.echo(f"{folder}:")
            _table(each)
    if verify and any(row.state in ("broken", "unreadable") for row in everything):
        raise click.exceptions.Exit(1)


def _export(
    found: Sequence[CheckpointStore],
    run: str,
    out: Path,
    step: int | None,
    best: bool,
    kind: str | None,
    average: bool,
    dtype: str | None,
) -> Path:
    from allranks.errors import AllranksError, UsageError
    from allranks.train.checkpoint.checkpoint_list import choose_checkpoint
    from allranks.train.checkpoint.valid_checkpoints import find_problems

    if step is not None and best:
        raise click.UsageError("Give either --step or --best.")
    if not found:
        raise UsageError(f"{run} has no checkpoints yet. State: allranks ps {run}")
    if len(found) > 1:
        there = " or ".join(f"{store.folder}" for store in found)
        raise UsageError(
            f"{run} has {len(found)} folders of checkpoints, one for each training. Name one: {there}"
        )
    path = choose_checkpoint(found[0], step, best)
    _need_torch()
    if wrong := find_problems(path):
        raise AllranksError(f"{path} is broken: {' '.join(wrong)}\nChoose another: --step N")
    import torch

    from allranks.train.checkpoint.weights_export import export_weights

    kind = kind or ("torch" if out.suffix in _TORCH_FILES else "safetensors")
    export_weights(path, out, kind, average=average, dtype=getattr(torch, dtype) if dtype else None)
    return path


def _need_torch() -> None:
    import importlib.util

    from allranks.errors import MissingDependencyError

    if importlib.util.find_spec("torch") is None:
        raise MissingDependencyError(
            "Exporting weights needs PyTorch; listing and verifying do not.\n"
            "Install it with: pip install 'allranks[torch]'"
        )


def _table(rows: Sequence[CheckpointRow]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from allranks.core.formatting import size

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("STEP", "EPOCH", "SAVED", "SIZE", "RANKS"):
        table.add_column(title, no_wrap=True, justify="left" if title == "SAVED" else "right")
    for title in ("STRATEGY", "NAMES", "STATE"):
        table.add_column(title, overflow="fold")
    for row in rows:
        colour = _COLOURS.get(row.state, "green")
        numbers = (row.step, _plain(row.epoch), _when(row.time), size(row.bytes))
        words = (_plain(row.world_size), row.strategy, ", ".join(row.names))
        table.add_row(*map(str, (*numbers, *words)), Text(row.state, style=colour))
    console = Console()
    console.print(table)
    for row in rows:
        for problem in row.problems:
            console.print(f"{Path(row.folder).name}: {problem}", soft_wrap=True, markup=False)


def _plain(number: int | None) -> str:
    return "" if number is None else str(number)


def _when(stamp: str) -> str:
    """Format a time stamp in local time, to the minute."""
    from allranks.runs.atomic_files import parse_stamp

    moment = parse_stamp(stamp)
    return moment.astimezone().strftime("%Y-%m-%d %H:%M") if moment else ""
