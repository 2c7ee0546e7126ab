"""Shards of four ranks become shards of three: real processes over gloo, whose groups the saving leaves alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import os, sys, tempfile
from pathlib import Path
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from allranks.train.checkpoint.dcp import load
from allranks.train.checkpoint.write_plan import make_write_plan
from allranks.train.checkpoint.checkpoint_reader import CheckpointReader
from allranks.train.checkpoint.async_writer import CheckpointSaver
from allranks.train.checkpoint.write_plan import CheckpointState
from allranks.train.checkpoint.checkpoint_folder import CheckpointStore

torch.set_num_threads(1)
store = CheckpointStore(Path(sys.argv[1]))
token = store.take_over({})
part = store.stage(9, token)
wholes = {
    "model.even": torch.arange(64.0).reshape(8, 8),
    "model.uneven": torch.arange(35.0).reshape(7, 5),
    "model.few": torch.arange(4.0).reshape(1, 4),  # most ranks hold nothing of it
    "model.empty": torch.empty(0, 3),
    "model.half": torch.arange(12.0).bfloat16().reshape(3, 4),
}
spread = {"": [Replicate(), Shard(0)], ".wide": [Shard(0), Shard(1)], ".twice": [Shard(0), Shard(0)],
          ".copies": [Replicate(), Replicate()]}
quiet = {"src_data_rank": None}  # each rank cuts its own copy
plain = {"model.buffer": torch.arange(5), "model.step": torch.tensor(7)}

def ranks(size, work):
    meet = tempfile.mktemp()
    children = []
    for rank in range(size):
        if (child := os.fork()) == 0:
            code = 1
            try:
                dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=size)
                work(rank, size)
                dist.barrier()
                code = 0
            finally:
                sys.stderr.flush()
                if code:
                    import traceback; traceback.print_exc()
                os._exit(code)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * size

def save(rank, size):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("copies", "shards"))
    tensors = {key + ending: distribute_tensor(value, mesh, places, **quiet)
               for key, value in wholes.items() for ending, places in spread.items()}
    tensors["model.tied"] = tensors["model.even"]
    snapshot = CheckpointState({**tensors, **plain}, state={"x": 1} if rank == 0 else None, own={"rank": rank})
    if rank == 3:
        assert not any(p.key in wholes for p in make_write_plan(tensors, rank, size, everywhere=True).chunks)
    saver = CheckpointSaver(store, rank, size, token)
    saver.start(snapshot, part, {"step": 9, "strategy": "fsdp"})
    dist.all_reduce(torch.ones(1))  # training continues meanwhile
    saver.wait()
    assert saver.problem == "", saver.problem

def check(rank, size):
    reader = CheckpointReader(store.folder / "latest")
    mesh = init_device_mesh("cpu", (size,))
    expected = {key[6:] + ending: value for key, value in wholes.items() for ending in spread}
    state = {"model": {key: distribute_tensor(torch.zeros_like(value), mesh, [Shard(0)], **quiet)
                       for key, value in expected.items()},
             **{key: torch.zeros_like(value) for key, value in plain.items()}}
    load(state, reader.path)
    for key, value in expected.items():
        own = distribute_tensor(value, mesh, [Shard(0)], **quiet).to_local()
        assert torch.equal(state["model"][key].to_local(), own), key
        assert torch.equal(reader.tensor(f"model.{key}"), value), key
        rows = len(value) // size * rank
        assert torch.equal(reader.part(f"model.{key}", [rows, 0], value[rows:].shape), value[rows:])
    assert all(torch.equal(state[key], value) for key, value in plain.items())
    assert torch.equal(reader.tensor("model.tied"), wholes["model.even"])

ranks(4, save)
ranks(3, check)
"""


def test_shards_are_saved_by_four_ranks_and_read_by_three(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT, str(tmp_path / "checkpoints")],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
