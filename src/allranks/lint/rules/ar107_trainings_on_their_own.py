"""Nodes that do not know of each other train the same model several times."""

from __future__ import annotations

from collections.abc import Iterator

from allranks.lint.finding import ERROR, WARNING, Finding
from allranks.lint.job_script import JobScript
from allranks.lint.launch_commands import ACCELERATE, DEEPSPEED, LAUNCH, TORCHRUN, Launch
from allranks.lint.rule import Rule, example
from allranks.lint.rules.rule_helpers import alone, launches_under, told_elsewhere

RULE = Rule(
    id="AR107",
    name="trainings-on-their-own",
    title="The nodes do not find each other",
    why="""A launcher on each node needs the number of nodes and the rendezvous address: --nnodes with
    --rdzv_endpoint or --master_addr, --num_machines with --main_process_ip. With --standalone, or without
    them, each node trains the whole model for itself over the same files; with a number of nodes but no
    address each waits for connections to itself.""",
    severity=ERROR,
    symptoms=("hangs at init", "the same training runs once per node", "the world size is too small"),
    bad=example("srun torchrun --nproc_per_node=4 train.py", "--nodes=2", "--ntasks-per-node=1", "--gres=gpu:4"),
    good=example(
        "head=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)\n"
        "srun torchrun --nnodes=2 --nproc_per_node=4 --rdzv_backend=c10d --rdzv_endpoint=$head:29500 train.py",
        "--nodes=2", "--ntasks-per-node=1", "--gres=gpu:4",
    ),
    clean=(
        example("srun accelerate launch --config_file c.yaml train.py", "--nodes=2", "--ntasks-per-node=1"),
        example("srun torchrun $ARGS train.py", "--nodes=2", "--ntasks-per-node=1"),
        example("export PET_NNODES=2\nsrun torchrun --nproc_per_node=4 train.py", "--nodes=2"),
        example("srun torchrun --standalone --nproc_per_node=4 train.py", "--nodes=1"),
        example("srun torchrun --nnodes=2 --nproc_per_node=4 \\ \n--rdzv_endpoint=$h:29500 train.py", "--nodes=2"),
    ),
)  # fmt: skip


def check(job: JobScript) -> Iterator[Finding]:
    """Launchers on several nodes without a number of nodes, or without an address."""
    for launch in launches_under(job, "srun"):
        nodes = job.shape(launch).nodes
        if nodes is None or nodes < 2 or not alone(job, launch) or told_elsewhere(launch):
            continue
        if launch.script is None:
            continue  # cut off by a blank behind a backslash: a rule of its own
        if launch.kind in (TORCHRUN, LAUNCH, ACCELERATE):
            yield from _per_node(job, launch, nodes)
        elif launch.kind == DEEPSPEED:
            yield from _deepspeed(launch, nodes)


def _per_node(job: JobScript, launch: Launch, nodes: int) -> Iterator[Finding]:
    expected = job.processes(launch).expected_nodes
    number, address = (
        ("--num_machines", "--main_process_ip")
        if launch.kind == ACCELERATE
        else ("--nnodes", "--rdzv_endpoint")
    )
    if expected == 1 or launch.options.has("standalone"):
        if expected is not None and expected > 1:
            end = f"--standalone keeps each copy for itself, and each waits for {expected} nodes."
        elif launch.options.has("rdzv-endpoint") and not launch.options.has("standalone"):
            end = "each copy expects one node: one of them trains, or each does on its own."
        else:
            end = f"each copy expects one node: {nodes} trainings on their own."
        yield RULE.at(
            launch.span,
            f"{launch.written} runs on {nodes} nodes, but {end}",
            help=f"Give {number}=$SLURM_NNODES and {address} with the first node's name.",
            severity=ERROR if launch.certain else WARNING,
        )
    elif expected is not None and _ignored_address(launch):
        yield RULE.at(
            launch.span,
            "With --rdzv_backend=c10d torchrun does not look at --master_addr: without --rdzv_endpoint each "
            "node meets at its own localhost.",
            help="Write --rdzv_endpoint=HOST:PORT in place of --master_addr and --master_port.",
            severity=ERROR if launch.certain else WARNING,
        )
    elif expected is not None and not launch.options.has(
        "rdzv-endpoint", "master-addr", "main-process-ip", "rdzv-conf"
    ):
        yield RULE.at(
            launch.span,
            f"{launch.written} expects {expected} nodes and no address to meet at is given"
            + (" (it does not read MASTER_ADDR)" if "MASTER_ADDR" in launch.call.env else "")
            + ": each node waits for itself.",
            help=f"Add {address}: the name of the first node"
            + (":29500." if launch.kind != ACCELERATE else "."),
            severity=ERROR if launch.certain else WARNING,
        )


def _ignored_address(launch: Launch) -> bool:
    backend = launch.options.text("rdzv-backend") or "static"
    given = launch.options.has("rdzv-endpoint", "rdzv-conf")
    return (
        launch.kind != ACCELERATE
        and backend != "static"
        and not given
        and launch.options.has("master-addr")
    )


def _deepspeed(launch: Launch, nodes: int) -> Iterator[Finding]:
    if launch.options.has("hostfile", "H", "launcher", "num-nodes", "no-ssh"):
        return
    yield RULE.at(
        launch.span,
        f"srun starts the deepspeed launcher on {nodes} nodes, and each sees its own node only: "
        f"{nodes} trainings on their own.",
        help="Start one deepspeed without srun and give it --hostfile, or use srun with torchrun.",
        severity=ERROR if launch.certain else WARNING,
    )
