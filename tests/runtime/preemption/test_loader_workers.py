"""Loader workers live on when a signal is for everybody, and end when their rank says so."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader, Dataset  # noqa: E402

from allranks.runtime.preemption.worker_signals import shield_workers  # noqa: E402

pytestmark = pytest.mark.torch


class Numbers(Dataset):  # type: ignore[misc]
    def __init__(self, stuck: bool = False) -> None:
        self.stuck = stuck

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> int:
        time.sleep(60 if self.stuck and index else 0.005)
        return index


@pytest.fixture(autouse=True)
def _own_loop_again() -> Iterator[None]:
    """The rest of the session keeps PyTorch's own workers."""
    from torch.utils.data import dataloader
    from torch.utils.data._utils import worker

    from allranks.runtime.preemption import worker_signals as workers

    started = dataloader._MultiProcessingDataLoaderIter.__init__
    yield
    worker._worker_loop = workers._replaced.pop()
    dataloader._MultiProcessingDataLoaderIter.__init__ = getattr(started, "__wrapped__", started)


def tell_everybody(pids: list[int], *numbers: int) -> None:
    """From another process, as slurmstepd does."""
    for number in numbers:
        subprocess.run(["kill", f"-{int(number)}", *map(str, pids)], check=True)


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_survive_a_signal_to_all(persistent: bool) -> None:
    shield_workers()
    shield_workers()  # a second call changes nothing
    loader = DataLoader(Numbers(), batch_size=2, num_workers=2, persistent_workers=persistent)
    for _ in range(2):
        rows = iter(loader)
        seen = [next(rows)]
        pids = [each.pid for each in rows._workers]
        tell_everybody(pids, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM)
        seen += list(rows)
        assert sorted(torch.cat(seen).tolist()) == list(range(60))
    rows._shutdown_workers()
    assert [each.exitcode for each in rows._workers] == [0, 0]


def test_a_worker_ends_by_the_word_of_its_rank() -> None:
    shield_workers()
    rows = iter(DataLoader(Numbers(stuck=True), batch_size=1, num_workers=2))
    next(rows)
    tell_everybody([each.pid for each in rows._workers], signal.SIGTERM)
    for each in rows._workers:
        each.terminate()
        each.join(10)
        assert each.exitcode == 0
