"""Show the lines of many ranks on one terminal, pipe or file.

Each line gets its rank as a prefix. On a terminal an unfinished line (a progress bar, a prompt)
stays the bottom line: it is wiped before other ranks' lines are written and drawn again after them.

Nothing here waits: output that the reader does not take stays in a buffer, and the supervisor stops
reading the ranks while that buffer is large. So a paused terminal slows the ranks down, as it would
without us, and the agent still reacts to signals and exits.
"""

from __future__ import annotations

import os
import select
import stat
import threading
from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import suppress

_COLOURS = (36, 33, 32, 35, 34, 31, 96, 93, 92, 95, 94, 91)
_WIPE = b"\r\x1b[K"
_FULL = 1 << 20
_stderr_lock = threading.Lock()
# A pipe that polls as writable takes this much without blocking (PIPE_BUF).
_CHUNK = 4096


class OutputBuffer:
    """One output of the agent, its stdout or its stderr, with what it has not taken yet."""

    def __init__(self, fd: int, environment: Mapping[str, str]) -> None:
        self.fd = fd
        # Open MPI gives every rank a terminal of its own, also when mpirun writes to a file.
        self.terminal = os.isatty(fd) and "OMPI_COMM_WORLD_RANK" not in environment
        self.buffer = bytearray()
        self.closed = False
        self._chunk = 1 << 20 if stat.S_ISREG(os.fstat(fd).st_mode) else _CHUNK
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)

    def pump(self, wait_ms: int = 0) -> None:
        """Write what can be written without blocking."""
        while self.buffer and not self.closed and self._poll.poll(wait_ms):
            try:
                done = os.write(self.fd, self.buffer[: self._chunk])
            except BlockingIOError:
                return
            except OSError:
                # The reader went away (``| head``). The ranks and their logs continue.
                self.closed = True
                break
            del self.buffer[:done]
        if self.closed:
            self.buffer.clear()


class Display:
    """Where a supervisor shows what the ranks print; this one shows nothing."""

    raw = False
    """Bytes are passed as they come, instead of whole lines."""

    def shows(self, rank: int) -> bool:
        """Return whether this rank's lines are shown."""
        return False

    def write(self, rank: int, error: bool, block: bytes) -> None:
        """Show whole lines of a rank; in raw mode any bytes."""

    def draw_live(self, rank: int, text: bytes) -> None:
        """Set the unfinished line of a rank, empty when there is none."""

    def pump(self, wait_ms: int = 0) -> None:
        """Write what the outputs take."""

    def pending_fds(self) -> list[int]:
        """Return the outputs that have not taken everything yet."""
        return []

    def is_full(self) -> bool:
        """Return whether so much is buffered that the ranks should wait."""
        return False


class Console(Display):
    """The agent's stdout and stderr, shared by the ranks that are shown."""

    def __init__(
        self, prefix: bool, shown: Collection[int], environment: Mapping[str, str]
    ) -> None:
        self._out = OutputBuffer(1, environment)
        # Two descriptors of one terminal or file share a buffer: that keeps the lines in order.
        self._err = self._out if _same(1, 2) else OutputBuffer(2, environment)
        self._prefix = prefix
        self._shown = shown
        self._colour = _colours(environment, self._out.terminal)
        self._live: dict[int, bytes] = {}
        self._drawn = b""
        # A single rank without a prefix: bytes pass as they are, prompts and all.
        self.raw = not prefix and len(shown) <= 1

    def shows(self, rank: int) -> bool:
        return rank in self._shown

    def write(self, rank: int, error: bool, block: bytes) -> None:
        sink = self._err if error else self._out
        if sink.terminal and not self.raw:
            self._wipe(sink)
        if self._prefix:
            head = self._head(rank)
            block = head + block[:-1].replace(b"\n", b"\n" + head) + b"\n"
        sink.buffer += block

    def draw_live(self, rank: int, text: bytes) -> None:
        if text:
            self._live[rank] = text
        else:
            self._live.pop(rank, None)

    def print_line(self, text: str) -> None:
        """Write a line of the agent's own to stderr."""
        if self._err.terminal:
            self._wipe(self._err)
        self._err.buffer += text.encode("utf-8", "replace") + b"\n"

    def pump(self, wait_ms: int = 0) -> None:
        if not self.raw:
            self._draw()
        self._out.pump(wait_ms)
        if self._err is not self._out:
            self._err.pump(wait_ms)

    def pending_fds(self) -> list[int]:
        return [sink.fd for sink in {self._out, self._err} if sink.buffer]

    def is_full(self) -> bool:
        return len(self._out.buffer) > _FULL or len(self._err.buffer) > _FULL

    def _head(self, rank: int) -> bytes:
        text = b"[%d]" % rank
        if self._colour:
            text = b"\x1b[%dm%s\x1b[0m" % (_COLOURS[rank % len(_COLOURS)], text)
        return text + b" "

    def _wipe(self, sink: OutputBuffer) -> None:
        # Always, even with nothing drawn: under torchrun and mpirun several agents share a
        # terminal, and the bottom line may be another's.
        if not sink.buffer.endswith(b"\n") or self._drawn:
            sink.buffer += _WIPE
        self._drawn = b""

    def _draw(self) -> None:
        sink = self._err if self._err.terminal else self._out
        if not sink.terminal:
            return
        # Ranks often draw the same bar: the lowest one stands for all.
        text = b""
        if self._live:
            rank = min(self._live)
            text = self._cut(rank, self._live[rank], sink.fd)
        if text != self._drawn:
            sink.buffer += _WIPE + text
            self._drawn = text

    def _cut(self, rank: int, text: bytes, fd: int) -> bytes:
        head = self._head(rank) if self._prefix else b""
        width = max(_width(fd) - len(str(rank)) - 4, 10)
        if b"\x1b" in text:  # its own colours: cutting could leave the terminal coloured
            return head + text
        return head + text.decode("utf-8", "replace")[:width].encode()


class StderrDisplay(Display):
    """Shows the ranks' stderr on ours, each line with its rank; their stdout is in their logs."""

    def __init__(self) -> None:
        self.shown: Counter[int] = Counter()
        """Lines shown of each rank."""
        self._muted = False
        self._unmuted: int | None = None

    def mute(self, all_but: int | None = None) -> None:
        """Show no more of the ranks, since this process ends them."""
        self._muted, self._unmuted = True, all_but

    def shows(self, rank: int) -> bool:
        return not self._muted or rank == self._unmuted

    def write(self, rank: int, error: bool, block: bytes) -> None:
        if error:
            lines = block.decode("utf-8", "replace").splitlines()
            self.shown[rank] += len(lines)
            own = f"[rank{rank}]: "  # torch puts it before the lines of a traceback
            print_line("\n".join(f"[rank {rank}] {line.removeprefix(own)}" for line in lines))


def print_line(text: str) -> None:
    """Write a line to stderr, past whatever the script has put in place of ``sys.stderr``."""
    with _stderr_lock, suppress(OSError):
        os.write(2, f"{text}\n".encode())


def _same(first: int, second: int) -> bool:
    return os.path.samestat(os.fstat(first), os.fstat(second))


def _colours(environment: Mapping[str, str], terminal: bool) -> bool:
    if environment.get("NO_COLOR"):
        return False
    if environment.get("FORCE_COLOR", "0") not in ("", "0"):
        return True
    return terminal and environment.get("TERM") != "dumb"


def _width(fd: int) -> int:
    try:
        return os.get_terminal_size(fd).columns or 80
    except OSError:
        return 80
