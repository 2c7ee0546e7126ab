"""Every rank trains on all the data."""

from __future__ import annotations

from collections.abc import Iterator

from allranks.lint.finding import WARNING, Finding
from allranks.lint.python_file import PythonFile, keyword
from allranks.lint.related_files import Launched
from allranks.lint.rule import Rule

_HEAD = "import torch.distributed as dist\nfrom torch.utils.data import DataLoader, DistributedSampler\n"
_TAIL = "dist.init_process_group()\nmodel = DistributedDataParallel(net)\n"
_DDP = "from torch.nn.parallel import DistributedDataParallel\n"
RULE = Rule(
    id="AR802",
    name="same-data-on-every-rank",
    title="Every rank trains on all the data",
    why="""A DataLoader without a DistributedSampler gives the whole data set to each rank. N GPUs then do the
    same work N times: an epoch takes as long as on one GPU, and the gradient is of samples that were
    seen N times.""",
    symptoms=("adding GPUs makes an epoch no shorter", "the number of steps does not shrink with more GPUs"),
    bad="import torch.distributed as dist\nfrom torch.utils.data import DataLoader\n" + _DDP + _TAIL
    + "loader = DataLoader(data, batch_size=32, shuffle=True)\n",
    good=_HEAD + _DDP + _TAIL + "loader = DataLoader(data, batch_size=32, sampler=DistributedSampler(data))\n"
    "for epoch in range(3):\n    loader.sampler.set_epoch(epoch)\n",
    clean=(
        "from torch.utils.data import DataLoader\nloader = DataLoader(data, shuffle=True)\n",
        "import accelerate\n" + _DDP + _TAIL + "from torch.utils.data import DataLoader\nx = DataLoader(d)\n",
        _DDP + _TAIL + "from torch.utils.data import DataLoader\nx = DataLoader(Stream(), batch_size=None)\n",
    ),
    example="train.py",
)  # fmt: skip
_OTHERS = (
    "DistributedSampler", "Sampler(", "IterableDataset", "webdataset", "accelerate", "lightning", "transformers",
    "ffcv", "horovod", "dali", "split_dataset_by_node", "allranks", "set_epoch", "get_world_size()", "num_replicas",
    "streaming",
)  # fmt: skip


def check_python(file: PythonFile, launch: Launched | None) -> Iterator[Finding]:
    """DataLoaders of a script that wraps its model for several ranks."""
    joined = any(file.called("DistributedDataParallel", "FullyShardedDataParallel"))
    if not joined or file.mentions(*_OTHERS):
        return
    for call in file.called("DataLoader"):
        names = {each.arg for each in call.keywords}
        if (
            None in names
            or names & {"sampler", "batch_sampler"}
            or keyword(call, "shuffle") is None
        ):
            continue
        yield RULE.at(
            file.span(call),
            "This DataLoader has no DistributedSampler: each rank goes through all samples.",
            help="Give it sampler=DistributedSampler(dataset) and remove shuffle; call "
            "sampler.set_epoch(epoch) in every epoch.",
            severity=WARNING,
        )
        return
