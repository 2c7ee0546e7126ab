"""Several nodes are asked for, and everything runs on the first."""

from __future__ import annotations

import re
from collections.abc import Iterator

from allranks.lint.finding import ERROR, WARNING, Finding
from allranks.lint.job_script import JobScript
from allranks.lint.launch_commands import DEEPSPEED, HOROVODRUN, OTHER, PYTHON, Launch
from allranks.lint.rule import Rule
from allranks.lint.rules.rule_helpers import starts_elsewhere

_HEAD = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n#SBATCH --gres=gpu:4\n"
_RUN = "torchrun --nnodes=2 --nproc_per_node=4 --rdzv_backend=c10d --rdzv_endpoint=$head:29500 train.py\n"
RULE = Rule(
    id="AR103",
    name="nodes-without-srun",
    title="Nothing runs on the other nodes",
    why="""A batch script runs on the first node of the job only. What it starts without srun, mpirun or
    a launcher that goes to the other nodes by itself stays there: the other nodes idle, and a training
    that expects them waits until the time limit.""",
    severity=ERROR,
    symptoms=("hangs at init", "only one node is used", "GPUs idle"),
    bad=_HEAD + "head=$(hostname)\n" + _RUN,
    good=_HEAD + "head=$(hostname)\nsrun " + _RUN,
    clean=(
        _HEAD
        + "for h in $(scontrol show hostnames); do ssh $h torchrun --nnodes=2 train.py & done\nwait\n",
        _HEAD + "deepspeed --hostfile=hosts train.py\n",
        _HEAD + "python preprocess.py\nsrun python train.py\n",
        _HEAD + "bash run.sh\n",
        _HEAD + "horovodrun -np 8 -H a:4,b:4 python train.py\n",
        _HEAD + "python write_hosts.py\ndeepspeed --hostfile hosts train.py\n",
    ),
)


def check(job: JobScript) -> Iterator[Finding]:
    """Launches in the batch shell of a job with several nodes."""
    if not job.allocation.several_nodes or starts_elsewhere(job):
        return
    started = [each for each in job.launches if each.step is not None]
    if started or (job.trace.unread and _runs_unread(job)):
        return
    if any(each.kind in (DEEPSPEED, HOROVODRUN) and _goes_itself(each) for each in job.launches):
        return  # what stands beside it prepares something
    for launch in job.launches:
        if launch.kind == OTHER or _goes_itself(launch):
            continue
        if launch.kind == DEEPSPEED and launch.options.has("num-nodes", "launcher"):
            yield from _without_hosts(job, launch)
            return
        nodes = job.allocation.text("nodes")
        expected = job.processes(launch).expected_nodes
        waits = expected is not None and expected > 1
        yield RULE.at(
            launch.span,
            f"The job has {nodes} nodes, but {launch.written} starts on the first one only. "
            + (
                f"It waits for {expected} nodes and never begins."
                if waits
                else "The others stay idle."
            ),
            help=f"Write srun before it: srun {launch.span.text.split()[0]} …, with one task per "
            + ("GPU." if launch.kind == "python" else "node."),
            severity=ERROR if waits and launch.certain else WARNING,
        )
        return


def _without_hosts(job: JobScript, launch: Launch) -> Iterator[Finding]:
    """DeepSpeed's launcher knows other nodes from a host file only."""
    nodes = job.processes(launch).expected_nodes
    if "/job/hostfile" in job.source.text or nodes is None or nodes < 2:
        return
    yield RULE.at(
        launch.span,
        f"deepspeed is to use {nodes} nodes, but finds them in a host file only, and none is given: "
        "it stops, unless /job/hostfile is there.",
        help="Write the nodes of the job into a file and give it with --hostfile, or start torchrun by srun.",
        severity=WARNING,
    )


def _goes_itself(launch: Launch) -> bool:
    if launch.kind == PYTHON and launch.script is not None:
        return bool(
            re.search(
                r"launch|deepy|submit|deploy|cluster|slurm|ray|dask|prepare|download",
                launch.script.shown,
                re.I,
            )
        )
    if launch.kind == DEEPSPEED:
        return launch.options.has("hostfile", "H", "include", "i", "no-ssh")
    hosts = launch.options.has("H", "hosts", "hostfile", "host-file", "host-discovery-script")
    return launch.kind == HOROVODRUN and hosts


def _runs_unread(job: JobScript) -> bool:
    """Whether a script that we could not read is run: it may hold the srun."""
    unread = {id(word) for word in job.trace.unread}
    return any(
        id(word) in unread
        for call in job.calls
        for word in call.words
        if call.name not in (".", "source")
    )
