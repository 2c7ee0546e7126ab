"""How the ranks end: well, badly, or on purpose to go on in another attempt."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from allranks.errors import Interrupted
from allranks.runtime.agent import failures
from allranks.runtime.agent.attempt_files import Attempt
from allranks.runtime.agent.children import Child
from allranks.runtime.agent.linux_processes import children, descendants
from allranks.runtime.agent.rank_pipes import Output

_LEFT = f"it left with exit code {Interrupted.EXIT_CODE}"

Ended = list[tuple[Child, int]]
"""Ranks that have ended, with their exit codes; minus the signal for those that one killed."""


class Ends:
    """Who lives, who has failed, and the exit code of all."""

    def __init__(
        self,
        ranks: Iterable[Child],
        output: Output,
        attempt: Attempt,
        command: Sequence[str],
        guard: int,
    ) -> None:
        self.alive = {child.pid: child for child in ranks}
        self.failed: list[dict[str, Any]] = []
        self._output = output
        self._attempt = attempt
        self._command = list(command)
        self._guard = guard
        self._code = 0
        self._goes_on = False

    def collect(self) -> Ended:
        """Every process that has ended: ranks, which are returned, and orphans that became ours."""
        ended: Ended = []
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            if child := self.alive.pop(pid, None):
                ended.append((child, os.waitstatus_to_exitcode(status)))
        return ended

    def judge(self, ended: Ended, stopped: float | None) -> list[int]:
        """Read the last words of these ranks and record failures; returns the bad exit codes.

        A rank that asks to go on is not among them: others may still be saving, so nobody is ended.
        """
        for child, code in ended:
            self._output.drain(child.pid)
            self._goes_on |= code == Interrupted.EXIT_CODE
        bad = [each for each in ended if each[1] not in (0, Interrupted.EXIT_CODE)]
        for (when, text), child, code in self._explained(bad):
            status = (code, None) if code > 0 else (128 - code, -code)
            # A rank that ended because we told it to is no failure.
            if stopped is None or (code > 0 and when < stopped):
                self._record(child, status, (when, text))
            self._code = self._code or status[0]
        return [code for _, code in bad]

    def settle(self) -> int:
        """When all are over: the first failure's exit code, else 0.

        Ranks that asked to go on leave a note for the job script. To a launcher any code but 0 is a
        crash, for which it would end the ranks of other nodes in the middle of their saves.
        """
        if self._goes_on and not self._code:
            self._code = 0 if self._note() else Interrupted.EXIT_CODE
        return self._code

    def leftovers(self) -> list[int]:
        """What the ranks had started and that lives, themselves included."""
        # Orphans become our children, so no children means no descendants. That spares the normal
        # end a walk through all of /proc, where a large node lists thousands of kernel threads.
        if children() == [self._guard]:
            return []
        return [pid for pid in descendants(os.getpid()) if pid != self._guard]

    def _explained(self, bad: Ended) -> list[tuple[tuple[float, str], Child, int]]:
        """Of several at once the one with the earliest error first."""
        found = []
        for child, code in bad:
            out, err = self._output.tails(child.pid)
            found.append((failures.describe(out, err, code == 1, time.time()), child, code))
        return sorted(found, key=lambda item: item[0][0])

    def _record(
        self, child: Child, status: tuple[int, int | None], found: tuple[float, str]
    ) -> None:
        place = child.order.place
        facts = failures.record(place, child.pid, status, self._command, found)
        self.failed.append(facts)
        self._attempt.failed(place.rank, facts)
        if self._attempt.folder:
            _take_back(self._attempt.folder)

    def _note(self) -> bool:
        """Tell the job script to go on; False when there is none, or ranks elsewhere have failed."""
        folder = self._attempt.folder
        if folder is None or any_failure(self._attempt.failures):
            return False
        from allranks.runs.progress_file import INTERRUPTED, note_interrupted

        try:
            if not (folder / INTERRUPTED).exists():
                note_interrupted(folder, _LEFT)
        except OSError:
            return False
        return True


def _take_back(attempt: Path) -> None:
    """Ranks of another node asked to go on, but the part of one that failed may not be saved."""
    from allranks.runs.attempt import interrupted
    from allranks.runs.progress_file import INTERRUPTED

    if interrupted(attempt) == _LEFT:
        with contextlib.suppress(OSError):  # the failure itself is written down all the same
            (attempt / INTERRUPTED).unlink()


def any_failure(folder: Path | None) -> bool:
    """Whether a rank of the attempt has failed, on any node; the folder is the one of failures."""
    return folder is not None and any(folder.glob("rank-*.json"))
