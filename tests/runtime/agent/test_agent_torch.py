"""The fork with torch inside."""

from __future__ import annotations

import pytest
from agent_rig import Rig

from command_rig import until

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

WORK = """
    import os, numpy, torch, torch.distributed as dist
    from torch.utils.data import DataLoader
    class Data(torch.utils.data.Dataset):
        def __len__(self): return 8
        def __getitem__(self, i): return torch.full((2,), float(i)) @ torch.ones(2)
    if __name__ == "__main__":
        dist.init_process_group("gloo")
        total = torch.ones(64, 64) @ torch.ones(64, 64)
        dist.all_reduce(total)
        for method in ("fork", "spawn"):
            loader = DataLoader(Data(), batch_size=4, num_workers=1, multiprocessing_context=method)
            print(method, sum(batch.sum().item() for batch in loader))
        print("sum", total[0, 0].item(), "threads", torch.get_num_threads())
        print("draw", numpy.random.rand())
        dist.destroy_process_group()
"""


def test_a_forked_group_with_data_loaders(rig: Rig) -> None:
    words = ["ranks", "--nprocs", "2", "--mode", "fork", "--preload", "torch", "--"]
    result = rig.run(*words, rig.script(WORK), OMP_NUM_THREADS="2")
    assert result.returncode == 0, result.stderr
    assert "not forked" not in result.stderr
    for rank in (0, 1):
        said = rig.said(rank)
        assert said[:3] == ["fork 56.0", "spawn 56.0", "sum 128.0 threads 2"]
    assert rig.said(0)[3] != rig.said(1)[3]


def test_kill_9_with_data_loaders(rig: Rig) -> None:
    path = rig.script(
        """
        import os, time, torch
        from torch.utils.data import DataLoader
        loader = iter(DataLoader(range(10**6), num_workers=2))
        next(loader)
        open(f"ready{os.environ['RANK']}", "w")
        time.sleep(60)
        """
    )
    words = ["ranks", "--nprocs", "2", "--mode", "fork", "--preload", "torch", "--", path]
    agent = rig.start(*words)
    until(lambda: len(list(rig.folder.glob("ready*"))) == 2, 40)
    agent.kill()
    agent.wait()
    until(lambda: not rig.alive(), 3, rig.alive)
