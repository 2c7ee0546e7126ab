"""The Trainer's deepspeed strategy, really run: the numbers of one process, from any launcher, back from any save."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from framework_rig import assert_same_curve, curve

from command_rig import ROOT, Allranks

pytest.importorskip("deepspeed")

pytestmark = [pytest.mark.slow, pytest.mark.torch, pytest.mark.timeout(1200)]

HERE = Path(__file__).parent
STAGES = (0, 1, 2, 3)
KINDS = ("plain", "clipped", "accumulated")
MORE = ("zero1 sgd", "zero2 ema", "zero2 bf16", "zero3 bf16", "zero2 offloaded", "zero3 offloaded")
WAYS = {
    1: [f"zero{stage} {KINDS[stage % 3]}" for stage in STAGES],
    2: [*(f"zero{stage} {kind}" for stage in STAGES for kind in KINDS), *MORE],
    4: ["zero3 accumulated"],
}


def script(name: str, *words: object, env: dict[str, str], cwd: Path, limit: float = 400) -> str:
    done = subprocess.run(
        [sys.executable, str(HERE / name), *map(str, words)],
        cwd=cwd, env=env, capture_output=True, text=True, timeout=limit,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return done.stdout + done.stderr


def a_clean_env() -> dict[str, str]:
    left = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_", "SLURM_", "ALLRANKS_")
    return {name: value for name, value in os.environ.items() if not name.startswith(left)}


def apart(one: list[float], other: list[float]) -> float:
    assert len(one) == len(other)
    return max((abs(a - b) for a, b in zip(one, other, strict=True)), default=0.0)


# The numbers of one process


@pytest.fixture(scope="module")
def curves(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, str], dict[str, Any]]:
    """Every way of training, by ranks and name: one group of processes for each number of ranks."""
    folder = tmp_path_factory.mktemp("deepspeed-truth")
    singles = [f"single {kind}" for kind in (*KINDS, "sgd", "ema")]
    made: dict[tuple[int, str], dict[str, Any]] = {}
    for ranks, names in WAYS.items():
        out = folder / f"{ranks}.json"
        wanted = [*(singles if ranks == 1 else []), *names]
        script("deepspeed_truth_script.py", ranks, out, *wanted, env=a_clean_env(), cwd=folder)
        made |= {(ranks, each["name"]): each for each in json.loads(out.read_text())}
    return made


@pytest.mark.parametrize(
    ("ranks", "name"), [(ranks, name) for ranks, names in WAYS.items() for name in names]
)
def test_every_stage_gives_the_numbers_of_one_process(
    curves: dict[tuple[int, str], dict[str, Any]], ranks: int, name: str
) -> None:
    kind = name.split()[1]
    truth = curves[1, f"single {'plain' if kind in ('bf16', 'offloaded') else kind}"]
    way, tolerance = curves[ranks, name], 5e-2 if kind == "bf16" else 2e-5
    assert len(truth["losses"]) == 3 * 7
    assert apart(truth["losses"], way["losses"]) < tolerance
    assert apart(truth["norms"], way["norms"]) < tolerance
    for part in ("weights", "optimizer"):
        assert truth[part].keys() == way[part].keys()
        for each, values in truth[part].items():
            assert apart(values, way[part][each]) < tolerance, each
    assert abs(truth["test"] - way["test"]) < tolerance
    assert abs(truth["validated"] - way["validated"]) < tolerance
    assert apart(truth["predict"], way["predict"]) < tolerance * 10
    assert (max(way["norms"]) > 0.05) == (kind in ("clipped", "sgd"))


def test_training_does_train(curves: dict[tuple[int, str], dict[str, Any]]) -> None:
    losses = curves[4, "zero3 accumulated"]["losses"]
    assert sum(losses[-7:-1]) < 0.8 * sum(losses[:6])


# Saved and gone on from


def test_checkpoints_move_between_stages_ranks_and_strategies(
    tmp_path: Path, clean_env: dict[str, str]
) -> None:
    parts = {
        2: ["zero1 2 z1", "zero3 2 z3", "zero3 4 1to3 z1", "ddp 4 3toddp z3", "zero2-bf16 4 3to2 z3"],
        1: ["single 2 s2", "single 4 s4", "zero3 4 z1to1 z1", "single 4 z3tos z3", "zero2 4 sto2 s2"],
        4: ["zero3 4 z3on4 z3"],
    }  # fmt: skip
    found: dict[str, float] = {}
    for ranks, words in parts.items():
        out = tmp_path / f"{ranks}.json"
        script(
            "deepspeed_resume_script.py", ranks, tmp_path, out, *words, env=clean_env, cwd=tmp_path
        )
        found |= {each["name"]: each["test"] for each in json.loads(out.read_text())}
    assert found["z1"] == pytest.approx(found["s2"], abs=2e-5)
    assert abs(found["s4"] - found["s2"]) > 1e-3  # going on does something
    for name in ("1to3", "3toddp", "z1to1", "z3tos", "sto2", "z3on4"):
        assert found[name] == pytest.approx(found["s4"], abs=2e-5), name
    assert found["3to2"] == pytest.approx(found["s4"], abs=1e-2)


def test_optimizer_schedule_own_loop_and_short_windows(
    tmp_path: Path, clean_env: dict[str, str]
) -> None:
    name = "deepspeed_features_script.py"
    one, many = tmp_path / "one.json", tmp_path / "many.json"
    script(name, 1, tmp_path, one, "single", env=clean_env, cwd=tmp_path)
    said = script(name, 2, tmp_path, many, "deepspeed", env=clean_env, cwd=tmp_path)
    truth, found = json.loads(one.read_text()), json.loads(many.read_text())
    for way in ("from_the_file", "own_loop"):
        assert apart(truth[way]["losses"], found[way]["losses"]) < 2e-5, way
    assert apart(truth["from_the_file"]["norms"], found["from_the_file"]["norms"]) < 2e-5
    for losses in found["short_windows"]["losses"]:
        assert apart(truth["short_windows"]["losses"][0], losses) < 2e-5
    used = found["from_the_file"]["used"]
    assert (used["train_batch_size"], used["train_micro_batch_size_per_gpu"]) == (16, 8)
    assert used["scheduler"]["params"]["total_num_steps"] == 21
    assert "ds_config.json, line 2: a comment (//) is not JSON" in said
    assert said.count("is not JSON") == 2  # rank 0 alone
    assert "[WARNING]" not in said


# Started by every launcher


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    folder = tmp_path_factory.mktemp("deepspeed-one")
    text = script(
        "deepspeed_trainer_script.py", "--strategy", "single", env=a_clean_env(), cwd=folder
    )
    return curve(text)


@pytest.mark.cell("DeepSpeed, Trainer", "python", "here")
def test_plain_python_starts_its_ranks(
    truth: list[float], tmp_path: Path, clean_env: dict[str, str]
) -> None:
    text = script("deepspeed_trainer_script.py", "--nprocs", 2, env=clean_env, cwd=tmp_path)
    assert "ranks 2 by deepspeed over 2 ranks, ZeRO stage 2" in text
    assert_same_curve(truth, curve(text))


def cells(place: str, *launchers: str) -> list[Any]:
    return [
        pytest.param(each, marks=pytest.mark.cell("DeepSpeed, Trainer", each, place))
        for each in launchers
    ]


@pytest.mark.parametrize(
    "launcher", cells("here", "fork", "torchrun", "launch", "accelerate", "deepspeed", "mpirun")
)
def test_launched_here(
    launcher: str, truth: list[float], allranks: Allranks, clean_env: dict[str, str], tmp_path: Path
) -> None:
    _need(launcher, clean_env)
    shutil.copy(HERE / "deepspeed_trainer_script.py", tmp_path / "train.py")
    done = allranks("run", "--nprocs", "2", "--launcher", launcher, "train.py", timeout=300)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "ranks 2 by deepspeed" in done.stdout
    assert_same_curve(truth, curve(done.stdout))


@pytest.mark.slurm
@pytest.mark.parametrize(
    "launcher",
    cells("2 nodes", "srun", "fork", "torchrun", "launch", "accelerate", "deepspeed", "mpirun"),
)
def test_launched_on_two_nodes(
    launcher: str, truth: list[float], slurm: Allranks, slurm_env: dict[str, str], tmp_path: Path
) -> None:
    _need(launcher, slurm_env)
    shutil.copy(HERE / "deepspeed_trainer_script.py", tmp_path / "train.py")
    size = ["--nodes", "2", "--nprocs", "4", "--cpus-per-task", "1", "--time", "6m"]
    words = ["--launcher", launcher, "--follow", "train.py", "--stage", "3"]
    done = slurm("submit", *size, *words, timeout=400)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "ranks 4 by deepspeed over 4 ranks, ZeRO stage 3" in done.stdout
    assert_same_curve(truth, curve(done.stdout))


def _need(launcher: str, env: dict[str, str]) -> None:
    if launcher == "mpirun" and not any(
        shutil.which(name, path=env["PATH"]) for name in ("mpirun", "mpiexec.hydra")
    ):
        pytest.skip("no mpirun here")


# The example


def test_one_example_by_three_strategies(tmp_path: Path, clean_env: dict[str, str]) -> None:
    (tmp_path / "ds_config.json").write_text(
        '{\n  "zero_optimization": {"stage": 1},\n  "fp16": {\n    "enabled": false,\n  }\n}\n'
    )
    found = []
    for words in (
        ["--strategy", "ddp"],
        ["--strategy", "fsdp"],
        ["--strategy", "deepspeed"],
        ["--strategy", "deepspeed", "--deepspeed_config", "ds_config.json"],
    ):
        done = subprocess.run(
            [sys.executable, str(ROOT / "examples" / "vit_digits.py"), "--nprocs", "2", "--epochs", "2", *words],
            cwd=tmp_path, env=clean_env, capture_output=True, text=True, timeout=400,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-4000:]
        folder = Path(done.stdout.split("logs, curves and checkpoints: ")[1].splitlines()[0])
        rows = [
            json.loads(line)
            for line in (tmp_path / folder / "metrics.jsonl").read_text().splitlines()
        ]
        found.append([row["train_loss"] for row in rows if row.get("kind") == "epoch"])
    assert len(found[0]) == 2
    assert found[0][1] < found[0][0]
    for losses in found[1:]:
        assert losses == pytest.approx(found[0], rel=2e-4)
