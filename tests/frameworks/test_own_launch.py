"""Scripts of the older style under torch.distributed.launch: their option, their exit codes."""

from __future__ import annotations

from pathlib import Path

import pytest
from own_scripts_rig import QUIET, TWO_NODES, copied

from command_rig import Allranks

pytestmark = [pytest.mark.slow, pytest.mark.torch, pytest.mark.timeout(400)]

SCRIPT = """\
import argparse, os, sys
import torch, torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int)
{declares}
args = parser.parse_args()  # stops at an option that it does not know
local = getattr(args, "local_rank", int(os.environ["LOCAL_RANK"]))
dist.init_process_group("gloo")
total = torch.ones(1) * (dist.get_rank() + 1)
dist.all_reduce(total)
os.write(1, f"rank {{dist.get_rank()}} local {{local}} sum {{total.item():.0f}}\\n".encode())
dist.destroy_process_group()
if os.environ["RANK"] == os.environ.get("FAILS"):
    sys.exit(3)
"""
STYLES = {
    "underscore": 'parser.add_argument("--local_rank", type=int, required=True)',
    "dash": 'parser.add_argument("--local-rank", type=int, required=True)',
    "neither": "",
}
LAUNCH = ("--launcher", "launch")


def _write(folder: Path, style: str) -> str:
    (folder / "main.py").write_text(SCRIPT.format(declares=STYLES[style]))
    return "main.py"


def _ranks(text: str) -> list[str]:
    return sorted(line.partition("rank ")[2] for line in text.splitlines() if " sum " in line)


@pytest.mark.parametrize(
    ("style", "agent"),
    # without the agent, torch itself passes --local-rank to every script
    [*((style, True) for style in STYLES), ("dash", False)],
)
def test_here(style: str, agent: bool, allranks: Allranks, tmp_path: Path) -> None:
    start = ["run", *LAUNCH, "--nprocs", "2", *([] if agent else ["--no-agent"])]
    done = allranks(*start, _write(tmp_path, style), "--batch_size", "8", timeout=300, **QUIET)
    assert done.returncode == 0, done.stdout + done.stderr
    assert _ranks(done.stdout) == ["0 local 0 sum 3", "1 local 1 sum 3"]


@pytest.mark.slurm
@pytest.mark.parametrize("style", STYLES)
def test_two_nodes(style: str, slurm: Allranks, tmp_path: Path) -> None:
    start = ["submit", *LAUNCH, *TWO_NODES, "--nprocs", "4"]
    done = slurm(*start, _write(tmp_path, style), "--batch_size", "8", timeout=300, **QUIET)
    assert done.returncode == 0, done.stdout + done.stderr
    expected = ["0 local 0 sum 10", "1 local 1 sum 10", "2 local 0 sum 10", "3 local 1 sum 10"]
    assert _ranks(done.stdout) == expected


def test_an_option_in_a_module_beside_the_script(allranks: Allranks, tmp_path: Path) -> None:
    (tmp_path / "options.py").write_text(
        "import argparse\nparser = argparse.ArgumentParser()\n"
        'parser.add_argument("--local_rank", type=int, required=True)\n'
    )
    (tmp_path / "main.py").write_text(
        "import torch\nfrom options import parser\nprint('local', parser.parse_args().local_rank)\n"
    )
    done = allranks("run", *LAUNCH, "--nprocs", "2", "main.py", timeout=300, **QUIET)
    assert done.returncode == 0, done.stderr
    assert "local 1" in done.stdout


@pytest.mark.slurm
@pytest.mark.parametrize("rank", ["0", "3"])
def test_the_exit_code_of_one_rank_of_two_nodes(rank: str, slurm: Allranks, tmp_path: Path) -> None:
    start = ["submit", *LAUNCH, *TWO_NODES, "--nprocs", "4", "--env", f"FAILS={rank}"]
    done = slurm(*start, _write(tmp_path, "underscore"), "--batch_size", "8", timeout=300, **QUIET)
    assert done.returncode == 3, done.stdout + done.stderr
    assert f"first error: rank {rank} " in done.stdout + done.stderr


TASK = """\
#!/bin/bash
readonly MASTER_ADDR_JOB=${1:-$MASTER_ADDR}
readonly MASTER_PORT_JOB=${2:-$MASTER_PORT}
export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK
python \\
   -m torch.distributed.launch \\
      --nproc_per_node=2 \\
      --nnodes=$SLURM_NTASKS \\
      --node_rank=$SLURM_NODEID \\
      --master_addr=$MASTER_ADDR_JOB \\
      --master_port=$MASTER_PORT_JOB \\
      main.py --batch_size 8 &
wait $!
"""


@pytest.mark.slurm
@pytest.mark.parametrize("fails", ["", "2"])
def test_a_worker_script_per_node(fails: str, slurm: Allranks, tmp_path: Path) -> None:
    _write(tmp_path, "dash")
    task = tmp_path / "task.sh"
    task.write_text(TASK)
    task.chmod(0o755)
    start = ["submit", "--launcher", "python", *TWO_NODES, "--env", f"FAILS={fails}", "task.sh"]
    done = slurm(*start, timeout=300, **QUIET)
    assert (done.returncode != 0) is bool(fails), done.stdout + done.stderr
    expected = ["0 local 0 sum 10", "1 local 1 sum 10", "2 local 0 sum 10", "3 local 1 sum 10"]
    told = _ranks(done.stdout)
    assert expected[2] in told if fails else told == expected


def test_the_example(allranks: Allranks, tmp_path: Path) -> None:
    script = copied("local_rank_main.py", tmp_path)
    done = allranks(
        "run", *LAUNCH, "--nprocs", "2", script, "--batch_size", "16", timeout=300, **QUIET
    )
    assert done.returncode == 0, done.stderr
    assert "rank 1 (local rank 1 on" in done.stdout
