"""A sampler that shuffles the same way in every epoch."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from allranks.lint.finding import WARNING, Finding
from allranks.lint.python_file import PythonFile, constant, keyword
from allranks.lint.related_files import Launched
from allranks.lint.rule import Rule

_HEAD = "from torch.utils.data import DataLoader, DistributedSampler\nsampler = DistributedSampler(data)\n"
RULE = Rule(
    id="AR803",
    name="set-epoch",
    title="The order of the samples is the same in every epoch",
    why="""A DistributedSampler shuffles by its epoch number, and that stays 0 unless set_epoch is called. All
    epochs then see the samples in the same order, and each rank the same part of them, for the whole
    training. Nothing says so; the model is only worse.""",
    symptoms=("the model is worse on several GPUs than on one",),
    bad=_HEAD + "for epoch in range(10):\n    train(DataLoader(data, sampler=sampler))\n",
    good=_HEAD
    + "for epoch in range(10):\n    sampler.set_epoch(epoch)\n    train(DataLoader(data, sampler=sampler))\n",
    clean=(
        _HEAD.replace("(data)", "(data, shuffle=False)")
        + "for epoch in range(10):\n    evaluate()\n",
        "import lightning\n" + _HEAD + "for epoch in range(2):\n    pass\n",
        _HEAD + "train(DataLoader(data, sampler=sampler))\n",
    ),
    example="train.py",
)


def check_python(file: PythonFile, launch: Launched | None) -> Iterator[Finding]:
    """Samplers of a script with epochs and without ``set_epoch``."""
    if file.mentions("set_epoch", "lightning", "accelerate"):
        return
    if not any(isinstance(node, ast.For) and _epochs(node) for node in file.nodes):
        return
    for call in file.called("DistributedSampler"):
        if constant(keyword(call, "shuffle")) is False:
            continue
        yield RULE.at(
            file.span(call),
            "set_epoch is never called on it, so every epoch has the same order.",
            help="Write sampler.set_epoch(epoch) at the start of each epoch.",
            severity=WARNING,
        )
        return


def _epochs(node: ast.For) -> bool:
    return isinstance(node.target, ast.Name) and "epoch" in node.target.id.lower()
