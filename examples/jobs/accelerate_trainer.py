"""A training loop with Hugging Face Accelerate. Any launcher starts it, also without GPUs:

allranks run --launcher accelerate --nprocs 2 examples/jobs/accelerate_trainer.py
"""

import torch
from accelerate import Accelerator, DataLoaderConfiguration
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

# batch_size is that of all processes together, and their order of the data is that of one.
data = DataLoaderConfiguration(split_batches=True, use_seedable_sampler=True)
accelerator = Accelerator(dataloader_config=data)
torch.manual_seed(0)
x = torch.rand(256, 4)
loader = DataLoader(TensorDataset(x, x.sum(dim=1, keepdim=True)), batch_size=64, shuffle=True)
model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

about = f"process {accelerator.process_index} of {accelerator.num_processes}"
print(
    f"{about} (local {accelerator.local_process_index}) trains on {accelerator.device}", flush=True
)
step = 0
for _ in range(2):
    for inputs, targets in loader:
        loss = nn.functional.mse_loss(model(inputs), targets)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        mean = accelerator.reduce(loss.detach(), "mean").item()
        if accelerator.is_main_process:  # accelerator.print would say it once on each node
            print(f"loss {step} {mean:.6f}", flush=True)
        step += 1
del loss
model, optimizer, loader = accelerator.free_memory(model, optimizer, loader)
accelerator.end_training()
