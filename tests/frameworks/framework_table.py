"""Framework × launcher × whether it works: gathered from the tests that ran, printed at their end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

LAUNCHERS = (
    "python", "fork", "srun", "torchrun", "launch", "accelerate", "deepspeed", "horovod", "mpirun",
)  # fmt: skip
FRAMEWORKS = (
    "DeepSpeed, Trainer",
    "DeepSpeed, own script",
    "Accelerate",
    "transformers",
    "Horovod, Trainer",
    "Horovod torch, own script",
    "Horovod Keras, own script",
    "TensorFlow",
    "MPI backend",
)

_TORCHS = ("torchrun", "launch", "accelerate", "deepspeed")
_HOROVOD = ("Horovod torch, own script", "Horovod Keras, own script")
_SCRIPTS = ("DeepSpeed, own script", "Accelerate", "transformers")
_NO_SENSE = (
    ((*_SCRIPTS, *_HOROVOD), ("python",), "it starts the script once per node and gives it no rank"),
    ((*_SCRIPTS, "DeepSpeed, Trainer"), ("horovod",), "it starts Horovod's own workers"),
    (("TensorFlow",), ("launch", "accelerate", "deepspeed"), "they are torch's launchers"),
    (("Horovod Keras, own script",), _TORCHS, "they are torch's launchers"),
    (("TensorFlow",), ("horovod",), "it starts Horovod's own workers"),
    (("MPI backend",), ("python", "fork", *_TORCHS, "horovod"), "they do not start ranks through MPI"),
)  # fmt: skip
NOT_MADE = {
    (row, launcher): reason
    for rows, launchers, reason in _NO_SENSE
    for row in rows
    for launcher in launchers
}
"""What makes no sense, with the reason; every other empty cell was not tried."""


@dataclass(frozen=True)
class Cell:
    """What one test says of one cell."""

    framework: str
    launcher: str
    place: str
    """``here`` or ``2 nodes``."""
    outcome: str
    """``passed``, ``failed`` or ``skipped``."""
    reason: str = ""


def table(cells: Iterable[Cell]) -> str:
    """A Markdown table; a cell names the places where all of its tests passed."""
    found: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        found.setdefault((cell.framework, cell.launcher), []).append(cell)
    rows = [row for row in FRAMEWORKS if any(key[0] == row for key in found)]
    lines = [f"| | {' | '.join(LAUNCHERS)} |", "|---" * (len(LAUNCHERS) + 1) + "|"]
    for row in rows:
        texts = [_text(row, launcher, found.get((row, launcher), [])) for launcher in LAUNCHERS]
        lines.append(f"| {row} | {' | '.join(texts)} |")
    return "\n".join([*lines, *_reasons(found, rows)])


def _text(row: str, launcher: str, cells: list[Cell]) -> str:
    if not cells:
        return "–" if (row, launcher) in NOT_MADE else ""
    places = list(dict.fromkeys(cell.place for cell in cells))
    works = [
        place
        for place in places
        if all(cell.outcome == "passed" for cell in cells if cell.place == place)
    ]
    wrong = [place for place in places if place not in works]
    return ", ".join([*works, *(f"NOT {place}" for place in wrong)])


def _reasons(found: dict[tuple[str, str], list[Cell]], rows: list[str]) -> list[str]:
    """Why a cell is a dash or wrong, below the table."""
    lines = [
        f"- {'; '.join(known)} by {', '.join(launchers)}: {reason}."
        for frameworks, launchers, reason in _NO_SENSE
        if (known := [row for row in frameworks if row in rows])
    ]
    for cells in found.values():
        lines += [
            f"- {cell.framework} by {cell.launcher}, {cell.place}: {cell.outcome}. {cell.reason}"
            for cell in cells
            if cell.outcome != "passed"
        ]
    return ["", *dict.fromkeys(lines)] if lines else []
