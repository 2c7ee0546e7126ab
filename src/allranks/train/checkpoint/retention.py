"""Which checkpoints stay."""

from __future__ import annotations

from collections.abc import Sequence

from allranks.runs.atomic_files import parse_stamp
from allranks.train.checkpoint.saved import Saved


def kept(newest_first: Sequence[Saved], keep: int, keep_every: float | None) -> set[str]:
    """The folders of the newest ``keep`` steps and of one per ``keep_every`` seconds.

    Of two saves of one step the later counts.
    """
    steps: dict[int, Saved] = {}
    for saved in newest_first:
        steps.setdefault(saved.step, saved)
    newest = [*steps.values()]
    wanted = {saved.path.name for saved in newest[: max(1, keep)]}
    return wanted | _spaced(newest, keep_every) if keep_every else wanted


def _spaced(newest_first: Sequence[Saved], seconds: float) -> set[str]:
    """From the oldest on, the next that is ``seconds`` later than the one before."""
    found: set[str] = set()
    last: float | None = None
    for saved in reversed(newest_first):
        stamp = parse_stamp(saved.manifest.time if saved.manifest else "")
        if stamp and (last is None or stamp.timestamp() - last >= seconds):
            last = stamp.timestamp()
            found.add(saved.path.name)
    return found
