"""DeepSpeed's configuration: completed and checked, with errors for contradictions. Does not need deepspeed."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from strategies_rig import a_world  # noqa: E402

from allranks.errors import MissingDependencyError, UsageError  # noqa: E402
from allranks.train.strategies import DeepSpeed, StrategyOptions  # noqa: E402
from allranks.train.strategies.deepspeed.config_sections import (  # noqa: E402
    check_batch_size,
    schedule_params,
)
from allranks.train.strategies.deepspeed.deepspeed_setup import (  # noqa: E402
    check_compiler,
    load_deepspeed,
    needed_ops,
)
from allranks.train.strategies.deepspeed.engine_config import (  # noqa: E402
    SharedOptions,
    add_shorthands,
    complete_config,
    read_config,
)

pytestmark = pytest.mark.torch

ADAMW = {"optimizer": "AdamW", "optimizer_params": {"lr": 0.01}}


def settled(
    config: dict[str, Any], **facts: Any
) -> tuple[dict[str, Any], SharedOptions, list[str]]:
    return complete_config(config, SharedOptions(**{**ADAMW, **facts}))


def test_shorthands_mean_sections() -> None:
    assert add_shorthands({}, None, None, None) == {"zero_optimization": {"stage": 1}}
    made = add_shorthands({}, 3, "cpu", "nvme:/scratch")["zero_optimization"]
    assert made == {
        "stage": 3,
        "offload_optimizer": {"device": "cpu"},
        "offload_param": {"device": "nvme", "nvme_path": "/scratch"},
    }
    given = {"bf16": {"enabled": True}}
    assert add_shorthands(given, None, None, None) == given
    with pytest.raises(UsageError, match=r"stage=3\) contradicts zero_optimization.stage = 2"):
        add_shorthands({"zero_optimization": {"stage": 2}}, 3, None, None)
    with pytest.raises(UsageError, match="'nvme:/local/disk'"):
        add_shorthands({}, 3, "nvme", None)


def test_a_file_with_a_stray_comma_is_read_and_told(tmp_path: Path) -> None:
    path = tmp_path / "ds_config.json"
    path.write_text('{\n  "fp16": {\n    "enabled": false, // off\n  }\n}\n')
    config, warned = read_config(path)
    assert config == {"fp16": {"enabled": False}}
    assert any(f"{path}, line 3" in line for line in warned)
    path.write_text('{\n  "fp16": oops\n}')
    with pytest.raises(UsageError, match=r"ds_config.json, line 2, column 11"):
        read_config(path)
    with pytest.raises(UsageError, match="No such file"):
        read_config(tmp_path / "other.json")


def test_auto_is_filled_from_the_training() -> None:
    auto = "auto"
    config = {
        "train_batch_size": auto,
        "train_micro_batch_size_per_gpu": auto,
        "gradient_accumulation_steps": auto,
        "gradient_clipping": auto,
        "bf16": {"enabled": auto},
        "fp16": {"enabled": auto, "loss_scale": 0},
        "optimizer": {"type": "AdamW", "params": {"lr": auto, "betas": auto, "eps": auto}},
        "scheduler": {
            "type": "WarmupDecayLR",
            "params": {"warmup_max_lr": auto, "warmup_num_steps": auto, "total_num_steps": auto},
        },
        "zero_optimization": {"stage": 3, "reduce_bucket_size": auto},
    }
    made, facts, warned = settled(
        config, precision="bf16", accumulate=2, clip_norm=0.5, warmup_steps=10, world=4
    )
    assert warned == []
    assert made["gradient_accumulation_steps"] == 2
    assert made["gradient_clipping"] == 0.5
    assert made["bf16"] == {"enabled": True}
    assert made["fp16"] == {"enabled": False, "loss_scale": 0}
    assert "optimizer" not in made  # the Trainer's
    assert made["scheduler"]["params"] == {"warmup_max_lr": 0.01, "warmup_num_steps": 10}
    assert facts.warmup_steps == 0
    assert schedule_params(made["scheduler"], 77)["total_num_steps"] == 77
    assert made["zero_optimization"] == {"stage": 3}
    assert check_batch_size(made, 8, world=4) == 8
    assert made["train_batch_size"] == 8 * 2 * 4
    assert config["optimizer"]["params"]["lr"] == auto  # what was given is not changed


def test_batch_sizes_that_do_not_fit() -> None:
    made, _, _ = settled({"train_batch_size": 32}, accumulate=2, world=4)
    assert made["train_micro_batch_size_per_gpu"] == 4
    sizes = {"train_batch_size": 32, "train_micro_batch_size_per_gpu": 8}
    with pytest.raises(UsageError) as caught:
        settled(sizes, accumulate=2, world=4)
    assert str(caught.value) == (
        "train_batch_size 32 is not train_micro_batch_size_per_gpu 8 × gradient_accumulation_steps 2 × 4 ranks, "
        "which is 64.\nChange train_batch_size to 64 or train_micro_batch_size_per_gpu to 4; "
        '"auto" is filled in.'
    )
    with pytest.raises(
        UsageError, match=r"30 is not a multiple .* = 8\.\nChange train_batch_size to 24"
    ):
        settled({"train_batch_size": 30}, accumulate=2, world=4)
    with pytest.raises(UsageError, match=r"TrainConfig\(accumulate=4\)"):
        settled({"gradient_accumulation_steps": 4})
    with pytest.raises(UsageError, match=r"yields 16 samples per rank.*\n.*batch_size=4"):
        check_batch_size(made, 16, world=4)


def test_precision_is_said_once() -> None:
    assert settled({"bf16": {"enabled": True}})[1].precision == "bf16"
    assert settled({"bfloat16": {"enabled": True}}, precision="bf16")[0]["bf16"]["enabled"] is True
    with pytest.raises(UsageError, match=r"precision='bf16'\), but .* enables fp16"):
        settled({"fp16": {"enabled": True}}, precision="bf16")
    with pytest.raises(UsageError, match=r'"bf16": \{"enabled": false\}'):
        settled({"bf16": {"enabled": False}}, precision="bf16")
    with pytest.raises(UsageError, match="enables fp16 and bf16"):
        settled({"bf16": {"enabled": True}, "fp16": {"enabled": True}})


def test_one_optimizer_and_one_schedule() -> None:
    section = {"optimizer": {"type": "Adam", "params": {"lr": 0.1, "betas": "auto"}}}
    made, _, _ = settled(section, optimizer=None)
    assert made["optimizer"]["params"] == {"lr": 0.1}
    with pytest.raises(
        UsageError, match="the Trainer's AdamW and the DeepSpeed configuration's Adam"
    ):
        settled(section)
    with pytest.raises(UsageError, match="There is no optimizer, neither"):
        settled({"zero_optimization": {"stage": 2}}, optimizer=None)
    with pytest.raises(UsageError, match='lr is "auto"'):
        settled({"optimizer": {"type": "Adam", "params": {"lr": "auto"}}}, optimizer=None)
    with pytest.raises(UsageError, match=r"Adafactor with ZeRO stage 1: .* flat partitions"):
        settled({"zero_optimization": {"stage": 1}}, optimizer="Adafactor")
    with pytest.raises(UsageError, match="would both change the learning rate"):
        settled({"scheduler": {"type": "WarmupLR"}}, warmup_steps=5)
    with pytest.raises(UsageError, match="Did you mean 'WarmupLR'"):
        settled({"scheduler": {"type": "WarmUpLR"}})


def test_clipping_and_unknown_words() -> None:
    assert settled({"gradient_clipping": 1.0})[1].clip_norm == 1.0
    with pytest.raises(UsageError, match=r"clip_norm=0.5\), but gradient_clipping is 1.0"):
        settled({"gradient_clipping": 1.0}, clip_norm=0.5)
    warned = settled({"zero_optimisation": {"stage": 2}})[2]
    assert warned == [
        "DeepSpeed does not know 'zero_optimisation' in its configuration. "
        "Did you mean 'zero_optimization'?"
    ]
    with pytest.raises(UsageError, match="must be 0, 1, 2 or 3"):
        settled({"zero_optimization": {"stage": 4}})
    with pytest.raises(UsageError, match="needs ZeRO 3, but"):
        settled({"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}})


def test_what_cannot_be_done_is_refused_with_a_reason() -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    for options, wish, reason in (
        ({"stage": 3}, "ema", "ZeRO 3 has no whole weights"),
        ({"stage": 1, "precision": "bf16"}, "ema", "too coarse to average"),
        ({"stage": 2}, "before_step", "DeepSpeed's buffers"),
        ({"stage": 0}, "several optimizers", "one optimizer"),
        ({"config": {"scheduler": {"type": "WarmupLR"}}}, "scheduler", "has a scheduler"),
    ):
        strategy = DeepSpeed(**options)
        strategy.resolve_options(StrategyOptions(), [optimizer], a_world(0, 1))
        assert reason in strategy.unsupported_reason(wish), wish
    strategy = DeepSpeed(stage=1)
    decided = strategy.resolve_options(StrategyOptions(clip_norm=0.5), [optimizer], a_world(0, 1))
    assert (decided.clip_norm, decided.precision) == (0.5, "fp32")
    assert not any(map(strategy.unsupported_reason, ("ema", "scheduler", "lr_scaling", "fused")))


def test_a_missing_package_is_told_with_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deepspeed", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'allranks\[deepspeed\]'"):
        load_deepspeed("cpu")
    ops = needed_ops(
        {
            "optimizer": {"type": "AdamW"},
            "zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}},
        }
    )
    assert set(ops) == {"fused_adam", "async_io"}
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    nothing = SimpleNamespace(ops=SimpleNamespace(__installed_ops__={}))
    with pytest.raises(MissingDependencyError, match=r"its fused_adam for .* g\+\+ and ninja"):
        check_compiler(nothing, ops)
