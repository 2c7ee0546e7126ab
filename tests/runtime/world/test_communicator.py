"""Small collectives: one interface over torch.distributed, Horovod, TensorFlow and one process."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from allranks.errors import UsageError, WorldError
from allranks.runtime.world.communicator import Communicator, SingleProcess, get_communicator

HERE = Path(__file__).parent


class InThreads(Communicator):
    """A rank that is a thread: it can add numbers up, the base class makes the rest of that."""

    def __init__(self, rank: int, size: int, meeting: threading.Barrier, board: list[Any]) -> None:
        self.rank, self.size, self._meeting, self._board = rank, size, meeting, board

    def start_sum(self, values: Sequence[float]) -> Callable[[], list[float]]:
        self._board[self.rank] = list(values)
        self._meeting.wait(10)
        sums = [sum(each) for each in zip(*self._board, strict=True)]
        self._meeting.wait(10)
        return lambda: sums


def on_ranks(size: int, call: Callable[[Communicator], Any]) -> list[Any]:
    meeting, board, results = threading.Barrier(size), [None] * size, [None] * size

    def run(rank: int) -> None:
        results[rank] = call(InThreads(rank, size, meeting, board))

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return results


def test_one_process_gets_what_it_gives() -> None:
    one = get_communicator(1)
    assert isinstance(one, SingleProcess)
    assert (one.sum([1, 2.5]), one.max([3]), one.all_gather("x")) == ([1.0, 2.5], [3], ["x"])
    assert (one.broadcast({"a": 1}), one.call_on_rank_zero(lambda: 7)) == ({"a": 1}, 7)
    one.barrier()


def test_sums_are_enough_for_objects() -> None:
    found = on_ranks(
        3, lambda ranks: ranks.all_gather({"rank": ranks.rank, "text": "ä" * ranks.rank})
    )
    assert found == [[{"rank": rank, "text": "ä" * rank} for rank in range(3)]] * 3
    assert on_ranks(3, lambda ranks: ranks.max([ranks.rank, -ranks.rank])) == [[2, 0]] * 3
    assert on_ranks(3, lambda ranks: ranks.broadcast(f"from {ranks.rank}")) == ["from 0"] * 3


def test_an_error_on_rank_zero_is_raised_on_every_rank() -> None:
    def refuse() -> None:
        raise WorldError("The folder is missing.")

    def call(ranks: Communicator) -> str:
        with pytest.raises(UsageError, match="The folder is missing") as found:
            ranks.call_on_rank_zero(refuse)
        return str(found.value)

    assert on_ranks(2, call) == ["The folder is missing."] * 2
    with pytest.raises(WorldError, match="The folder is missing"):
        SingleProcess().call_on_rank_zero(refuse)


def test_ranks_that_are_not_connected_are_refused() -> None:
    code = (
        "from allranks.runtime.world.communicator import find_communicator, get_communicator\n"
        "assert find_communicator() is None\n"
        "get_communicator(4)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "needs the other 3 ranks, but torch.distributed is not initialized" in done.stderr


@pytest.mark.torch
def test_ranks_of_torch(tmp_path: Path, clean_env: dict[str, str]) -> None:
    words = [sys.executable, "-m", "allranks", "run", "--nprocs", "2", "--launcher", "fork"]
    done = subprocess.run(
        [*words, str(HERE / "communicator_probe.py"), str(tmp_path)],
        cwd=tmp_path, env=clean_env, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert {path.name for path in tmp_path.glob("done*")} == {"done0", "done1"}
