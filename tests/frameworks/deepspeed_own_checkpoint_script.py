"""A script of one's own with DeepSpeed's engine, which saves or loads DeepSpeed's own checkpoint.

deepspeed_own_checkpoint_script.py --save FOLDER
deepspeed_own_checkpoint_script.py --load FOLDER [--universal]
"""

import argparse
import os

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import deepspeed
import torch
import torch.distributed as dist
from torch import nn

import allranks

GLOBAL_BATCH = 16


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--save")
    parser.add_argument("--load")
    parser.add_argument("--universal", action="store_true")
    parser.add_argument("--stage", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(1)
    here = allranks.init(device="cpu")
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 33), nn.Tanh(), nn.Linear(33, 1))
    config = {
        "train_batch_size": GLOBAL_BATCH,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.05, "torch_adam": True}},
        "zero_optimization": {"stage": args.stage},
        "checkpoint": {"load_universal": args.universal},
    }
    engine, *_ = deepspeed.initialize(model=model, config=config)
    if args.load:
        engine.load_checkpoint(args.load)
    x = torch.linspace(-1, 1, 4 * GLOBAL_BATCH).reshape(GLOBAL_BATCH, 4)
    y = x.pow(2).sum(1, keepdim=True)
    own = slice(here.rank, None, here.size)
    first = engine.global_steps
    for step in range(first, first + 6):
        loss = nn.functional.mse_loss(engine(x[own]), y[own])
        engine.backward(loss)
        engine.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if here.is_main:
            print(f"loss {step} {mean.item() / here.size:.7f}", flush=True)
    if args.save:
        engine.save_checkpoint(args.save)
        if here.is_main and args.stage < 3:
            torch.save(model.state_dict(), f"{args.save}/plain.pt")
    dist.barrier()


if __name__ == "__main__":
    main()
