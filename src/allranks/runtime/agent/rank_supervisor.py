"""Supervise the ranks of a node: record failures, end the others, decide the exit code.

A rank that fails by itself ends the other ranks, and its exit code is the agent's. A rank that exits
with code 75 has saved and asks to be requeued: others may still be saving, so no rank is ended, and the
agent leaves a note for the job script.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from allranks.errors import Interrupted
from allranks.runtime.agent import failures
from allranks.runtime.agent.attempt_files import AttemptFiles
from allranks.runtime.agent.console import Console
from allranks.runtime.agent.linux_processes import (
    SI_KERNEL,
    CaughtSignal,
    children,
    descendants,
    send,
)
from allranks.runtime.agent.rank_environment import RankPlacement
from allranks.runtime.agent.rank_output import Child, RankOutput, ThreadMessages
from allranks.runtime.agent.supervisor import STOPPING, Exits, Grace, SignalEvents, Supervisor

_SAME_SIGNAL = 0.2
_PEERS_INTERVAL = 1.0
_REQUEUE_NOTE = f"it left with exit code {Interrupted.EXIT_CODE}"


class RankSettings(NamedTuple):
    """What the supervisor of a node's ranks must know beside the ranks."""

    messages: ThreadMessages
    """Lines of other threads for the console."""
    guard: int
    """The guard's process id: a child of ours too, and it stays to the end."""
    command: Sequence[str]
    keep_terminal: bool
    forward: bool = True
    """Whether to forward USR1, USR2 and CONT; Slurm sends them to the ranks of a step itself."""
    peers: bool = False
    """Whether to end the ranks when one fails elsewhere, for launchers that do not."""


class RankSupervisor(Supervisor):
    """Watches the ranks of one node until all have ended."""

    def __init__(
        self,
        ranks: list[tuple[Child, RankPlacement]],
        events: SignalEvents,
        console: Console,
        files: AttemptFiles,
        grace: Grace,
        settings: RankSettings,
    ) -> None:
        started = [child for child, _ in ranks]
        super().__init__(started, events, RankOutput(started, console, files), grace)
        self.failed: list[dict[str, Any]] = []
        """The records of ranks that failed by themselves."""
        self._placements = {child.rank: placement for child, placement in ranks}
        self._console = console
        self._files = files
        self._settings = settings
        self._exit_code = 0
        self._asks_for_requeue = False
        self.add_wakeup(settings.messages.fd)

    def run(self) -> int:
        """Watch the ranks; returns the exit code of the first that failed, else 0."""
        self.watch()
        self._end_leftovers()
        self._output.close()
        if self._asks_for_requeue and not self._exit_code:
            # To a launcher any code but 0 is a crash, for which it would end the ranks of other
            # nodes in the middle of their saves.
            self._exit_code = 0 if self._write_requeue_note() else Interrupted.EXIT_CODE
        return self._exit_code

    def show_messages(self) -> None:
        """Write to the console what waits for it, as far as it takes that at once."""
        for text in self._settings.messages.read():
            self._console.print_line(text)
        self._console.pump()

    # Turns and signals

    def _timeout(self) -> float | None:
        left = super()._timeout()
        return _PEERS_INTERVAL if left is None and self._settings.peers else left

    def after_turn(self, idle: bool) -> None:
        self.show_messages()
        if idle and self._settings.peers and self.stopped is None and self._any_failure():
            self.stop(signal.SIGTERM, self._grace.failed)

    def forward(self, number: int) -> None:
        if self._settings.forward:
            super().forward(number)

    def has_reached_children(self, caught: CaughtSignal) -> bool:
        # In one process group with us the rank has got the terminal's Ctrl-C already.
        return (
            self._settings.keep_terminal
            and caught.number == signal.SIGINT
            and caught.code == SI_KERNEL
        )

    def patience(self, number: int) -> float | None:
        # Launchers send TERM as well when a rank has failed: then there is nothing to save.
        return self._grace.failed if self._any_failure() else super().patience(number)

    def terminate(self, number: int) -> None:
        if number == signal.SIGINT and not self._settings.keep_terminal:
            # As a terminal does it: the whole group, and each rank leads one. Workers count on it,
            # and Python waits for them at the end of the rank.
            send([-pid for pid in self.alive], number)
        else:
            super().terminate(number)

    def kill(self) -> None:
        send(self._descendants(), signal.SIGKILL)

    # Exits

    def on_exits(self, ended: Exits) -> None:
        """End the other ranks when one has failed."""
        if self.stopped is None and any(-code in STOPPING for _, code in ended):
            self._wait_for_the_same_signal()
            ended += self._collect()
        bad = self._record_failures(ended)
        if bad and self.stopped is None:
            self.stop(signal.SIGTERM, self._grace.failed)
        elif any(code > 0 and code != 128 + signal.SIGTERM for code in bad):
            # It failed while all were ending: the others may wait for it in a collective.
            self.shorten_grace(self._grace.failed)

    def _wait_for_the_same_signal(self) -> None:
        """Slurm signals every process of a step: a rank may get it, and be dead, before we do."""
        until = time.monotonic() + _SAME_SIGNAL
        while self.stopped is None and (left := until - time.monotonic()) > 0:
            select.select([self._events.fd], [], [], left)
            for caught in self._events.read():
                if caught.number != signal.SIGCHLD:  # the caller collects exits itself
                    self._handle(caught)

    def _record_failures(self, ended: Exits) -> list[int]:
        """Record which of these ranks failed; returns the exit codes that mean a failure."""
        for child, code in ended:
            self._output.drain(child.pid)
            self._asks_for_requeue |= code == Interrupted.EXIT_CODE
        bad = [each for each in ended if each[1] not in (0, Interrupted.EXIT_CODE)]
        for (when, text), child, code in self._explain(bad):
            status = (code, None) if code > 0 else (128 - code, -code)
            # A rank that ended because it was asked to is no failure.
            if self.stopped is None or (code > 0 and when < self.stopped):
                self._record_failure(child, status, (when, text))
            self._exit_code = self._exit_code or status[0]
        return [code for _, code in bad]

    def _explain(self, bad: Exits) -> list[tuple[tuple[float, str], Child, int]]:
        """Return the errors of these ranks, the earliest first."""
        found = []
        for child, code in bad:
            out, err = self._output.tails(child.pid)
            found.append((failures.explain_failure(out, err, code == 1, time.time()), child, code))
        return sorted(found, key=lambda item: item[0][0])

    def _record_failure(
        self, child: Child, status: tuple[int, int | None], found: tuple[float, str]
    ) -> None:
        placement = self._placements[child.rank]
        facts = failures.failure_record(
            placement, child.pid, status, list(self._settings.command), found
        )
        self.failed.append(facts)
        self._files.write_failure(child.rank, facts)
        if self._files.folder:
            _remove_requeue_note(self._files.folder)

    def _any_failure(self) -> bool:
        """Return whether a rank of the attempt has failed, on any node."""
        folder = self._files.failures
        return folder is not None and any(folder.glob("rank-*.json"))

    def _descendants(self) -> list[int]:
        """Return what the ranks have started and still runs, themselves included."""
        # Orphans become our children, so no children means no descendants. That spares the normal
        # end a walk through all of /proc, where a large node lists thousands of kernel threads.
        guard = self._settings.guard
        if children() == [guard]:
            return []
        return [pid for pid in descendants(os.getpid()) if pid != guard]

    def _end_leftovers(self) -> None:
        """End what the ranks had started and left behind: workers, servers, a shell's child."""
        until = time.monotonic() + self._grace.failed
        terminated = False
        while left := self._descendants():
            if time.monotonic() >= until:
                send(left, signal.SIGKILL)
            elif not terminated:
                send(left, signal.SIGTERM)
                terminated = True
            self._turn(0.05)

    def _write_requeue_note(self) -> bool:
        """Ask the job script to requeue; False without one, or when a rank elsewhere has failed."""
        folder = self._files.folder
        if folder is None or self._any_failure():
            return False
        from allranks.runs.progress_file import INTERRUPTED_FILE, record_interruption

        try:
            if not (folder / INTERRUPTED_FILE).exists():
                record_interruption(folder, _REQUEUE_NOTE)
        except OSError:
            return False
        return True


def _remove_requeue_note(attempt: Path) -> None:
    """Withdraw the note of another node's ranks: the part of a rank that failed may not be saved."""
    from allranks.runs.attempt import interrupted
    from allranks.runs.progress_file import INTERRUPTED_FILE

    if interrupted(attempt) == _REQUEUE_NOTE:
        with contextlib.suppress(OSError):  # the failure itself is recorded all the same
            (attempt / INTERRUPTED_FILE).unlink()
