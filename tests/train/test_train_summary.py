"""The table of a model: what it counts, what it folds, and that it fits."""

from __future__ import annotations

import pytest

from allranks.train.monitoring.model_summary import summarize

torch = pytest.importorskip("torch")
nn = torch.nn
pytestmark = pytest.mark.torch


class Block(nn.Module):
    def __init__(self, size: int = 8) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(size, 2 * size), nn.Linear(2 * size, size)


class Net(nn.Module):
    """An embedding tied to the head, blocks, and a parameter of its own."""

    def __init__(self, blocks: int = 12) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, 8)
        self.place = nn.Parameter(torch.zeros(5, 8), requires_grad=False)
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        self.body = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
        self.head = nn.Linear(8, 100, bias=False)
        self.head.weight = self.embed.weight


def row(text: str, name: str) -> list[str]:
    """The words of the line that begins with this name."""
    found = [line.split() for line in text.splitlines() if line.strip().startswith(name)]
    assert len(found) == 1, text
    return found[0]


def test_repeated_blocks_take_one_line() -> None:
    text = summarize(Net())
    line = row(text, "blocks.0")
    assert line[:6] == ["blocks.0", "…", "blocks.11", "12", "×", "Block"]
    assert line[6] == str(12 * (8 * 16 + 16 + 16 * 8 + 8))


def test_blocks_that_differ_are_not_folded_together() -> None:
    net = Net(3)
    net.blocks.append(Block(4))
    net.blocks[0].requires_grad_(False)
    text = summarize(net)
    assert row(text, "blocks.0")[1] == "Block"
    assert row(text, "blocks.1")[:3] == ["blocks.1", "…", "blocks.2"]
    assert row(text, "blocks.3")[1] == "Block"


def test_tied_weights_count_once_and_frozen_ones_are_not_trainable() -> None:
    net = Net(1)
    text = summarize(net)
    assert row(text, "head") == ["head", "Linear", "tied"]
    assert row(text, "place")[:4] == ["place", "Parameter", "40", "0"]
    total = sum(parameter.numel() for parameter in net.parameters())
    assert row(text, "Net")[1:3] == [str(total), str(total - 40)]
    assert f"{total * 4 / 1024:.2f} KiB float32" in text


def test_depth_decides_what_is_shown() -> None:
    assert "ReLU" in summarize(Net())
    assert "ReLU" not in summarize(Net(), depth=1)
    assert "down" not in summarize(Net())
    assert "down" in summarize(Net(1), depth=2)


def test_sizes_are_told_by_type_and_buffers_apart() -> None:
    net = nn.Sequential(nn.Linear(512, 512).bfloat16(), nn.Linear(512, 512), nn.BatchNorm1d(512))
    last = summarize(net).splitlines()[-1]
    assert last == "Weights: 513 KiB bfloat16, 1.01 MiB float32; buffers: 4.01 KiB"


def test_meta_models_count_like_real_ones() -> None:
    with torch.device("meta"):
        text = summarize(Net())
    assert text == summarize(Net())


def test_lazy_layers_are_marked_unknown() -> None:
    text = summarize(nn.Sequential(nn.Linear(2, 2), nn.LazyLinear(4), nn.LazyBatchNorm1d()))
    assert row(text, "1")[2] == "+"
    assert row(text, "Sequential")[1:3] == ["6", "+"]
    assert text.endswith("from the first batch.")


def test_models_without_layers_or_parameters_have_a_table() -> None:
    assert row(summarize(nn.Linear(2, 3)), "Linear")[1] == "9"
    assert row(summarize(nn.ReLU()), "ReLU") == ["ReLU", "0"]


def test_compiled_models_are_shown_as_their_own() -> None:
    assert summarize(torch.compile(Net())) == summarize(Net())


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_no_line_is_wider_than_asked(depth: int) -> None:
    long = type("AVeryLongNameForALayerThatNobodyShouldEverWrite", (Net,), {})
    net = nn.ModuleDict({"a_very_long_name_for_a_layer_" * 3: long(), "other": Net()})
    text = summarize(nn.Sequential(net, Net()), depth)
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "…" in text
