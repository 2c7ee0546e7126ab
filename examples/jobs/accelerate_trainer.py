"""A training loop with Hugging Face Accelerate.

allranks run --launcher accelerate --nprocs 2 examples/jobs/accelerate_trainer.py
"""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(cpu=not torch.cuda.is_available())
torch.manual_seed(0)
x = torch.rand(512, 4)
loader = DataLoader(TensorDataset(x, x.sum(dim=1, keepdim=True)), batch_size=32, shuffle=True)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

for epoch in range(1, 4):
    for inputs, targets in loader:
        loss = nn.functional.mse_loss(model(inputs), targets)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    mean = accelerator.reduce(loss.detach(), "mean").item()
    accelerator.print(f"epoch {epoch} of {accelerator.num_processes} ranks: loss {mean:.4f}")
del loss
model, optimizer, loader = accelerator.free_memory(model, optimizer, loader)
accelerator.end_training()
