"""A user's own Horovod script: each step's loss over all ranks' samples, from rank 0.

--again        shut Horovod down and start it a second time, as notebooks and sweeps do
--fail RANK    that rank raises an error at the third step
--hang         the others then wait in a loop of their own, not in Horovod
"""

import argparse
import os
import time

import horovod.torch as hvd
import torch
from torch import nn

torch.set_num_threads(1)
parser = argparse.ArgumentParser()
parser.add_argument("--again", action="store_true")
parser.add_argument("--fail", type=int)
parser.add_argument("--hang", action="store_true")
options = parser.parse_args()

hvd.init()
if options.again:
    hvd.allreduce(torch.ones(1), name="first")
    hvd.shutdown()
    hvd.init()

torch.manual_seed(1 + hvd.rank())  # rank 0's weights must win
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)

x = torch.randn(32, 4, generator=torch.Generator().manual_seed(3))
y = x.sum(1, keepdim=True).sin()
mine = slice(hvd.rank() * 32 // hvd.size(), (hvd.rank() + 1) * 32 // hvd.size())
for step in range(8):
    if step == 3 and options.fail is not None:
        if hvd.rank() == options.fail:
            raise ValueError("no such dataset: imagenet")
        if options.hang:
            time.sleep(600)
    loss = nn.functional.mse_loss(model(x[mine]), y[mine])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    mean = hvd.allreduce(loss.detach(), name="loss").item()
    if hvd.rank() == 0:
        print(f"loss {step} {mean:.6f}", flush=True)
by = "mpi" if hvd.mpi_enabled() else "gloo"
interface = os.environ.get("HOROVOD_GLOO_IFACE")
print(
    f"rank {hvd.rank()} of {hvd.size()}, {hvd.local_rank()} of {hvd.local_size()} here, "
    f"{hvd.cross_rank()} of {hvd.cross_size()} across, by {by} {interface}",
    flush=True,
)
