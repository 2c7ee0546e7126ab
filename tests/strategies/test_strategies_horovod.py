"""What the horovod strategy refuses before anything starts; the real one is in tests/frameworks."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from allranks import TrainConfig, Trainer
from allranks.distributed import horovod
from allranks.errors import MissingDependencyError, UsageError
from allranks.strategies import Horovod


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What stands in this folder is found as Horovod."""
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"compression": "fp15"}, r"compression='fp15'.*must be one of none, fp16.*fp16"),
        ({"op": "sum"}, "op='sum'.*must be one of average, adasum"),
        ({"gradient_predivide_factor": 0}, "must be above 0"),
        ({"op": "adasum", "gradient_predivide_factor": 2.0}, "op='average' only"),
        ({"compresion": "fp16"}, "has no option 'compresion'"),
    ],
)
def test_options_that_cannot_be(options: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Horovod(**options)  # type: ignore[arg-type]


@pytest.mark.skipif(find_spec("horovod") is not None, reason="Horovod is installed")
def test_without_horovod_the_trainer_says_how_to_get_it() -> None:
    model = torch.nn.Linear(1, 1)
    config = TrainConfig(strategy="horovod", nprocs=2, verbose=False)
    trainer = Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), config, loss_fn="mse")
    before = dict(os.environ)
    with pytest.raises(MissingDependencyError, match="allranks frameworks install horovod"):
        trainer.fit([(torch.ones(2, 1), torch.ones(2, 1))])
    assert dict(os.environ) == before


def test_a_horovod_without_pytorch_is_told_apart(elsewhere: Path) -> None:
    (elsewhere / "horovod" / "torch").mkdir(parents=True)
    (elsewhere / "horovod" / "__init__.py").touch()
    with pytest.raises(MissingDependencyError, match="built without PyTorch"):
        horovod.require()


@pytest.mark.parametrize(
    ("content", "mpi"),
    [
        (b"\0libmpi.so.40\0", "openmpi"),
        (b"\0libmpi.so.12\0", "mpich"),
        (b"\0libmpi_cray.so\0", "unknown"),
        (b"\0libgloo.so\0", ""),
    ],
)
def test_mpi_is_found_in_what_the_library_links(elsewhere: Path, content: bytes, mpi: str) -> None:
    folder = elsewhere / "horovod" / "torch"
    folder.mkdir(parents=True)
    (elsewhere / "horovod" / "__init__.py").touch()
    (folder / "mpi_lib_v2.cpython.so").write_bytes(b"ELF" + content)
    assert horovod._linked_mpi() == mpi
