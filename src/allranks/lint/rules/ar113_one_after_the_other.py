"""Nodes started one after the other wait for those that are not started."""

from __future__ import annotations

from collections.abc import Iterator

from allranks.lint.finding import ERROR, WARNING, Finding
from allranks.lint.job_script import JobScript
from allranks.lint.launch_commands import PER_NODE
from allranks.lint.rule import Rule, example

_LOOP = """nodes=( $(scontrol show hostnames) )
for i in 0 1; do
  srun -N1 -n1 -w ${{nodes[$i]}} torchrun --nnodes=2 --node_rank=$i --master_addr=${{nodes[0]}} train.py{}
done
wait"""
RULE = Rule(
    id="AR113",
    name="one-after-the-other",
    title="The second node is started when the first has ended",
    why="""A command without & ends before the loop goes on. The first node waits for the second, and the
    second is never started: the job stands until the time limit.""",
    severity=ERROR,
    symptoms=("hangs at init", "only one node is used"),
    bad=example(_LOOP.format(""), "--nodes=2", "--gres=gpu:4"),
    good=example(_LOOP.format(" &"), "--nodes=2", "--gres=gpu:4"),
    clean=(
        example(
            "for lr in 1 2; do\nsrun torchrun --nnodes=2 --rdzv_endpoint=$h:1 train.py --lr $lr\ndone",
            "--nodes=2",
        ),
    ),
)


def check(job: JobScript) -> Iterator[Finding]:
    """srun or ssh to one node, in a loop, in the foreground, of a launcher that expects several."""
    for launch in job.launches:
        call = launch.call
        if launch.kind not in PER_NODE or not call.loop or call.background:
            continue
        expected = job.processes(launch).expected_nodes
        layers = call.all_layers
        single = any(
            layer.kind == "remote"
            or (layer.kind == "srun" and layer.options.has("nodelist", "relative"))
            for layer in layers
        )
        expects = (expected is None and launch.options.has("nnodes", "num-machines")) or (
            expected or 1
        ) > 1
        if not single or not expects:
            continue
        yield RULE.at(
            call.span,
            f"{launch.written} on one node waits for the others, but the loop starts them only after it ends.",
            help="Put it in the background with & and write wait after the loop, or use one srun for all.",
            severity=ERROR if launch.certain and (expected or 0) > 1 else WARNING,
        )
