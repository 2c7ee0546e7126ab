"""A ``/proc`` in a folder, as far as the sampler reads it."""

from __future__ import annotations

import shutil
from pathlib import Path

from allranks.runtime.telemetry.process_tree import PAGE


class Proc:
    """Processes that a test makes, changes and ends."""

    def __init__(self, folder: Path) -> None:
        self.path = folder
        folder.mkdir()

    def process(
        self,
        pid: int,
        parent: int = 1,
        *,
        start: int = 100,
        own: int = 0,
        waited: int = 0,
        resident: int = 0,
        stack: int = 0,
        name: str = "python",
        environ: tuple[str, ...] = (),
    ) -> Path:
        folder = self.path / str(pid)
        folder.mkdir(exist_ok=True)
        words = ["0"] * 50
        words[0], words[1] = "S", str(parent)
        words[11], words[13] = str(own), str(waited)
        words[19], words[21], words[25] = str(start), str(resident // PAGE), str(stack)
        (folder / "stat").write_text(f"{pid} ({name}) {' '.join(words)}\n")
        if environ:
            (folder / "environ").write_text("\0".join(environ) + "\0")
        return folder

    def end(self, pid: int) -> None:
        shutil.rmtree(self.path / str(pid))
