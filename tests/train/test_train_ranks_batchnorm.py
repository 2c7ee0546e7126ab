"""Batch norms on several ranks: equal at validation, and no rank may fail over one sample."""

from __future__ import annotations

import pytest
from ranks_script_rig import Found, results, run

pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.timeout(900)]  # one fixture does all the training


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return run(tmp_path_factory.mktemp("batchnorm"), 2, "batchnorm")


def test_ranks_agree_at_validation(found: Found) -> None:
    first, second = results(found, "batch norm")
    assert first["val"] == second["val"]
    assert first["own"] == second["own"]
    assert first["steps"] == 4


def test_statistics_over_ranks_need_gpus(found: Found) -> None:
    for seen in found["batch norm synchronised"]:
        assert seen["error"].startswith("UsageError")
        assert "sync_batchnorm" in seen["error"]
        assert "GPU" in seen["error"]


def test_a_last_batch_that_leaves_one_sample_to_a_rank(found: Found) -> None:
    """One process takes the 3 samples that are left; two ranks must not fail over 2 and 1."""
    assert [one["steps"] for one in results(found, "batch norm uneven")] == [6, 6]
