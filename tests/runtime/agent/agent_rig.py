"""Real agents with real ranks."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

AGENT = [sys.executable, "-m", "allranks.runtime.agent"]
_OURS = (
    "ALLRANKS_",
    "SLURM",
    "MASTER_",
    "OMP_",
    "RANK",
    "LOCAL_",
    "WORLD_",
    "NODE_RANK",
    "FORCE_C",
)


class Rig:
    """Starts agents in a clean environment and knows what they leave behind."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.attempt = folder / "attempt"
        self.session = f"test-{os.getpid()}-{time.monotonic_ns()}"
        kept = {k: v for k, v in os.environ.items() if not k.startswith(_OURS)}
        self.env = {**kept, "ALLRANKS_LAUNCH_ID": self.session, "NO_COLOR": "1"}
        self.env["ALLRANKS_ATTEMPT_DIR"] = str(self.attempt)

    def script(self, text: str, name: str = "train.py") -> str:
        path = self.folder / name
        path.write_text(textwrap.dedent(text))
        return str(path)

    def start(self, *words: str, **extra: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*AGENT, *words],
            env={**self.env, **extra},
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )

    def run(self, *words: str, **extra: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*words, **extra)
        out, err = process.communicate(timeout=60)
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    def ranks(self, mode: str, count: int, *command: str, **extra: str):
        return self.run("ranks", "--nprocs", str(count), "--mode", mode, "--", *command, **extra)

    def start_ranks(self, mode: str, count: int, *command: str, **extra: str):
        return self.start("ranks", "--nprocs", str(count), "--mode", mode, "--", *command, **extra)

    def log(self, rank: int) -> list[str]:
        return (self.attempt / "ranks" / f"rank-{rank:05d}.log").read_text().splitlines()

    def said(self, rank: int, kind: str = "o") -> list[str]:
        parts = [line.split(" ", 2) for line in self.log(rank)]
        return [text for _, stream, text in parts if stream == kind]

    def alive(self) -> list[int]:
        from allranks.runtime.agent.orphans import launch_processes

        return [pid for pid in launch_processes(self.session) if not _zombie(pid)]


def _zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
