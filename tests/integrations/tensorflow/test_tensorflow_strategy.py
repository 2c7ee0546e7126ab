"""What ``allranks.tensorflow`` decides, without TensorFlow: stand-ins take its place."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from allranks.errors import MissingDependencyError, UsageError, WorldError
from allranks.integrations.tensorflow import keras_backup, keras_repairs
from allranks.integrations.tensorflow import worker_strategy as workers
from allranks.runtime.world.detection import detect


def test_importing_it_loads_neither_tensorflow_nor_torch() -> None:
    code = (
        "import sys, allranks\n"
        "allranks.tensorflow.backup, allranks.tensorflow.save, allranks.tensorflow.strategy\n"
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
    assert workers.too_late_reason(fresh) == ""
    fresh._context_handle = object()
    assert "started its devices" in workers.too_late_reason(fresh)
    fresh._collective_leader = ""
    assert "another multi-worker strategy" in workers.too_late_reason(fresh)
    assert workers.too_late_reason(object()) == ""


def test_a_repaired_keras_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    import stand_in_keras as broken

    monkeypatch.setattr(keras_repairs.importlib, "import_module", lambda _: broken)
    monkeypatch.delitem(sys.modules, "tf_keras", raising=False)
    build, reduce = broken.TensorFlowTrainer._maybe_symbolic_build, broken.reduce_per_replica
    old = SimpleNamespace(keras=SimpleNamespace(__version__="2.11.0"))
    new = SimpleNamespace(keras=SimpleNamespace(__version__="3.15.1"))
    assert keras_repairs.repair_keras(old, report=False) == []
    assert broken.reduce_per_replica is reduce
    assert keras_repairs.repair_keras(new, report=False) == ["_build", "_reduce"]
    assert broken.reduce_per_replica is not reduce
    assert keras_repairs.repair_keras(new, report=False) == [], (
        "the second time there is nothing to do"
    )
    broken.TensorFlowTrainer._maybe_symbolic_build = build
    broken.reduce_per_replica = reduce


def test_the_newest_whole_state_is_taken(tmp_path: Path) -> None:
    assert keras_backup.newest_state(tmp_path / "nothing") is None
    for epoch in (1, 2):
        part = tmp_path / "saving"
        part.mkdir()
        (part / "weights").write_text(str(epoch))
        keras_backup.publish_state(tmp_path, part, epoch)
    (tmp_path / "saving").mkdir()  # killed while it wrote the third
    assert keras_backup.newest_state(tmp_path) == tmp_path / "epoch-000002"
    assert [each.name for each in tmp_path.glob("epoch-*")] == ["epoch-000002"]


def test_a_state_in_the_middle_of_an_epoch_is_newer_than_its_beginning(tmp_path: Path) -> None:
    for name in ("epoch-000002", "epoch-000002-step-000000090", "epoch-000001-step-000000999"):
        (tmp_path / name).mkdir()
    assert keras_backup.newest_state(tmp_path) == tmp_path / "epoch-000002-step-000000090"
    (tmp_path / "saving").mkdir()
    keras_backup.publish_state(tmp_path, tmp_path / "saving", 3)
    assert [each.name for each in tmp_path.iterdir()] == ["epoch-000003"]


def test_a_backup_needs_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ALLRANKS_RUN_DIR", raising=False)
    monkeypatch.setitem(sys.modules, "tensorflow", SimpleNamespace(keras=None))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="backup\\('backups/my-run'\\)"):
        keras_backup.backup()


class _Model:
    """What the callback for Keras 3 asks of a model."""

    _initial_epoch: int | None = None
    optimizer = distribute_strategy = None

    def save_weights(self, path: str) -> None:
        Path(path).write_text("weights")

    def load_weights(self, path: str) -> None:
        assert Path(path).read_text() == "weights"


@pytest.fixture
def keras3(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_process: Callable[[], None]
) -> SimpleNamespace:
    """Enough of Keras 3 for a backup in ``tmp_path``."""
    keras = SimpleNamespace(__version__="3.9", callbacks=SimpleNamespace(Callback=object))
    monkeypatch.setitem(sys.modules, "tensorflow", SimpleNamespace(keras=keras))  # type: ignore[arg-type]
    monkeypatch.setattr(keras_backup, "world", lambda: SimpleNamespace(size=1, is_main=True))
    monkeypatch.setenv("ALLRANKS_RUN_DIR", str(tmp_path))
    return keras


def _fit(model: _Model, callback: Any, epochs: int, stop: int | None = None) -> list[int]:
    """The epochs that Keras would train; ``stop``: it is killed at the end of that one."""
    callback.model = model
    callback.on_train_begin()
    done = []
    for epoch in range(model._initial_epoch or 0, epochs):
        callback.on_epoch_begin(epoch)
        done.append(epoch)
        callback.on_epoch_end(epoch)
        if epoch == stop:
            return done
    callback.on_train_end()
    return done


def test_a_fit_after_one_that_was_resumed_starts_at_the_first_epoch(
    keras3: SimpleNamespace, tmp_path: Path
) -> None:
    place = tmp_path / "backup"
    assert _fit(_Model(), keras_backup.backup(place, keras=keras3), 4, stop=1) == [0, 1]
    model = _Model()
    assert _fit(model, keras_backup.backup(place, keras=keras3), 4, stop=2) == [2]
    assert model._initial_epoch is None, "a fit without a backup must not skip epochs, either"
    assert _fit(model, keras_backup.backup(place, keras=keras3, keep=True), 4) == [3]
    assert _fit(model, keras_backup.backup(place, keras=keras3), 4) == []
    assert model._initial_epoch is None
    assert _fit(model, keras_backup.backup(place, keras=keras3), 2) == [0, 1]


def test_every_fit_of_a_script_has_a_folder_of_its_own(
    keras3: SimpleNamespace, tmp_path: Path, new_process: Callable[[], None]
) -> None:
    _fit(_Model(), keras_backup.backup(keras=keras3, keep=True), 1)
    assert _fit(_Model(), keras_backup.backup(keras=keras3), 3, stop=1) == [0, 1]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["backup", "backup-2"]
    new_process()
    assert _fit(_Model(), keras_backup.backup(keras=keras3, keep=True), 1) == []
    assert _fit(_Model(), keras_backup.backup(keras=keras3), 3) == [2]
