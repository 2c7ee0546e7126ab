"""ZeRO without an optimizer."""

from __future__ import annotations

from collections.abc import Iterator

from allranks.lint.config_file import ConfigFile
from allranks.lint.finding import ERROR, Finding
from allranks.lint.python_file import keyword
from allranks.lint.related_files import Launched
from allranks.lint.rule import Rule, example

_JOB = example(
    "deepspeed --num_gpus=4 train.py --deepspeed_config ds_config.json", "--nodes=1", "--gres=gpu:4"
)
_CALL = "import deepspeed\nengine, *_ = deepspeed.initialize(args=args, model=m, model_parameters=m.parameters())\n"
RULE = Rule(
    id="AR703",
    name="zero-without-optimizer",
    title="ZeRO is on and there is no optimizer",
    why="""With a ZeRO stage DeepSpeed must own the optimizer: from the settings file, or as the argument
    optimizer of deepspeed.initialize. With neither it stops: "zero stage 1 requires an optimizer".""",
    severity=ERROR,
    symptoms=("AssertionError: zero stage 1 requires an optimizer",),
    bad=_JOB,
    good=_JOB,
    files={
        "train.py": _CALL,
        "ds_config.json": '{"train_batch_size": 32, "zero_optimization": {"stage": 1}}',
    },
    good_files={
        "ds_config.json": '{"train_batch_size": 32, "zero_optimization": {"stage": 1}, "optimizer": {"type": "Adam"}}'
    },
)


def check_config(file: ConfigFile, launch: Launched | None) -> Iterator[Finding]:
    """The stage, and who gives the optimizer."""
    settings, python = file.settings, launch.python if launch is not None else None
    if settings is None or python is None or "optimizer" in settings:
        return
    zero = settings.get("zero_optimization")
    stage = zero.get("stage", 0) if isinstance(zero, dict) else 0
    if not isinstance(stage, int) or stage < 1:
        return
    for call in python.called("deepspeed.initialize"):
        positional = len(call.args) > 2
        if (
            positional
            or keyword(call, "optimizer") is not None
            or any(k.arg is None for k in call.keywords)
        ):
            continue
        yield RULE.at(
            file.key_span("zero_optimization"),
            f"Stage {stage} needs an optimizer, and neither this file nor deepspeed.initialize gives one.",
            help='Add "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}',
            related=[python.span(call)],
        )
        return
