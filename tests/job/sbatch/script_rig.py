"""Plans for the tests, and a stage on which a job script runs among programs that only take notes."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from allranks.cluster.sites.model import Site
from allranks.job.config_sources import Origin, given
from allranks.job.defaults import derive
from allranks.job.fields import Job
from allranks.job.plan import Plan
from allranks.job.sbatch import render


def plan_of(site: Site | None = None, **fields: Any) -> Plan:
    """The plan of ``train.py``, which need not exist."""
    job = Job(**{"script": "train.py", **fields})
    return derive(job, {name: Origin("test") for name in given(job)}, site)


def script_of(run_dir: str | None = None, site: Site | None = None, **fields: Any) -> str:
    return render(plan_of(site, **fields), run_dir=run_dir)


NOTE = """#!/bin/bash
printf '%s\\0' "$#" "${0##*/}" "$@" >>"$NOTES"
"""

FAKES = {
    "canary": '#!/bin/bash\ntouch "$NOTES.canary"\n',
    "module": NOTE,
    "torchrun": NOTE,
    "accelerate": NOTE,
    "deepspeed": NOTE,
    "scontrol": "#!/bin/bash\nprintf '%s\\n' $HOSTS\n",
    "conda": NOTE + 'if [[ $1 == info ]]; then printf "%s\\n" "$CONDA_BASE"; fi\n',
    "mpirun": NOTE + 'if [[ $1 == --version ]]; then echo "$MPI_VERSION"; fi\n',
    # Is allranks there? If so, the agent is taken for a program that runs what follows the dashes.
    "python": NOTE
    + """env -0 >"$NOTES.env"; pwd >"$NOTES.pwd"
if [[ $1 == -c ]]; then exit "${NO_AGENT:-0}"; fi
if [[ $3 == summary ]]; then echo "a banner"; echo "${FIRST:-$5}"; exit "${NO_AGENT:-0}"; fi
if [[ $1 == train.py ]]; then printf '%s\\0' 4 rank "$RANK" "$LOCAL_RANK" "$NODE_RANK" "$SLURM_NODEID" >>"$NOTES"; fi
if [[ $3 == rank || $3 == block-signals ]]; then while [[ $1 != -- ]]; do shift; done; shift; exec "$@"; fi
exit "${CODE:-0}"
""",
    # Every task, one after the other, or the one task that is asked for.
    "srun": NOTE
    + """tasks=$TASKS
while [[ $1 == -* ]]; do if [[ $1 == --ntasks=1 ]]; then tasks=1; fi; shift; done
for ((task = 0; task < tasks; task++)); do
  export SLURM_PROCID=$task SLURM_NODEID=$((task / TASKS_PER_NODE)) SLURM_LOCALID=$((task % TASKS_PER_NODE))
  if [[ ${DISTRIBUTION:-block} == cyclic ]]; then
    nodes=$((TASKS / TASKS_PER_NODE)) SLURM_NODEID=$((task % nodes)) SLURM_LOCALID=$((task / nodes))
  fi
  "$@" || exit
done
""",
    "apptainer": NOTE
    + """shift
while [[ $1 == --* ]]; do if [[ $1 == --bind ]]; then shift; fi; shift; done
shift
exec "$@"
""",
}


@dataclass(frozen=True)
class Told:
    """What came of a script."""

    code: int
    output: str
    calls: list[tuple[str, ...]]
    env: dict[str, str]
    """The environment of the last ``python``."""
    cwd: str
    canary: bool
    """Whether a user's string was run as a command."""

    def of(self, program: str) -> list[tuple[str, ...]]:
        """The arguments of every call of a program."""
        return [call[1:] for call in self.calls if call[0] == program]


class Stage:
    """A folder with programs that note down how they were called."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        self.notes = folder / "notes"
        self.work = folder / "work"
        for path in (self.bin, self.work):
            path.mkdir()
        for name, text in FAKES.items():
            self.fake(name, text)
        (self.bin / "singularity").symlink_to("apptainer")
        (self.bin / "python3").symlink_to("python")

    def fake(self, name: str, text: str) -> None:
        path = self.bin / name
        path.write_text(text)
        path.chmod(0o755)

    def source(self, path: Path) -> Path:
        """A file that notes down being sourced."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('printf "%s\\0" 1 sourced "${BASH_SOURCE[0]}" >>"$NOTES"\n')
        return path

    def run(self, text: str, plan: Plan, fresh: bool = True, **env: str) -> Told:
        """Run a script as the batch step of a job would; ``fresh``: as if no run before had finished."""
        old = [*self.folder.glob("notes*"), *(self.folder.rglob("finished*") if fresh else ())]
        for path in old:
            path.unlink()
        hosts = [f"n{number}" for number in range(1, plan.shape.nodes + 1)]
        variables = {
            "PATH": f"{self.bin}:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(self.folder),
            "LC_ALL": "C.UTF-8",
            "NOTES": str(self.notes),
            "HOSTS": " ".join(hosts),
            "TASKS": str(plan.shape.nodes * plan.shape.tasks_per_node),
            "TASKS_PER_NODE": str(plan.shape.tasks_per_node),
            "SLURM_JOB_ID": "7",
            "SLURM_JOB_NAME": "train",
            "SLURM_JOB_NODELIST": "n[1-2]",
            "SLURM_SUBMIT_DIR": str(self.work),
            "SLURMD_NODENAME": "n1",
            **env,
        }
        (self.folder / "job.sh").write_text(text, encoding="utf-8")
        done = subprocess.run(
            ["bash", str(self.folder / "job.sh")],
            cwd=self.work, env=variables, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        return Told(
            done.returncode,
            done.stdout + done.stderr,
            _calls(self.notes),
            _variables(self.folder / "notes.env"),
            _text(self.folder / "notes.pwd").removesuffix("\n"),
            (self.folder / "notes.canary").exists(),
        )


def _text(path: Path) -> str:
    return path.read_bytes().decode("utf-8", "surrogateescape") if path.exists() else ""


def _calls(path: Path) -> list[tuple[str, ...]]:
    words = _text(path).split("\0")[:-1]
    calls = []
    while words:
        end = int(words[0]) + 2
        calls.append(tuple(words[1:end]))
        words = words[end:]
    return calls


def _variables(path: Path) -> Mapping[str, str]:
    return dict(item.split("=", 1) for item in _text(path).split("\0")[:-1] if "=" in item)
