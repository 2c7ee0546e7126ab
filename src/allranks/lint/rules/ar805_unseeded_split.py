"""A random split that differs from rank to rank."""

from __future__ import annotations

from collections.abc import Iterator

from allranks.lint.finding import WARNING, Finding
from allranks.lint.python_file import PythonFile, keyword
from allranks.lint.related_files import Launched
from allranks.lint.rule import Rule

_HEAD = "import torch\nfrom torch.utils.data import random_split\ntorch.distributed.init_process_group()\n"
RULE = Rule(
    id="AR805",
    name="unseeded-split",
    title="Each rank splits the data differently",
    why="""random_split draws from the global generator, which starts differently in every process. Each rank
    then has another training and validation part: what one rank validates on, others have trained on, and
    the accuracy looks better than it is.""",
    symptoms=("validation is better than on one GPU", "results differ from run to run"),
    bad=_HEAD + "train, test = random_split(data, [0.8, 0.2])\n",
    good=_HEAD
    + "train, test = random_split(data, [0.8, 0.2], generator=torch.Generator().manual_seed(0))\n",
    clean=(
        _HEAD + "torch.manual_seed(0)\ntrain, test = random_split(data, [0.8, 0.2])\n",
        "from torch.utils.data import random_split\ntrain, test = random_split(data, [0.8, 0.2])\n",
    ),
    example="train.py",
)
_SEEDS = (
    "manual_seed",
    "seed_everything",
    "set_seed",
    "random.seed",
    "seed_all",
    "fix_seed",
    "setup_seed",
)


def check_python(file: PythonFile, launch: Launched | None) -> Iterator[Finding]:
    """Splits without a generator, in scripts of several ranks that set no seed."""
    ranks = file.mentions(
        "init_process_group", "init_distributed", "DistributedDataParallel", "hvd.init"
    )
    if not ranks or file.mentions(*_SEEDS):
        return
    for call in file.called("random_split", "train_test_split"):
        if keyword(call, "generator") is not None or keyword(call, "random_state") is not None:
            continue
        if len(call.args) > 2 and not any(file.called("train_test_split")):
            continue
        yield RULE.at(
            file.span(call),
            "Nothing sets a seed, so every rank splits the data in another way.",
            help="Give it generator=torch.Generator().manual_seed(0).",
            severity=WARNING,
        )
        return
