"""CUDA_VISIBLE_DEVICES is Slurm's to set."""

from __future__ import annotations

from collections.abc import Iterator

from allranks.lint.command_calls import BATCH
from allranks.lint.finding import NOTE, WARNING, Finding
from allranks.lint.job_script import JobScript
from allranks.lint.rule import Rule, example
from allranks.lint.rules.rule_helpers import ranks_of_batch
from allranks.lint.shell.model import Literal, Word

RULE = Rule(
    id="AR303",
    name="visible-devices",
    title="CUDA_VISIBLE_DEVICES is overwritten",
    why="""Slurm gives each job its GPUs and sets CUDA_VISIBLE_DEVICES to them. A list of your own may name
    GPUs that the job does not have, or that belong to another job where the cluster does not shut them
    off; a shorter one leaves GPUs idle.""",
    symptoms=("no CUDA-capable device is detected", "invalid device ordinal", "GPUs idle"),
    bad=example(
        "export CUDA_VISIBLE_DEVICES=0,1,2,3\nsrun python train.py",
        "--ntasks-per-node=2",
        "--gres=gpu:2",
    ),
    good=example("srun python train.py", "--ntasks-per-node=2", "--gres=gpu:2"),
    clean=(
        example(
            "srun bash -c 'CUDA_VISIBLE_DEVICES=$SLURM_LOCALID python train.py'", "--gres=gpu:2"
        ),
        example("echo $CUDA_VISIBLE_DEVICES\nsrun python train.py", "--gres=gpu:2"),
        example(
            "CUDA_VISIBLE_DEVICES=0 python a.py &\nCUDA_VISIBLE_DEVICES=1 python b.py &\nwait",
            "--gres=gpu:2",
        ),
    ),
)
_NAMES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")


def check(job: JobScript) -> Iterator[Finding]:
    """Lists of numbers in the text, for the whole job."""
    if not job.is_batch:
        return
    gpus = job.allocation.gpus_per_node
    for call, item in job.assigned(*_NAMES):
        if call.shell.kind == BATCH and any(True for _ in ranks_of_batch(item.value)):
            yield RULE.at(
                item.span,
                "In the batch shell this is 0, so every process of the job sees GPU 0 of its node only.",
                help="Set it in each task: srun bash -c 'CUDA_VISIBLE_DEVICES=$SLURM_LOCALID …', or leave it to Slurm.",
                severity=WARNING,
            )
            return
        listed = _list(item.value)
        alone = not call.words or call.name in ("export", "declare")
        if listed is None or not alone or call.loop or not call.certain:
            continue
        same = gpus is not None and listed == [str(number) for number in range(gpus)]
        if same or gpus is None or not gpus:
            text, severity = (
                "Slurm sets it already; with other GPUs than these the list is wrong.",
                NOTE,
            )
        elif len(listed) > gpus:
            text, severity = (
                f"It names {len(listed)} GPUs, but the job has {gpus} per node.",
                WARNING,
            )
        elif not listed:
            text, severity = "It is empty: no GPU is seen, though the job asks for some.", WARNING
        else:
            text, severity = (
                f"The job has {gpus} GPUs per node, this uses {len(listed)} of them.",
                WARNING,
            )
        yield RULE.at(item.span, text, help="Remove the line.", severity=severity)
        return


def _list(word: Word | None) -> list[str] | None:
    if word is None:
        return []
    if not all(isinstance(part, Literal) for part in word.parts):
        return None
    text = (word.text or "").strip()
    numbers = [each.strip() for each in text.split(",")] if text else []
    return numbers if all(each.isdecimal() for each in numbers) else None
