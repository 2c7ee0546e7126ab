"""accelerate's settings against the job."""

from __future__ import annotations

from collections.abc import Iterator

from allranks.lint.config_file import ConfigFile
from allranks.lint.finding import ERROR, WARNING, Finding
from allranks.lint.related_files import Launched
from allranks.lint.rule import Rule, example

_JOB = example(
    "srun accelerate launch --config_file config.yaml train.py",
    "--nodes=2",
    "--ntasks-per-node=1",
    "--gres=gpu:4",
)
_FILE = "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_GPU\nmachine_rank: 0\n"
RULE = Rule(
    id="AR704",
    name="accelerate-config",
    title="accelerate's settings do not fit the job",
    why="""The file was written on one machine, for its number of nodes and its own rank. On several nodes
    machine_rank must differ, so it cannot come from a file that all share; num_machines and num_processes
    must be those of the job. accelerate takes what is there without a question.""",
    severity=ERROR,
    symptoms=("hangs at init", "the same training runs once per node", "all ranks are rank 0"),
    bad=_JOB,
    good=_JOB.replace(
        "srun accelerate launch", "srun bash -c 'accelerate launch --machine_rank $SLURM_NODEID"
    ).replace("train.py", "train.py'"),
    files={"config.yaml": _FILE + "num_machines: 2\nnum_processes: 8\n"},
)


def check_config(file: ConfigFile, launch: Launched | None) -> Iterator[Finding]:
    """Sizes and ranks that the command does not overrule."""
    config = file.accelerate
    if config is None or launch is None or launch.launch.kind != "accelerate":
        return
    options, job = launch.launch.options, launch.job
    nodes = job.shape(launch.launch).nodes
    if nodes is None:
        return
    machines = options.text("num-machines") or config.values.get("num_machines", "1")
    if not options.has("num-machines") and machines.isdecimal() and int(machines) != nodes:
        yield RULE.at(
            file.key_span("num_machines"),
            f"num_machines is {machines}, but accelerate starts on {nodes} node(s).",
            help=f"Write num_machines: {nodes}, or give --num_machines=$SLURM_NNODES.",
            severity=ERROR if launch.launch.certain else WARNING,
        )
    elif nodes > 1 and not options.has("machine-rank") and not config.is_true("rdzv_backend"):
        backend = options.text("rdzv-backend") or config.values.get("rdzv_backend", "static")
        if backend == "static" or config.is_true("same_network"):
            yield RULE.at(
                file.key_span("machine_rank"),
                f"machine_rank is {config.values.get('machine_rank', '0')} for all {nodes} nodes: they never meet.",
                help="Give it in each task: srun bash -c 'accelerate launch --machine_rank $SLURM_NODEID …'",
                severity=ERROR if launch.launch.certain else WARNING,
            )
    backend = options.text("rdzv-backend") or config.values.get("rdzv_backend", "static")
    if nodes > 1 and backend == "c10d" and config.is_true("same_network"):
        yield RULE.at(
            file.key_span("same_network"),
            "With same_network: true accelerate uses the machine rank even with c10d.",
            help="Write same_network: false.",
            severity=WARNING,
        )
