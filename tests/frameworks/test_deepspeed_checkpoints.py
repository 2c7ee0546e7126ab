"""DeepSpeed's own checkpoints: joined to plain weights, and gone on from with another number of ranks."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from framework_rig import assert_same_curve, curve

from command_rig import Allranks

pytest.importorskip("deepspeed")
torch = pytest.importorskip("torch")

from allranks.errors import UsageError  # noqa: E402
from allranks.train.strategies.deepspeed import consolidate  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.torch, pytest.mark.timeout(1200)]

SCRIPT = Path(__file__).with_name("deepspeed_own_checkpoint_script.py")


def test_an_own_scripts_checkpoint_moves(
    allranks: Allranks, tmp_path: Path, clean_env: dict[str, str]
) -> None:
    shutil.copy(SCRIPT, tmp_path / "own.py")

    def losses(ranks: int, *words: str) -> list[float]:
        done = allranks("run", "--nprocs", str(ranks), "own.py", *words, timeout=300)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return curve(done.stdout)

    before = losses(2, "--save", "saved")
    after = losses(2, "--load", "saved")
    assert after[0] < before[-1]

    with pytest.raises(UsageError, match="trusted=True"):
        consolidate(tmp_path / "saved")
    with pytest.raises(UsageError, match=r"has no checkpoint 'global_step7'. It has global_step6"):
        consolidate(tmp_path / "saved", "global_step7", trusted=True)
    joined = consolidate(tmp_path / "saved", trusted=True)
    plain = torch.load(tmp_path / "saved" / "plain.pt", weights_only=True)
    assert joined.keys() == plain.keys()
    for name, value in plain.items():
        assert torch.equal(joined[name], value), name

    words = ["--inject_missing_state", "--input_folder", "saved/global_step6"]
    made = subprocess.run(
        [sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal", *words,
         "--output_folder", "universal/global_step6"],
        cwd=tmp_path, env=clean_env, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert made.returncode == 0, made.stdout[-3000:] + made.stderr[-3000:]
    (tmp_path / "universal" / "latest").write_text("global_step6")
    for ranks in (1, 4):
        assert_same_curve(after, losses(ranks, "--load", "universal", "--universal"))
