"""What a rank beside this one writes: all of it to its log, its stderr to ours as well.

The lines of a log are those of the run folder's: time, ``o`` or ``e``, text.
"""

from __future__ import annotations

import os
import re
import selectors
import subprocess
import threading
from collections import deque
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import IO

_LONGEST = 1 << 16
_LAST_LINES = 10
_LOST_PEER = re.compile(
    r"Connection (closed|reset) by peer|[Ss]ocket closed|Broken pipe|ncclRemoteError|"
    r"NCCL (error|timeout)|Timed out waiting|did not find rank 0"
)
"""The words of a rank that fails because another one did."""

console_lock = threading.Lock()


def say(text: str) -> None:
    """One line on stderr, past whatever the script has put in place of ``sys.stderr``."""
    with console_lock, suppress(OSError):
        os.write(2, f"{text}\n".encode())


def speaks_of_a_lost_peer(text: str) -> bool:
    """Whether an error is that of a rank whose connection to another one broke."""
    return bool(_LOST_PEER.search(text))


class RankOutput:
    """One rank's process, its log, and the end of what it said."""

    def __init__(self, rank: int, process: subprocess.Popen[bytes], path: Path) -> None:
        self.rank, self.process, self.path = rank, process, path
        self.muted = False
        """Its stderr is no longer shown: this process ends it."""
        self.last: deque[str] = deque(maxlen=_LAST_LINES)
        self.shown = 0
        self.open = 2
        self._log = path.open("ab", buffering=0)
        self._pending = {"o": b"", "e": b""}

    @property
    def lost_a_peer(self) -> bool:
        """Whether its last words are those of a rank that fails because another one did."""
        return any(map(speaks_of_a_lost_peer, self.last))

    def register(self, reader: selectors.BaseSelector) -> None:
        for stream, pipe in (("o", self.process.stdout), ("e", self.process.stderr)):
            reader.register(pipe, selectors.EVENT_READ, (self, stream))  # type: ignore[arg-type]

    def read(self, pipe: IO[bytes], stream: str) -> bool:
        """Take what is there; False at the end of the pipe."""
        data = os.read(pipe.fileno(), 1 << 16)
        text = self._pending[stream] + data
        whole, newline, rest = text.rpartition(b"\n")
        if not data or len(rest) > _LONGEST:
            whole, newline, rest = text, b"\n" if text else b"", b""
        # A bar that is redrawn for hours: its last state is enough.
        self._pending[stream] = rest[rest.rfind(b"\r", 0, -1) + 1 :] if rest else b""
        if newline:
            self._write(whole, stream)
        if not data:
            self.open -= 1
            if not self.open:
                self._log.close()
        return bool(data)

    def _write(self, block: bytes, stream: str) -> None:
        stamp = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        lines = [
            line.rstrip("\r").rpartition("\r")[2]
            for line in block.decode("utf-8", "replace").split("\n")
        ]
        self.last.extend(lines)
        with suppress(OSError):  # a full disk must not stop the rank
            self._log.write("".join(f"{stamp} {stream} {line}\n" for line in lines).encode())
        if stream == "e" and not self.muted:
            self.shown += len(lines)
            own = f"[rank{self.rank}]: "  # torch puts it before the lines of a traceback
            say("\n".join(f"[rank {self.rank}] {line.removeprefix(own)}" for line in lines))


def read_all(outputs: list[RankOutput], closed: threading.Condition) -> None:
    """Read every pipe to its end; tells ``closed`` of each end."""
    with selectors.DefaultSelector() as reader:
        for output in outputs:
            output.register(reader)
        while reader.get_map():
            for key, _ in reader.select():
                output, stream = key.data
                if not output.read(key.fileobj, stream):
                    reader.unregister(key.fileobj)
                    with closed:
                        closed.notify_all()
