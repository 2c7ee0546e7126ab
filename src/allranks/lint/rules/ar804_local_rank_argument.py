"""The --local_rank argument, which only some launchers pass."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from allranks.lint.finding import ERROR, WARNING, Finding
from allranks.lint.launch_commands import DEEPSPEED, LAUNCH, TORCHRUN
from allranks.lint.python_file import PythonFile, constant
from allranks.lint.related_files import Launched
from allranks.lint.rule import Rule, example

_JOB = example("torchrun --standalone --nproc_per_node=4 train.py", "--nodes=1", "--gres=gpu:4")
_PARSER = "import argparse\np = argparse.ArgumentParser()\n{}args = p.parse_args()\n"
RULE = Rule(
    id="AR804",
    name="local-rank-argument",
    title="The launcher and the script do not agree about --local_rank",
    why="""torchrun gives the local rank in the environment (LOCAL_RANK) and passes no argument.
    torch.distributed.launch passes --local-rank since PyTorch 2.0 and --local_rank before, deepspeed
    passes --local_rank. A script that waits for the argument under torchrun keeps its default in every
    process; one that does not know it stops with "unrecognized arguments".""",
    severity=ERROR,
    symptoms=(
        "unrecognized arguments: --local-rank",
        "all processes use the same GPU",
        "CUDA out of memory",
    ),
    bad=_JOB,
    good=_JOB,
    files={
        "train.py": _PARSER.format("p.add_argument('--local_rank', type=int, default=0)\n")
        + "torch.cuda.set_device(args.local_rank)\n"
    },
    good_files={"train.py": "import os\ntorch.cuda.set_device(int(os.environ['LOCAL_RANK']))\n"},
)


def check_python(file: PythonFile, launch: Launched | None) -> Iterator[Finding]:
    """Arguments of the script's parser against what its launcher passes."""
    if launch is None or file.tree is None:
        return
    kind, options = launch.launch.kind, launch.launch.options
    spelled = _spellings(file)
    used = file.mentions("args.local_rank", "opt.local_rank", "FLAGS.local_rank", "opts.local_rank")
    strict = any(file.called("parse_args")) and not any(file.called("parse_known_args"))
    given = any(
        word.start.lstrip("-").replace("-", "_").startswith("local_rank")
        for word in launch.launch.args
    )
    if kind == TORCHRUN and spelled and used and not file.mentions("LOCAL_RANK") and not given:
        call = next(iter(spelled.values()))
        yield RULE.at(
            file.span(call),
            "torchrun passes no such argument: it keeps its default, the same in every process.",
            help="Read it from the environment: int(os.environ['LOCAL_RANK'])",
            severity=WARNING if file.mentions("deepspeed") else ERROR,
        )
    elif (
        kind == LAUNCH and not options.has("use-env") and strict and file.mentions("ArgumentParser")
    ):
        if not spelled and not file.mentions("local_rank", "HfArgumentParser"):
            yield _unknown(file, launch, "torch.distributed.launch", "--local-rank")
        elif spelled and "--local-rank" not in spelled and not file.mentions("allow_abbrev"):
            yield RULE.at(
                file.span(next(iter(spelled.values()))),
                "Since PyTorch 2.0 torch.distributed.launch passes --local-rank, with a dash; this has no dash.",
                help="Add both: add_argument('--local-rank', '--local_rank', …), or use torchrun and LOCAL_RANK.",
                severity=WARNING,
            )
    elif kind == DEEPSPEED and strict and not options.has("no-local-rank") and not spelled:
        known = ("local_rank", "HfArgumentParser", "TrainingArguments")
        if file.mentions("ArgumentParser") and not file.mentions(*known):
            yield _unknown(file, launch, "deepspeed", "--local_rank")


def _unknown(file: PythonFile, launch: Launched, who: str, argument: str) -> Finding:
    return RULE.at(
        launch.launch.span,
        f"{who} passes {argument} to {file.source.name}, whose parser does not know it: the script stops.",
        help=f"Add parser.add_argument('{argument}', type=int, default=-1), or use torchrun.",
        severity=WARNING,
    )


def _spellings(file: PythonFile) -> dict[str, ast.Call]:
    found = {}
    for call in file.called("add_argument"):
        for each in call.args:
            text = constant(each)
            if text in ("--local_rank", "--local-rank"):
                found[str(text)] = call
    return found
