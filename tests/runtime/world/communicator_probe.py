"""One rank of several: every collective of `TorchCommunicator`, on the default group and beside it."""

import sys
from pathlib import Path

import torch.distributed as dist

import allranks
from allranks.runtime.world.communicator import TorchCommunicator, find_communicator

here = allranks.init("gloo")


def check(ranks: TorchCommunicator) -> None:
    assert (ranks.rank, ranks.size) == (here.rank, 2)
    first, second = ranks.start_sum([1, ranks.rank]), ranks.start_sum([10.5])
    assert second() == [21.0], "several sums may be under way"
    assert first() == [2.0, 1.0]
    assert ranks.max([ranks.rank, -ranks.rank]) == [1, 0]
    assert ranks.all_gather({"rank": ranks.rank}) == [{"rank": 0}, {"rank": 1}]
    assert ranks.broadcast(f"from {ranks.rank}") == "from 0"
    assert ranks.call_on_rank_zero(lambda: ranks.rank) == 0
    ranks.barrier()


found = find_communicator()
assert isinstance(found, TorchCommunicator)
assert not found.is_deferred
check(found)

dist.get_backend = lambda *group: "nccl"  # as on GPUs: the collectives go to a gloo group beside it
beside = find_communicator()
assert isinstance(beside, TorchCommunicator)
assert beside.is_deferred
check(beside)
(Path(sys.argv[1]) / f"done{here.rank}").touch()
