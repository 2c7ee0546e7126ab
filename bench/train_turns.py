"""Processes that measure one entry of the training benchmark when it is its turn."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from typing import Any


class Waiting:
    """An entry in a process of its own that measures when it is told to."""

    def __init__(self, words: list[str]) -> None:
        self.process = subprocess.Popen(
            [*words, "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __call__(self) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        return _answer(self.process.stdout.readline())

    def end(self) -> None:
        self.process.communicate()


class Fresh:
    """An entry that gets a new process for every measurement; cold: with empty compile caches."""

    def __init__(self, words: list[str], cold: bool = False) -> None:
        self.words, self.cold = words, cold

    def __call__(self) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            caches = {"TORCHINDUCTOR_CACHE_DIR": folder, "TRITON_CACHE_DIR": f"{folder}/triton"}
            done = subprocess.run(
                self.words,
                stdout=subprocess.PIPE,
                text=True,
                check=False,
                env={**os.environ, **(caches if self.cold else {})},
            )
        return _answer(done.stdout)

    def end(self) -> None:
        """Nothing is left."""


def _answer(line: str) -> dict[str, Any]:
    return json.loads(line) if line.strip() else {"error": "the process ended without a result"}
