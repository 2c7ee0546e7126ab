"""Ends trainings in every way there is, lets them go on, and compares them with an undisturbed one."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).with_name("soak_train.py")
LONGEST = 120.0
"""Seconds in which a training must show a sign of life."""


@dataclass
class Tally:
    """What one kind of end did to trainings."""

    kills: int = 0
    steps_lost: list[int] = field(default_factory=list)
    torn: int = 0
    """Checkpoints that were under way at that moment."""
    quarantined: int = 0
    wrong: int = 0

    def add(self, other: Tally) -> None:
        """Sum up what two tests met."""
        self.kills += other.kills
        self.steps_lost += other.steps_lost
        self.torn += other.torn
        self.quarantined += other.quarantined
        self.wrong += other.wrong


Tallies = dict[str, Tally]


def table(tallies: Tallies) -> str:
    """For people: a row per kind."""
    head = ("ended by", "kills", "steps lost: mean", "most", "torn met", "set aside", "wrong")
    rows = [head]
    for kind, tally in sorted(tallies.items()):
        lost = tally.steps_lost or [0]
        mean = f"{sum(lost) / len(lost):.1f}"
        counts = (tally.kills, mean, max(lost), tally.torn, tally.quarantined, tally.wrong)
        rows.append((kind, *map(str, counts)))
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows
    )


class Training:
    """One run of the script by `allranks run`, in a folder of its own."""

    def __init__(self, folder: Path, env: dict[str, str], words: list[str], nprocs: int) -> None:
        self.folder = folder
        self.env = env
        self.words = words
        self.nprocs = nprocs
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, restarts: int = 0) -> None:
        """Begin."""
        how = ["run", "--nprocs", str(self.nprocs), "--restarts", str(restarts)]
        self._command([*how, str(SCRIPT), *self.words])

    def resume(self) -> None:
        """Go on after the command itself has ended."""
        self._command(["resume", self.run.name])

    def _command(self, words: list[str]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / "output.txt", "ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "allranks", *words],
                cwd=self.folder, env=self.env, stdout=output, stderr=output,
            )  # fmt: skip

    def wait(self) -> int:
        """Its exit code."""
        assert self.process is not None
        return self.process.wait(timeout=LONGEST)

    @property
    def ended(self) -> bool:
        return self.process is None or self.process.poll() is not None

    @property
    def said(self) -> str:
        return (self.folder / "output.txt").read_text(errors="replace")

    @property
    def run(self) -> Path:
        (found,) = (self.folder / "runs").glob("*-*")
        return found

    def attempt(self) -> Path | None:
        """The folder of the present attempt."""
        numbers = [int(each.name) for each in (self.folder / "runs").glob("*/attempts/[0-9]*")]
        return self.run / "attempts" / str(max(numbers)) if numbers else None

    def progress(self) -> dict[str, Any]:
        """Of the present attempt; empty before its first step."""
        attempt = self.attempt()
        return _json(attempt / "progress.json") if attempt else {}

    def pids(self) -> list[int]:
        """The ranks of the present attempt that live."""
        attempt = self.attempt()
        files = sorted(attempt.glob("ranks/rank-*.json")) if attempt else []
        found = [int(_json(file).get("pid", 0)) for file in files]
        return [pid for pid in found if pid and Path(f"/proc/{pid}").exists()]

    def until(self, true: Callable[[], object]) -> bool:
        """Wait for something; False when the run ended first."""
        limit = time.monotonic() + LONGEST
        while not true():
            if self.ended:
                return False
            assert time.monotonic() < limit, f"nothing happened:\n{self.said[-3000:]}"
            time.sleep(0.01)
        return True

    def under_way(self) -> list[Path]:
        """Checkpoints that are being written."""
        return [*(self.folder / "runs").glob("*/checkpoints/.*.part")]

    def last_step(self) -> int:
        """The last step that was written down."""
        return max((row["step"] for row in rows(self.run / "metrics.jsonl")), default=0)


def rows(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a metrics file that are whole."""
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            yield json.loads(line)
        except ValueError:
            continue


def result(run: Path) -> dict[str, Any]:
    """All that must be the same bit by bit: every tensor of the last checkpoint, and the curve."""
    from allranks.train.checkpoint.checkpoint_reader import CheckpointReader

    reader = CheckpointReader((run / "checkpoints" / "latest").resolve())
    tensors = {
        key: reader.tensor(key).clone() for key in reader.manifest.tensors if "." in key and key[:5] != "rank."
    }  # fmt: skip
    curve = {
        (row["kind"], row["step"]): {k: v for k, v in row.items() if k.endswith("loss")}
        for row in rows(run / "metrics.jsonl")
    }
    return {"tensors": tensors, "curve": curve}


def differences(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Where two results differ; nothing is rounded."""
    import torch

    found = [f"{key} is only in one" for key in one["tensors"].keys() ^ other["tensors"].keys()]
    for key in one["tensors"].keys() & other["tensors"].keys():
        if not torch.equal(one["tensors"][key], other["tensors"][key]):
            found.append(f"{key} differs")
    for at in sorted(one["curve"].keys() | other["curve"].keys()):
        if one["curve"].get(at) != other["curve"].get(at):
            found.append(f"{at}: {one['curve'].get(at)} and {other['curve'].get(at)}")
    return found


# -- the ends


def _kill(pids: list[int], number: int = signal.SIGKILL) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def one_rank(training: Training, dice: random.Random) -> None:
    """One of them, as the kernel does when memory runs out."""
    _kill([dice.choice(pids)] if (pids := training.pids()) else [])


def every_rank(training: Training, dice: random.Random) -> None:
    _kill(training.pids())


def while_saving(training: Training, dice: random.Random) -> None:
    """All ranks, at a moment when a checkpoint is being written."""
    training.until(training.under_way)
    time.sleep(dice.uniform(0, 0.01))
    _kill(training.pids())


def launcher(training: Training, dice: random.Random) -> None:
    """What started the ranks on this machine."""
    for pid in training.pids()[:1]:
        stat = Path(f"/proc/{pid}/stat")
        if stat.exists():
            _kill([int(stat.read_text().rpartition(")")[2].split()[1])])


def command(training: Training, dice: random.Random) -> None:
    """The command that the user typed."""
    assert training.process is not None
    _kill([training.process.pid])
    training.process.wait(timeout=LONGEST)


def asked_to_end(training: Training, dice: random.Random) -> None:
    """TERM, which gives time to save."""
    assert training.process is not None
    _kill([training.process.pid], signal.SIGTERM)
    training.process.wait(timeout=LONGEST)


ENDS = {
    "one rank killed": one_rank,
    "every rank killed": every_rank,
    "killed while saving": while_saving,
    "launcher killed": launcher,
    "command killed": command,
    "TERM": asked_to_end,
}


def endure(training: Training, kinds: list[str], dice: random.Random, tallies: Tallies) -> int:
    """Start, end it in these ways one after the other, let it go on to its end; how often it was ended."""
    before = len(kinds)
    training.start(restarts=10 * before)
    while True:
        begun = training.until(lambda: training.progress().get("began"))
        if begun and kinds:
            time.sleep(dice.uniform(0, 1.2))
            if not training.ended:
                _end(training, kinds.pop(), dice, tallies)
                continue
        code = training.wait()
        if code == 0 and training.progress().get("outcome") == "finished":
            return before - len(kinds)
        assert training.progress().get("outcome") != "finished", training.said[-3000:]
        training.resume()


def _end(training: Training, kind: str, dice: random.Random, tallies: Tallies) -> None:
    tally, attempt = tallies.setdefault(kind, Tally()), training.attempt()
    tally.kills += 1
    tally.torn += bool(training.under_way())
    reached = training.last_step()
    ENDS[kind](training, dice)
    if training.ended and training.progress().get("outcome") != "finished":
        training.resume()
    again = training.until(
        lambda: training.attempt() != attempt and training.progress().get("began")
    )
    if again:
        tally.steps_lost.append(max(0, reached - int(training.progress()["first_step"])))
    tally.quarantined += len([*training.run.glob("checkpoints/quarantine/step-*.txt")])


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
