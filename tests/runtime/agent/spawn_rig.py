"""What the tests of spawned ranks share: a start, the reports, and what is left in /proc."""

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path

from command_rig import until

PROBE = Path(__file__).with_name("spawn_probe.py")
FOREIGN = ("SLURM", "PMI", "OMPI", "TORCHELASTIC", "HOROVOD", "ALLRANKS", "MASTER")
NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "TF_CONFIG")


class Start:
    """One plain ``python …``, marked so that its processes can be found."""

    def __init__(self, folder, *words, python=(), **more):
        kept = {k: v for k, v in os.environ.items() if not k.startswith(FOREIGN) and k not in NAMES}
        self.folder, self.mark = folder, f"SPAWN_TEST={uuid.uuid4()}"
        kept |= {"REPORT": str(folder), "PYTHONPATH": str(PROBE.parent), "OMP_NUM_THREADS": "1"}
        kept |= {"TMPDIR": str(folder), "SPAWN_TEST": self.mark.partition("=")[2]} | more
        command = python or (sys.executable, str(PROBE))
        self.process = subprocess.Popen(
            [*command, *words], env={k: v for k, v in kept.items() if v is not None}, cwd=folder,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def end(self):
        """Exit code, stdout and stderr."""
        try:
            out, err = self.process.communicate(timeout=100)
        finally:
            self.process.kill()
        return self.process.returncode, out, err

    def reports(self):
        found = [json.loads(path.read_text()) for path in self.folder.glob("*.json")]
        return sorted(found, key=lambda each: each["rank"])

    def until_ranks(self, count):
        self._until(lambda: len(list(self.folder.glob("*.json"))) == count)

    def until_nothing_is_left(self):
        self._until(lambda: not self.left())

    def left(self):
        """Processes that carry the mark, but for those that have ended."""
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                if self.mark.encode() in path.read_bytes().split(b"\0"):
                    found.append(int(path.parent.name))
            except OSError:
                continue
        return found

    def _until(self, true):
        until(true, 60, lambda: (self.left(), self.reports()))


def adds_up(reports, size):
    """Every rank was there once and got the sum of all, where they added up."""
    assert [each["rank"] for each in reports] == list(range(size))
    assert {each["sum"] for each in reports} <= {size * (size + 1) / 2, None}
    return True
