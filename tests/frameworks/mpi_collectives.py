"""Every collective of torch over MPI, checked against what it must give. Run by the tests with 2 to 4 ranks."""

from __future__ import annotations

import os
import sys
import warnings

import torch
import torch.distributed as dist

import allranks

torch.set_num_threads(1)
warnings.simplefilter("ignore")  # names that torch is about to change
world = allranks.init("mpi", timeout=60)
me, size = world.rank, world.size
everyone = range(size)
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
INTS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def same(got, expected, what=""):
    expected = torch.as_tensor(expected).to(got.dtype)
    assert torch.equal(got, expected.expand_as(got)), (what, me, got, expected)


def all_reduce():
    for dtype in (*FLOATS, *INTS):
        for op, expected in (
            ("SUM", sum(r + 1 for r in everyone)),
            ("MIN", 1),
            ("MAX", size),
            ("PRODUCT", torch.prod(torch.arange(1, size + 1)).item()),
        ):
            tensor = torch.full((5, 3), me + 1, dtype=dtype)
            dist.all_reduce(tensor, getattr(dist.ReduceOp, op))
            same(tensor, expected, (dtype, op))
    for dtype in FLOATS:
        tensor = torch.full((4,), float(me), dtype=dtype)
        dist.all_reduce(tensor, dist.ReduceOp.AVG)
        same(tensor, (size - 1) / 2)
    for op, expected in (("BAND", 0), ("BOR", 2**size - 1), ("BXOR", 2**size - 1)):
        tensor = torch.tensor([1 << me], dtype=torch.int32)
        dist.all_reduce(tensor, getattr(dist.ReduceOp, op))
        same(tensor, expected, op)
    truth = torch.tensor([me == 0, True, False])
    dist.all_reduce(truth)
    same(truth, [True, True, False])
    truth = torch.tensor([me == 0, True, False])
    dist.all_reduce(truth, dist.ReduceOp.MIN)
    same(truth, [False, True, False])
    both = torch.tensor([1 + 2j]) * (me + 1)
    dist.all_reduce(both)
    same(both, torch.tensor([1 + 2j]) * sum(r + 1 for r in everyone))


def odd_tensors():
    """Views with gaps, transposed and empty ones, a scalar, inference mode, a parameter."""
    base = torch.arange(24.0).reshape(4, 6)
    for view in (base.clone()[:, ::2], base.clone().t(), base.clone()[1:3, 2:4]):
        before = view.clone()
        dist.all_reduce(view)
        same(view, before * size)
    whole = torch.zeros(4, 4)
    dist.all_reduce(whole[:, 1].add_(1))
    assert whole.sum() == 4 * size
    for empty in (torch.empty(0), torch.empty(3, 0, dtype=torch.bfloat16)):
        dist.all_reduce(empty)
        dist.broadcast(empty, 0)
        dist.all_gather([torch.empty_like(empty) for _ in everyone], empty)
    scalar = torch.tensor(2.0)
    dist.all_reduce(scalar)
    assert scalar.item() == 2 * size
    with torch.inference_mode():
        half = torch.ones(6, dtype=torch.bfloat16)[::2]
        dist.all_reduce(half)
        same(half, size)
    parameter = torch.nn.Parameter(torch.full((3,), float(me)))
    dist.broadcast(parameter, size - 1)
    same(parameter.detach(), size - 1)


def precision():
    """Half precision is summed in float32 and rounded once."""
    tensor = torch.tensor([256.0 if me == 0 else 1.0 / (size - 1) * 1.5], dtype=torch.bfloat16)
    exact = torch.tensor(
        [256.0 if me == 0 else 1.0 / (size - 1) * 1.5], dtype=torch.bfloat16
    ).float()
    dist.all_reduce(exact)
    dist.all_reduce(tensor)
    same(tensor, exact.bfloat16())


def one_to_all():
    for dtype in (*FLOATS, *INTS, torch.bool, torch.complex64, torch.complex128):
        for root in everyone:
            tensor = torch.full((7,), me == root, dtype=torch.bool).to(dtype)
            dist.broadcast(tensor, root)
            same(tensor, 1, dtype)
    total = torch.full((3,), float(me + 1))
    dist.reduce(total, size - 1)
    same(total, sum(r + 1 for r in everyone) if me == size - 1 else me + 1)
    room = [torch.empty(2) for _ in everyone] if me == 0 else None
    dist.gather(torch.full((2,), float(me)), room, dst=0)
    for rank, got in enumerate(room or []):
        same(got, rank)
    got = torch.empty(2, 2)
    parts = [torch.full((2, 2), float(r)).t() for r in everyone] if me == 1 else None
    dist.scatter(got, parts, src=1)
    same(got, me)


def gathers():
    for dtype in (*FLOATS, torch.int64, torch.bool):
        room = [torch.empty(2, 3, dtype=dtype) for _ in everyone]
        dist.all_gather(room, torch.full((2, 3), me, dtype=dtype))
        for rank, got in enumerate(room):
            same(got, torch.tensor(rank).to(dtype))
    uneven = [torch.empty(r + 1) for r in everyone]
    dist.all_gather(uneven, torch.full((me + 1,), float(me)))
    for rank, got in enumerate(uneven):
        same(got, rank)
    whole = torch.empty(size * 3, dtype=torch.float16)
    dist.all_gather_into_tensor(whole, torch.full((3,), me, dtype=torch.float16))
    same(whole, torch.arange(size).repeat_interleave(3))
    whole = torch.full((size * 3,), -1.0)
    inside = whole[me * 3 : me * 3 + 3].fill_(me)
    dist.all_gather_into_tensor(whole, inside)  # as FSDP does
    same(whole, torch.arange(size).repeat_interleave(3))
    whole = torch.empty(size, 2).t()
    dist.all_gather_into_tensor(whole, torch.full((2,), float(me)))
    same(whole.reshape(-1), torch.arange(size).repeat_interleave(2))
    lists = [[torch.empty(2), torch.empty(1)] for _ in everyone]
    dist.all_gather_coalesced(lists, [torch.full((2,), float(me)), torch.full((1,), me + 0.5)])
    for rank, (one, two) in enumerate(lists):
        same(one, rank)
        same(two, rank + 0.5)


def reduce_scatters():
    expected = sum(r + 1 for r in everyone)
    for dtype in (*FLOATS, torch.int32):
        got = torch.empty(3, dtype=dtype)
        whole = torch.arange(size).repeat_interleave(3).add(1).to(dtype) * (me + 1)
        dist.reduce_scatter_tensor(got, whole)
        same(got, (me + 1) * expected, dtype)
        dist.reduce_scatter(got, list(whole.chunk(size)))
        same(got, (me + 1) * expected)
    got = torch.empty(3)
    dist.reduce_scatter_tensor(got, torch.full((3 * size,), float(me)), dist.ReduceOp.AVG)
    same(got, (size - 1) / 2)
    got = torch.empty(me + 1)
    dist.reduce_scatter(got, [torch.full((r + 1,), 1.0) for r in everyone])
    same(got, size)
    both = torch.arange(2.0 * size)
    dist.reduce_scatter_tensor(both[me * 2 : me * 2 + 2], both)
    same(both[me * 2 : me * 2 + 2], torch.tensor([me * 2.0, me * 2.0 + 1]) * size)


def all_to_alls():
    got = torch.empty(size * 2)
    dist.all_to_all_single(got, torch.arange(2.0 * size) + 100 * me)
    same(got, torch.cat([torch.tensor([2.0 * me, 2.0 * me + 1]) + 100 * r for r in everyone]))
    rows = sum(r + 1 for r in everyone)
    got = torch.empty(size * (me + 1), 2, dtype=torch.bfloat16)
    sent = torch.full((rows, 2), float(me), dtype=torch.bfloat16)
    dist.all_to_all_single(got, sent, [me + 1] * size, [r + 1 for r in everyone])
    same(got[:, 0], torch.arange(size).repeat_interleave(me + 1))
    outputs = [torch.empty(r + 1, dtype=torch.int64) for r in everyone]
    dist.all_to_all(outputs, [torch.full((me + 1,), 10 * me + r) for r in everyone])
    for rank, each in enumerate(outputs):
        same(each, 10 * rank + me)


def objects():
    found = [None] * size
    dist.all_gather_object(found, {"rank": me, "text": "x" * (me * 1000)})
    assert [each["rank"] for each in found] == list(everyone)
    box = [("from", me), None]
    dist.broadcast_object_list(box, src=1)
    assert box == [("from", 1), None]
    room = [None] * size if me == 0 else None
    dist.gather_object(me * me, room)
    assert me or room == [r * r for r in everyone]
    box = [None]
    dist.scatter_object_list(box, [f"to {r}" for r in everyone] if me == 0 else None)
    assert box == [f"to {me}"]


def messages():
    right, left = (me + 1) % size, (me - 1) % size
    big = torch.full((500_000,), float(me), dtype=torch.float32)
    got = torch.empty_like(big)
    works = dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, big, right), dist.P2POp(dist.irecv, got, left)]
    )
    for work in works:
        work.wait()
    same(got, left)
    # Large messages that cross while a collective is under way on one side only.
    receiving = dist.irecv(got.zero_(), left, tag=7)
    total = torch.ones(1)
    reducing = dist.all_reduce(total, async_op=True)
    sending = dist.isend(big, right, tag=7)
    for work in (sending, receiving, reducing):
        work.wait()
        assert work.is_completed()
    same(got, left)


def dropped():
    """Nobody keeps the Work or the tensor of a message: MPI reads its memory all the same."""
    dist.isend(torch.full((500_000,), float(me)), (me + 1) % size, tag=9)
    others = [torch.full((500_000,), -1.0) for _ in range(4)]
    dist.barrier()
    got = torch.empty_like(others[0])
    dist.recv(got, (me - 1) % size, tag=9)
    same(got, (me - 1) % size)


def from_anybody():
    if me == 0:
        small = torch.zeros(4, 2).t()[:, ::2]
        senders = {dist.recv(small) for _ in range(size - 1)}
        assert senders == set(range(1, size)), senders
    else:
        dist.send(torch.full((2, 2), float(me)), 0)


def works():
    tensor = torch.full((1000,), float(me))
    work = dist.all_reduce(tensor, async_op=True)
    (got,) = work.get_future().then(lambda future: future.value()).wait()
    same(got, sum(everyone))
    assert work.is_completed()
    assert work.is_success()
    assert work.result()[0] is tensor
    many = [torch.full((17,), float(n)) for n in range(50)]
    for work in [dist.all_reduce(each, async_op=True) for each in many]:
        work.wait()
    for index, each in enumerate(many):
        same(each, index * size)
    dist.barrier()


def coalesced():
    from torch.distributed.distributed_c10d import _coalescing_manager

    tensors = [torch.full((3,), float(me + n)) for n in range(4)]
    with _coalescing_manager():
        for each in tensors:
            dist.all_reduce(each)
    for n, each in enumerate(tensors):
        same(each, sum(r + n for r in everyone))
    with _coalescing_manager(device=torch.device("cpu"), async_ops=True) as manager:
        dist.broadcast(tensors[0], 0)
        dist.broadcast(tensors[1], 1)
    manager.wait()


def groups():
    pairs = [dist.new_group([r, (r + 1) % size]) for r in range(size)] if size > 2 else []
    for rank, group in enumerate(pairs):
        if me in (rank, (rank + 1) % size):
            tensor = torch.full((2,), float(me))
            dist.all_reduce(tensor, group=group)
            same(tensor, rank + (rank + 1) % size)
    one = dist.new_group([size - 1])
    if me == size - 1:
        tensor = torch.ones(3)
        dist.all_reduce(tensor, group=one)
        assert dist.get_world_size(one) == 1
    # Two groups of the same ranks, used in another order by each rank: they must not wait.
    first, second = dist.new_group(), dist.new_group()
    a, b = torch.ones(10), torch.ones(10)
    order = [(a, first), (b, second)] if me % 2 else [(b, second), (a, first)]
    if os.environ.get("MPI4PY_RC_THREAD_LEVEL", "multiple") == "multiple":
        for work in [dist.all_reduce(t, group=g, async_op=True) for t, g in order]:
            work.wait()
        same(a + b, 2 * size)
    sub, _ = dist.new_subgroups(size // 2 or 1)
    tensor = torch.tensor([float(me)])
    dist.all_reduce(tensor, group=sub)
    mine = [r for r in everyone if r // (size // 2 or 1) == me // (size // 2 or 1)]
    same(tensor, sum(mine))
    dist.destroy_process_group(first)


def again():
    """The group ends and starts anew in one process."""
    allranks.shutdown()
    assert not dist.is_initialized()
    dist.init_process_group("mpi")
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    same(tensor, size)
    dist.destroy_process_group()


assert dist.is_mpi_available()
assert dist.get_backend() == "mpi"
assert (dist.get_rank(), dist.get_world_size()) == (me, size)
CHECKS = [all_reduce, odd_tensors, precision, one_to_all, gathers, reduce_scatters, all_to_alls,
          objects, messages, dropped, from_anybody, works, coalesced, groups, again]  # fmt: skip
for check in CHECKS:
    if not sys.argv[1:] or check.__name__ in sys.argv[1:]:
        check()
        if me == 0:
            print("passed", check.__name__, flush=True)
