"""A Trainer that plain python started samples the node with all the ranks that it starts itself."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.slow]
MB = 1 << 20
TRAIN = """
import time
import torch
from allranks import TrainConfig, Trainer
from allranks.train.callbacks.base import Callback

torch.set_num_threads(1)

class Slow(Callback):
    def on_fit_start(self, trainer):
        self.held = torch.ones(25 << 20)
        time.sleep(2.5)

model = torch.nn.Linear(2, 1)
data = torch.utils.data.TensorDataset(torch.zeros(8, 2), torch.zeros(8, 1))
loader = torch.utils.data.DataLoader(data, batch_size=2)
trainer = Trainer(
    model, torch.optim.SGD(model.parameters(), 0.1), TrainConfig(epochs=1, nprocs=NPROCS),
    callbacks=[Slow()],
)
trainer.fit(loader)
"""


@pytest.mark.parametrize("started", ["python", "torchrun"])
def test_both_ranks_are_counted(started: str, tmp_path: Path, clean_env: dict[str, str]) -> None:
    nprocs = "2" if started == "python" else "None"
    (tmp_path / "train.py").write_text(TRAIN.replace("NPROCS", nprocs))
    words = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "29655"]
    command = [sys.executable, *(words if started == "torchrun" else []), "train.py"]
    done = subprocess.run(
        command, cwd=tmp_path, env=clean_env, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (file,) = tmp_path.glob("runs/*/attempts/1/nodes/*")
    first, *found = [json.loads(line) for line in file.read_text().splitlines()]
    assert (file.name, first["kind"]) == ("node-00000.jsonl", "node")
    # Two times torch itself and 100 MB: one rank alone holds about 300 MB.
    assert max(sample["memory"] for sample in found) > 450 * MB
