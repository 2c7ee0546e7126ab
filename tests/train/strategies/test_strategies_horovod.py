"""What the horovod strategy refuses before anything starts; the real one is in tests/frameworks."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from strategies_rig import CPU, a_world
from torch import nn

from allranks import TrainConfig, Trainer
from allranks.errors import MissingDependencyError, UsageError
from allranks.runtime.world import horovod_init as horovod
from allranks.train.strategies import Horovod, StrategyOptions
from allranks.train.strategies.horovod_ops import GradientAverager


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
        horovod.require_horovod()


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


CUDA = torch.device("cuda")


def _checked(model: nn.Module, device: torch.device, **built: bool) -> None:
    strategy = Horovod()
    strategy.device, strategy.world = device, a_world(size=2)
    known = {"cuda_built": False, "rocm_built": False} | built
    strategy._hvd = SimpleNamespace(**{name: lambda v=value: v for name, value in known.items()})
    strategy._check([*model.named_parameters()])


def test_a_build_without_cuda_takes_no_gpu() -> None:
    model = nn.Linear(1, 1)
    _checked(model, CPU)
    _checked(model, CUDA, cuda_built=True)
    _checked(model, CUDA, rocm_built=True)
    with pytest.raises(UsageError, match=r"without CUDA .*\n.*frameworks install horovod"):
        _checked(model, CUDA)


def test_channels_last_is_refused_by_name() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3))
    _checked(model, CPU)
    with pytest.raises(
        UsageError, match=r"0\.weight is not .*memory_format, or use strategy='ddp'"
    ):
        _checked(model.to(memory_format=torch.channels_last), CPU)  # type: ignore[call-overload]


@pytest.mark.parametrize(("norm", "asked"), [(nn.BatchNorm1d, True), (nn.SyncBatchNorm, False)])
def test_synchronised_batch_norms_are_refused_on_gpus(norm: type[nn.Module], asked: bool) -> None:
    model = nn.Sequential(nn.Linear(1, 2), norm(2))
    options = StrategyOptions(sync_batchnorm=asked)
    with pytest.raises(
        UsageError, match=r"(SyncBatchNorm, which|sync_batchnorm=True) does not work"
    ):
        Horovod().setup(model, [], world=a_world(size=2), device=CUDA, options=options)
    assert type(model[1]) is norm


class _Optimizer:
    """What is asked of Horovod's."""

    def set_backward_passes_per_step(self, passes: int) -> None: ...
    def synchronize(self) -> None: ...


@pytest.mark.parametrize(("rank", "find", "lines"), [(0, False, 1), (1, False, 0), (0, True, 0)])
def test_a_parameter_that_is_left_out_is_named_once(
    rank: int, find: bool, lines: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def made(*_: Any, **__: Any) -> _Optimizer:
        return _Optimizer()

    hvd = SimpleNamespace(
        size=lambda: 2, rank=lambda: rank, DistributedOptimizer=made, Sum=None,
        allreduce=lambda value, **_: value,
    )  # fmt: skip
    model = nn.ModuleDict({"used": nn.Linear(1, 1), "idle": nn.Linear(1, 1)})
    gradients = GradientAverager(hvd, [*model.named_parameters()], find_unused=find)
    for _ in range(2):
        gradients.expect()
        model["used"](torch.ones(1, 1)).sum().backward()
    said = capsys.readouterr().err.splitlines()
    assert len(said) == lines
    if said:
        assert "idle.weight and 1 more got no gradient" in said[0]
        assert "Horovod(find_unused_parameters=True)" in said[0]
