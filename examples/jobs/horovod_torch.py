"""A training loop with PyTorch and Horovod.

allranks run --nprocs 2 examples/jobs/horovod_torch.py
"""

import horovod.torch as hvd
import torch
from torch import nn

hvd.init()
cuda = torch.cuda.is_available()
if cuda:
    torch.cuda.set_device(hvd.local_rank())
device = torch.device("cuda", hvd.local_rank()) if cuda else torch.device("cpu")
torch.manual_seed(hvd.rank())  # every rank draws samples of its own
model = nn.Linear(8, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * hvd.size())
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)

for step in range(20):
    x = torch.rand(64, 8, device=device)
    loss = nn.functional.mse_loss(model(x), x.sum(dim=1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    mean = hvd.allreduce(loss.detach(), name="loss").item()  # over all ranks
    if hvd.rank() == 0:
        print(f"loss {step} {mean:.4f}", flush=True)
