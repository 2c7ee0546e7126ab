"""A job script with the real agent among stand-ins for Slurm's commands, whose answers tests change on the way.

The stand-ins run a hook first, a line of bash named after the command (``scontrol show job`` is
``show-job``), so that a test can let something happen at that very moment: ``kill -TERM $JOB``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from script_rig import plan_of

from allranks.job.sbatch import render

HEAD = """#!/bin/bash
echo "${0##*/} $*" >>"$STUB/log"
name=${0##*/}
if [[ $name == scontrol ]]; then name=$1; if [[ $1 == show ]]; then name=show-$2; fi; fi
JOB=$(<"$STUB/pid")
if [[ -e $STUB/hook-$name ]]; then . "$STUB/hook-$name"; fi
"""
STANDINS = {
    "scontrol": HEAD + """case $1-$2 in
  show-job) echo "JobId=7 JobName=train JobState=$(<"$STUB/state") Dependency=(null)" ;;
  show-node) echo "NodeName=n1 State=MIXED" ;;
  show-hostnames) printf 'n1\\nn2\\n' ;;
esac
""",
    "sbatch": HEAD + "echo 31\n",
    "scancel": HEAD,
    "sleep": HEAD,
    "squeue": "#!/bin/bash\n",
    # The ranks: what they leave behind, and their exit code, is the hook's.
    "srun": HEAD + 'if [[ $* == *find_endpoint* ]]; then echo 127.0.0.1 20001 lo; exit; fi\n. "$STUB/ranks"\n',
}  # fmt: skip
RUNNING = "RUNNING Reason=None Requeue=1 Restarts=0"
TIME_IS_UP = "COMPLETING Reason=TimeLimit Requeue=1 Restarts=0"
CANCELLED = "COMPLETING Reason=None Requeue=1 Restarts=0"
LEAVE = 'echo "it was time" >"$ALLRANKS_ATTEMPT_DIR/interrupted"'


@dataclass(frozen=True)
class Played:
    """What came of a script."""

    code: int
    output: str
    calls: list[str]

    def count(self, start: str) -> int:
        return sum(call.startswith(start) for call in self.calls)


class Stub:
    """One run folder, and the cluster around it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.bin, self.run = folder, folder / "bin", folder / "run"
        self.bin.mkdir()
        for name, text in STANDINS.items():
            self.program(name, text)
        agent = f'#!/bin/bash\nif [[ $2 == allranks.runtime.agent || $1 == -c ]]; then exec {sys.executable} "$@"; fi\n'
        self.program("python", agent)
        self.write("state", RUNNING)
        self.write("ranks", LEAVE)

    def program(self, name: str, text: str) -> None:
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    def hook(self, command: str, line: str) -> None:
        """Let this happen when the script calls that command."""
        self.write(f"hook-{command}", f"{line}\n")

    def once(self, command: str, line: str) -> None:
        self.hook(command, f'rm "$STUB/hook-{command}"; {line}')

    def state(self, state: str) -> str:
        """The line of bash after which Slurm says this of the job."""
        return f'echo "{state}" >"$STUB/state"'

    def end(self, attempt: int = 1) -> dict[str, Any]:
        return json.loads((self.run / "attempts" / str(attempt) / "end.json").read_text())

    def play(self, **fields: Any) -> Played:
        text = render(plan_of(**{"requeue": True, "time": "1h", **fields}), run_dir=str(self.run))
        self.run.mkdir(exist_ok=True)
        (self.run / "job.sh").write_text(text)
        env = {
            "PATH": f"{self.bin}:/usr/sbin:/usr/bin:/sbin:/bin",
            "STUB": str(self.folder),
            "SLURM_JOB_ID": "7",
            "SLURM_JOB_NAME": "train",
            "SLURM_JOB_NODELIST": "n[1-2]",
            "SLURM_SUBMIT_DIR": str(self.folder),
            "SLURMD_NODENAME": "n1",
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        }
        begin = 'echo $$ >"$STUB/pid"; exec bash "$0"'
        done = subprocess.run(
            ["bash", "-c", begin, str(self.run / "job.sh")],
            cwd=self.folder, env=env, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        log = self.folder / "log"
        calls = log.read_text().splitlines() if log.exists() else []
        return Played(done.returncode, done.stdout + done.stderr, calls)
