"""``allranks checkpoints``: what it lists, what it finds broken, what it exports."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from checkpoint_rig import flip, new_store, save
from click.testing import CliRunner, Result
from torch import nn

from allranks.cli.checkpoints import checkpoints
from allranks.errors import AllranksError, UsageError
from allranks.runs.run_folder import Run
from allranks.train.checkpoint.checkpoint_folder import CheckpointStore
from allranks.train.checkpoint.weights_export import export_weights
from allranks.train.checkpoint.write_plan import CheckpointState


class Net(nn.Module):
    """Tied weights, a buffer and a counter."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(60, 40), nn.Linear(40, 60)
        self.norm = nn.BatchNorm1d(40)
        self.head.weight = self.embed.weight


def net(step: int) -> Net:
    torch.manual_seed(step)
    return Net()


def snapshot(model: nn.Module, rank: int = 0) -> CheckpointState:
    """As a training saves it: single numbers lie in the state, averages beside the model."""
    entries = model.state_dict()
    averaged = dict(model.named_parameters())  # of tied ones the first alone
    large = {name: value for name, value in entries.items() if value.dim()}
    tensors = {f"model.{name}": value for name, value in large.items()}
    tensors |= {f"average.{name}": value + 1 for name, value in large.items() if name in averaged}
    tensors |= {"optimizer.0.state.embed.weight.exp_avg": torch.zeros(60, 40)}
    tree = {
        name: value if not value.dim() else {"tensor": f"model.{name}"}
        for name, value in entries.items()
    }
    return CheckpointState(tensors, state={"model": tree, "average": None} if rank == 0 else None)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run with three checkpoints of two ranks: 100, 200 (the best) and 300."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    made = Run.create(tmp_path / "runs", "train", scheduler="local", cwd=tmp_path, command=["x"])
    store, token = new_store(made.path)
    for step in (100, 200, 300):
        ranks = [snapshot(net(step), rank) for rank in range(2)]
        about = {"strategy": "fsdp", "epoch": step // 100, "metrics": {"loss": 1 / step}}
        assert save(store, token, step, ranks, ["best"] if step == 200 else [], about) == ["", ""]
    return made


def call(*words: str) -> Result:
    return CliRunner().invoke(checkpoints, words, env={"COLUMNS": "80"})


def test_the_list_fits_80_columns(run: Run) -> None:
    done = call("train")
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert [line.split()[0] for line in lines] == ["STEP", "300", "200", "100"]
    assert all(len(line) <= 80 for line in lines)
    assert lines[1].split()[-3:] == ["fsdp", "latest", "ok"]
    assert "best" in lines[2]
    assert "KiB" in lines[2]


def test_the_list_names_what_is_broken_and_what_was_set_aside(run: Run) -> None:
    store = CheckpointStore(run.path / "checkpoints")
    store.quarantine(store.folder / "step-00000100", "rank-00000.safetensors is missing.")
    (store.folder / "step-00000300" / "rank-00001.safetensors").write_bytes(b"short")
    done = call(str(store.folder))
    assert done.exit_code == 0
    assert "step-00000300: rank-00001.safetensors has 5 bytes, not" in done.output
    assert "step-00000100: rank-00000.safetensors is missing." in done.output
    found = {row["step"]: row for row in json.loads(call("last", "--json").output)}
    assert [found[step]["state"] for step in (300, 200, 100)] == ["broken", "ok", "set aside"]
    assert found[200]["names"] == ["best"]
    assert found[200]["metrics"] == {"loss": 1 / 200}
    assert found[200]["world_size"] == 2


def test_verify_reads_every_byte(run: Run) -> None:
    done = call("train", "--verify")
    assert done.exit_code == 0
    assert done.output.count("verified") == 3
    flip(run.path / "checkpoints" / "step-00000200" / "rank-00001.safetensors", -1)
    assert call("train").exit_code == 0  # the sizes are right
    done = call("train", "--verify")
    assert done.exit_code == 1
    assert "step-00000200: rank-00001.safetensors was changed" in done.output


@pytest.mark.parametrize("name", ["weights.safetensors", "weights.pt"])
def test_what_is_exported_loads_into_a_plain_model(run: Run, name: str) -> None:
    for words, step in (((), 300), (("--step", "100"), 100), (("--best",), 200)):
        done = call("train", "--export", name, *words)
        assert done.exit_code == 0, done.output or done.exception
        loaded = read(Path(name))
        model = Net()
        model.load_state_dict(loaded)
        expected = net(step).state_dict()
        assert loaded.keys() == expected.keys()
        assert all(torch.equal(loaded[key], value) for key, value in expected.items())
    assert [path.name for path in Path.cwd().glob(".*")] == []


def read(path: Path) -> dict[str, torch.Tensor]:
    if path.suffix == ".safetensors":
        return dict(pytest.importorskip("safetensors.torch").load_file(path))
    return dict(torch.load(path, weights_only=True))


def test_averaged_weights_and_another_type(run: Run, tmp_path: Path) -> None:
    path = run.path / "checkpoints" / "latest"
    out = export_weights(path, tmp_path / "a.pt", "torch", average=True, dtype=torch.bfloat16)
    loaded, plain = read(out), net(300).state_dict()
    assert torch.equal(loaded["embed.weight"], (plain["embed.weight"] + 1).bfloat16())
    assert torch.equal(loaded["head.weight"], loaded["embed.weight"])
    assert torch.equal(loaded["norm.running_var"], plain["norm.running_var"].bfloat16())
    assert loaded["norm.num_batches_tracked"].dtype == torch.int64
    assert loaded["embed.weight"].data_ptr() == loaded["head.weight"].data_ptr()  # still tied


def test_a_file_appears_whole_or_not_at_all(run: Run, tmp_path: Path) -> None:
    (tmp_path / "old.pt").write_bytes(b"old")
    store, token = new_store(tmp_path)
    odd = CheckpointState({"model.w": torch.ones(2, dtype=torch.complex128)})
    assert save(store, token, 1, [odd]) == [""]
    with pytest.raises(UsageError, match="--format torch"):
        export_weights(store.folder / "latest", tmp_path / "old.pt", "safetensors")
    assert (tmp_path / "old.pt").read_bytes() == b"old"
    assert not [*tmp_path.glob(".*.part")]
    assert read(export_weights(store.folder / "latest", tmp_path / "w.pt", "torch"))[
        "w"
    ].is_complex()
    with pytest.raises(UsageError, match="without ema"):
        export_weights(store.folder / "latest", tmp_path / "b.pt", "torch", average=True)
    with pytest.raises(UsageError, match="is a folder"):
        export_weights(store.folder / "latest", tmp_path, "torch")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("train", "--export", "x.pt", "--step", "250"),
            r"no checkpoint of step 250.\nThere are: 300, 200, 100",
        ),
        (("train", "--export", "no/such/x.pt"), "cannot be written"),
        (("trian",), "Did you mean train"),
    ],
)
def test_mistakes_are_answered(run: Run, words: tuple[str, ...], message: str) -> None:
    error = call(*words).exception
    assert isinstance(error, AllranksError)
    assert __import__("re").search(message, str(error)), str(error)


def test_options_without_their_partner_are_refused(run: Run) -> None:
    assert "need --export" in call("train", "--step", "100").output
    assert (
        "either --step or --best"
        in call("train", "--export", "x", "--step", "100", "--best").output
    )


def test_a_broken_one_is_not_exported(run: Run) -> None:
    flip(run.path / "checkpoints" / "step-00000300" / "rank-00000.safetensors", -1)
    error = call("train", "--export", "x.pt").exception
    assert "is broken" in str(error)
    assert not Path("x.pt").exists()


def test_two_trainings_of_one_run(run: Run) -> None:
    store = CheckpointStore(run.path / "checkpoints-2")
    token = store.take_over({})
    assert save(store, token, 7, [snapshot(net(7))]) == [""]
    assert "checkpoints-2:" in call("train").output
    assert "Name one" in str(call("train", "--export", "x.pt").exception)
    assert call(str(store.folder), "--export", "x.pt").exit_code == 0
    assert torch.equal(read(Path("x.pt"))["head.bias"], net(7).head.bias)


def test_a_run_without_any(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    made = Run.create(tmp_path / "runs", "bare", scheduler="local", cwd=tmp_path, command=["x"])
    done = call(str(made.path))
    assert done.exit_code == 0
    assert "no checkpoints yet" in done.output
    assert call(str(made.path), "--json").output.strip() == "[]"
    assert "no checkpoints yet" in str(call(str(made.path), "--export", "x.pt").exception)


def test_listing_and_verifying_need_no_torch(run: Run) -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from importlib import util\n"
        "real = util.find_spec\n"
        "util.find_spec = lambda name, *rest: None if name == 'torch' else real(name, *rest)\n"
        f"sys.argv = ['allranks', 'checkpoints', {str(run.path)!r}, *sys.argv[1:]]\n"
        "from allranks.cli import main\n"
        "main()"
    )
    base = [sys.executable, "-c", code]
    done = subprocess.run([*base, "--verify"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("verified") == 3
    done = subprocess.run([*base, "--export", "x"], capture_output=True, text=True, check=False)
    assert done.returncode == 4
    assert "pip install 'allranks[torch]'" in done.stderr
