"""What torch builds on a process group, over MPI: DDP and its options, FSDP, DTensor, ZeRO, checkpoints.

Every model is compared with one that a single process trains on the whole batch. Started by the tests; the
group is started as a user's own script does it, with one import of ours.
"""

from __future__ import annotations

import copy
import sys
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from allranks import mpi  # noqa: F401  makes "mpi" known to torch

warnings.simplefilter("ignore")
torch.set_num_threads(1)
dist.init_process_group("mpi")
me, size = dist.get_rank(), dist.get_world_size()
STEPS, ROWS = 4, 4


def model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1)
    )


def batches():
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(ROWS * size, 8, generator=generator) for _ in range(STEPS)]


def loss_of(net, rows):
    return (net(rows).squeeze(-1) - rows.sum(1)).pow(2).mean()


def alone(net, optimizer=torch.optim.SGD):
    step = optimizer(net.parameters(), lr=0.01)
    for rows in batches():
        step.zero_grad()
        loss_of(net, rows).backward()
        step.step()
    return net


def mine(rows):
    return rows[me * ROWS : (me + 1) * ROWS]


def train(net, step, *, parts=1):
    for rows in batches():
        step.zero_grad()
        own = mine(rows).chunk(parts)
        for part in own[:-1]:
            with net.no_sync():
                (loss_of(net, part) / parts).backward()
        (loss_of(net, own[-1]) / parts).backward()
        step.step()


def same(one, other, tolerance=1e-5):
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a.detach(), b.detach(), rtol=tolerance, atol=tolerance)


def on_all_ranks(tensors):
    for tensor in tensors:
        found = [torch.empty_like(tensor) for _ in range(size)]
        dist.all_gather(found, tensor.detach())
        assert all(torch.equal(found[0], each) for each in found)


def ddp():
    expected = list(alone(model()).parameters())
    for options in (
        {},
        {"bucket_cap_mb": 0.001},
        {"static_graph": True},
        {"find_unused_parameters": True},
        {"gradient_as_bucket_view": True},
    ):
        net = DistributedDataParallel(model(), **options)
        train(net, torch.optim.SGD(net.parameters(), lr=0.01), parts=2 if not options else 1)
        same(net.parameters(), expected)
        on_all_ranks(net.parameters())


def batch_norm():
    torch.manual_seed(me)  # buffers come from rank 0
    net = DistributedDataParallel(
        nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    )
    train(net, torch.optim.SGD(net.parameters(), lr=0.01))
    net(mine(batches()[0]))
    net.eval()
    on_all_ranks(net.parameters())
    whole = nn.SyncBatchNorm.convert_sync_batchnorm(nn.BatchNorm1d(4))
    assert isinstance(whole, nn.SyncBatchNorm)


def half_hook():
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    net = DistributedDataParallel(model())
    net.register_comm_hook(None, fp16_compress_hook)
    train(net, torch.optim.SGD(net.parameters(), lr=0.01))
    same(net.parameters(), alone(model()).parameters(), 1e-2)
    on_all_ranks(net.parameters())


def joined():
    """Ranks with more and fewer batches."""
    net = DistributedDataParallel(model())
    step = torch.optim.SGD(net.parameters(), lr=0.01)
    with net.join():
        for rows in batches()[: 1 + me]:
            step.zero_grad()
            loss_of(net, mine(rows)).backward()
            step.step()
    on_all_ranks(net.parameters())


def zero():
    from torch.distributed.optim import ZeroRedundancyOptimizer

    net = DistributedDataParallel(model())
    train(net, ZeroRedundancyOptimizer(net.parameters(), torch.optim.Adam, lr=0.01))
    same(net.parameters(), alone(model(), torch.optim.Adam).parameters())
    on_all_ranks(net.parameters())


def fsdp():
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    for policy in (MixedPrecisionPolicy(), MixedPrecisionPolicy(reduce_dtype=torch.bfloat16)):
        net = model()
        for layer in net:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mp_policy=policy)
        fully_shard(net, mp_policy=policy)
        step = torch.optim.SGD(net.parameters(), lr=0.01)
        for rows in batches():
            step.zero_grad()
            loss_of(net, mine(rows)).backward()
            step.step()
        whole = [parameter.full_tensor() for parameter in net.parameters()]
        same(whole, alone(model()).parameters(), 1e-5 if policy.reduce_dtype is None else 2e-2)


def dtensor():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (size,))
    torch.manual_seed(3)
    left, right = torch.randn(6, 4 * size), torch.randn(4 * size, 5)
    product = distribute_tensor(left, mesh, [Shard(1)]) @ distribute_tensor(right, mesh, [Shard(0)])
    torch.testing.assert_close(product.full_tensor(), left @ right)
    rows = product.redistribute(mesh, [Shard(0)]).redistribute(mesh, [Replicate()])
    torch.testing.assert_close(rows.to_local(), left @ right)


def functional():
    import torch.distributed._functional_collectives as functional

    everyone = dist.group.WORLD
    got = functional.all_reduce(torch.full((3,), float(me)), "sum", everyone)
    assert torch.equal(got + 0, torch.full((3,), float(sum(range(size)))))
    got = functional.all_gather_tensor(torch.full((2,), float(me)), 0, everyone)
    assert torch.equal(got + 0, torch.arange(size).repeat_interleave(2).float())
    got = functional.reduce_scatter_tensor(torch.ones(2 * size), "avg", 0, everyone)
    assert torch.equal(got + 0, torch.ones(2))
    got = functional.all_to_all_single(torch.full((size,), float(me)), None, None, everyone)
    assert torch.equal(got + 0, torch.arange(size).float())


def checkpoint():
    import tempfile

    import torch.distributed.checkpoint as dcp
    from torch.distributed.fsdp import fully_shard

    net = fully_shard(model())
    box = [tempfile.mkdtemp() if me == 0 else None]
    dist.broadcast_object_list(box)
    dcp.save({"model": net.state_dict()}, checkpoint_id=box[0])
    other = fully_shard(copy.deepcopy(alone(model())))
    state = {"model": other.state_dict()}
    dcp.load(state, checkpoint_id=box[0])
    other.load_state_dict(state["model"])
    same([p.full_tensor() for p in other.parameters()], model().parameters())


CHECKS = (ddp, batch_norm, half_hook, joined, zero, fsdp, dtensor, functional, checkpoint)
for check in CHECKS:
    if not sys.argv[1:] or check.__name__ in sys.argv[1:]:
        check()
        if me == 0:
            print("passed", check.__name__, flush=True)
dist.destroy_process_group()
