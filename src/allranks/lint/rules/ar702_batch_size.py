"""DeepSpeed's batch sizes: missing, or not a product."""

from __future__ import annotations

from collections.abc import Iterator

from allranks.job.deepspeed_config import ACCUMULATION, MICRO, TRAIN
from allranks.lint.config_file import ConfigFile
from allranks.lint.finding import ERROR, NOTE, WARNING, Finding
from allranks.lint.launch_commands import PYTHON
from allranks.lint.related_files import Launched
from allranks.lint.rule import Rule, example

_JOB = example(
    "srun bash -c 'torchrun --nnodes=2 --nproc_per_node=4 --node_rank=$SLURM_NODEID --master_addr=$H "
    "train.py --deepspeed --deepspeed_config ds_config.json'",
    "--nodes=2", "--ntasks-per-node=1", "--gres=gpu:4",
)  # fmt: skip
RULE = Rule(
    id="AR702",
    name="batch-size",
    title="DeepSpeed's batch sizes do not work out",
    why="""DeepSpeed wants train_batch_size = train_micro_batch_size_per_gpu × gradient_accumulation_steps ×
    number of processes, and at least one of the first two. It checks that in every process, after the
    job has started, and stops.""",
    severity=ERROR,
    symptoms=(
        "AssertionError: Check batch related parameters",
        "Either train_batch_size or train_micro_batch_size_per_gpu needs to be provided",
    ),
    bad=_JOB,
    good=_JOB,
    files={
        "ds_config.json": '{"train_batch_size": 32, "train_micro_batch_size_per_gpu": 8, "zero_optimization": {}}'
    },
    good_files={
        "ds_config.json": '{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 8, "zero_optimization": {}}'
    },
)


def check_config(file: ConfigFile, launch: Launched | None) -> Iterator[Finding]:
    """The sizes against each other and against the processes of the launch."""
    settings = file.settings
    if settings is None or "elasticity" in settings:
        return
    train, micro, steps = (settings.get(name) for name in (TRAIN, MICRO, ACCUMULATION))
    own = _by_deepspeed(launch)
    if train is None and micro is None:
        if own:
            yield RULE.at(
                file.source.span(0, 1),
                f"It has neither {TRAIN} nor {MICRO}; DeepSpeed wants one of them.",
                help=f'Add the batch of one process: "{MICRO}": 16',
                severity=ERROR if launch is not None else NOTE,
            )
        return
    world = _world(launch)
    given = [size for size in (train, micro, steps) if size is not None]
    if not world or train is None or any(type(size) is not int or size < 1 for size in given):
        return
    product = (micro or 1) * (steps or 1) * world
    if train == product or (train % product == 0 and (micro is None or steps is None)):
        return
    factors = " × ".join(
        str(each)
        for each in (
            f"{MICRO} {micro}" if micro else "",
            f"{ACCUMULATION} {steps}" if steps else "",
        )
        if each
    )
    yield RULE.at(
        file.key_span(TRAIN),
        f"{TRAIN} {train} is not {factors + ' × ' if factors else 'a multiple of '}{world} processes"
        + (f" = {product}." if factors else "."),
        help=f"Leave {TRAIN} out: DeepSpeed works it out. Or set it to {product}.",
        severity=WARNING if "split" in file.source.text or _splits(launch) else ERROR,
    )


def _by_deepspeed(launch: Launched | None) -> bool:
    """Whether DeepSpeed itself reads the file; transformers fills in what is missing."""
    if launch is None:
        return True
    return any(
        word.start.startswith(("--deepspeed_config", "--deepspeed-config"))
        for word in launch.launch.args
    )


def _world(launch: Launched | None) -> int | None:
    if launch is None:
        return None
    made = launch.job.processes(launch.launch)
    if launch.launch.kind == PYTHON and launch.launch.step is None:
        return None
    return made.expected_total if made.expected_total is not None else made.total


def _splits(launch: Launched | None) -> bool:
    python = launch.python if launch is not None else None
    words = (
        "mpu",
        "PipelineModule",
        "tensor_parallel",
        "sequence_parallel",
        "pipeline_parallel",
        "megatron",
    )
    return python is None or python.mentions(*words)
