"""A real terminal of a given size, by tmux: what is on the screen, and keys for it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from command_rig import until

PROMPT = "ready$"


class Terminal:
    """One window with a shell, as a context."""

    def __init__(
        self, folder: Path, env: dict[str, str], columns: int = 80, lines: int = 24
    ) -> None:
        self._place = Path(tempfile.mkdtemp(prefix="tmux-"))
        self._env = {**env, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}
        self._asked = 0
        start = self._place / "start"
        start.write_text(f"PS1='{PROMPT} '; unset HISTFILE\n")
        size = ["-x", str(columns), "-y", str(lines), "-c", str(folder)]
        self._tmux("-u", "-f", "/dev/null", "new-session", "-d", *size, f"bash --rcfile {start}")

    def __enter__(self) -> Terminal:
        try:
            self.wait(lambda text: PROMPT in text)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the window and all that runs in it."""
        self._tmux("kill-server")
        shutil.rmtree(self._place, ignore_errors=True)

    @property
    def text(self) -> str:
        """The screen, without spaces at the ends of lines."""
        return self._tmux("capture-pane", "-p")

    def press(self, *keys: str) -> None:
        """Keys by tmux's names: ``q``, ``C-c``, ``PageDown``."""
        self._tmux("send-keys", *keys)

    def type(self, line: str) -> None:
        """A command line, with Enter."""
        self._tmux("send-keys", "-l", line)
        self._tmux("send-keys", "Enter")

    def top(self, *words: str) -> None:
        """``allranks top`` with these words."""
        self.type(" ".join([sys.executable, "-m", "allranks", "top", *words]))

    def ask(self, command: str) -> str:
        """What a command prints, in an otherwise empty window."""
        self._asked += 1
        # Summed up by the shell, so that the line as typed is not taken for the answer.
        end = f"its end {1000 + self._asked}"
        self.type(f"clear; {command}; echo its end $((1000 + {self._asked}))")
        return self.shows(end).split(end)[0]

    def resize(self, columns: int, lines: int) -> None:
        """As a user pulls at the window's corner."""
        self._tmux("resize-window", "-x", str(columns), "-y", str(lines))

    def flag(self, name: str) -> str:
        """A fact of the window: ``cursor_flag``, ``alternate_on``."""
        return self._tmux("display-message", "-p", f"#{{{name}}}").strip()

    def wait(self, true: Callable[[str], bool], seconds: float = 60) -> str:
        """The screen once it shows what must come."""
        found = until(lambda: [t for t in [self.text] if true(t)], seconds, lambda: self.text)
        return found[0]

    def shows(self, *parts: str) -> str:
        """Wait until all of these stand on the screen."""
        return self.wait(lambda text: all(part in text for part in parts))

    def _tmux(self, *words: str) -> str:
        command = ["tmux", "-S", str(self._place / "socket"), *words]
        done = subprocess.run(command, env=self._env, capture_output=True, text=True, check=True)
        return done.stdout
