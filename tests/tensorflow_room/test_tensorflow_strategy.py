"""What ``allranks.tensorflow`` decides, without TensorFlow: stand-ins take its place."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from allranks.distributed.detect import detect
from allranks.errors import MissingDependencyError, UsageError, WorldError
from allranks.tensorflow import keras_repairs, restoring, workers


def test_importing_it_loads_neither_tensorflow_nor_torch() -> None:
    code = (
        "import allranks.tensorflow, sys\n"
        "from allranks.tensorflow import backup, save, strategy\n"
        "assert not {'tensorflow', 'torch', 'keras', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_communication_that_is_not_known() -> None:
    with pytest.raises(UsageError, match=r"'ncl' is not known. Did you mean 'nccl'\?"):
        workers.strategy("ncl")


def test_without_tensorflow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    with pytest.raises(MissingDependencyError, match="pip install tensorflow"):
        workers.strategy()


@pytest.mark.parametrize(
    ("local_rank", "local_size", "gpus", "own"),
    [
        (0, 1, 4, None),
        (1, 2, 0, None),
        (1, 4, 4, range(1, 2)),
        (1, 2, 4, range(2, 4)),
        (3, 4, 5, range(3, 4)),
    ],
)
def test_a_worker_takes_its_own_gpus(
    local_rank: int, local_size: int, gpus: int, own: range | None
) -> None:
    text = f"rank={local_rank},size={local_size},master_addr=a"
    here = detect({"ALLRANKS_WORLD": text})
    assert workers.own_gpus(here, gpus) == own
    assert workers.own_gpus(replace(here, private_devices=True), gpus) is None


def test_more_workers_than_gpus() -> None:
    here = detect({"ALLRANKS_WORLD": "rank=0,size=4,master_addr=a"})
    with pytest.raises(WorldError, match=r"4 workers on .*, but 2 GPUs visible. Start 2 per node"):
        workers.own_gpus(here, 2)


def test_too_late_is_seen_on_tensorflows_context() -> None:
    fresh = SimpleNamespace(_context_handle=None, _collective_leader=None)
    assert workers.why_too_late(fresh) == ""
    fresh._context_handle = object()
    assert "started its devices" in workers.why_too_late(fresh)
    fresh._collective_leader = ""
    assert "another multi-worker strategy" in workers.why_too_late(fresh)
    assert workers.why_too_late(object()) == ""


def test_a_repaired_keras_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    import stand_in_keras as broken

    monkeypatch.setattr(keras_repairs.importlib, "import_module", lambda _: broken)
    monkeypatch.delitem(sys.modules, "tf_keras", raising=False)
    build, reduce = broken.TensorFlowTrainer._maybe_symbolic_build, broken.reduce_per_replica
    old = SimpleNamespace(keras=SimpleNamespace(__version__="2.11.0"))
    new = SimpleNamespace(keras=SimpleNamespace(__version__="3.15.1"))
    assert keras_repairs.repair(old, tell=False) == []
    assert broken.reduce_per_replica is reduce
    assert keras_repairs.repair(new, tell=False) == ["_build", "_reduce"]
    assert broken.reduce_per_replica is not reduce
    assert keras_repairs.repair(new, tell=False) == [], "the second time there is nothing to do"
    broken.TensorFlowTrainer._maybe_symbolic_build = build
    broken.reduce_per_replica = reduce


def test_the_newest_whole_state_is_taken(tmp_path: Path) -> None:
    assert restoring.newest(tmp_path / "nothing") == 0
    for epoch in (1, 2):
        part = tmp_path / "saving"
        part.mkdir()
        (part / "weights").write_text(str(epoch))
        restoring.put_in_place(tmp_path, part, epoch)
    (tmp_path / "saving").mkdir()  # killed while it wrote the third
    assert restoring.newest(tmp_path) == 2
    assert [each.name for each in tmp_path.glob("epoch-*")] == ["epoch-000002"]


def test_a_backup_needs_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ALLRANKS_RUN_DIR", raising=False)
    monkeypatch.setitem(sys.modules, "tensorflow", SimpleNamespace(keras=None))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="backup\\('backups/my-run'\\)"):
        restoring.backup()
