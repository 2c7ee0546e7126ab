"""What a sandbox can be asked for, before anything is started."""

from __future__ import annotations

from typing import Any

import pytest

from allranks.cluster.sandbox import SandboxConfig
from allranks.errors import SandboxError


def test_the_defaults_suit_a_laptop() -> None:
    assert SandboxConfig().describe_node() == "8 CPUs, 4000 MiB, 4 × a100"


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"gpus": 0}, "8 CPUs, 4000 MiB"),
        ({"cpus": 1, "gpu_type": ""}, "1 CPU, 4000 MiB, 4 × GPU"),
    ],
)
def test_a_node_in_words(asked: dict[str, Any], text: str) -> None:
    assert SandboxConfig(**asked).describe_node() == text


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"nodes": 0}, "nodes=0; it takes 1 to 100"),
        ({"nodes": 101}, "1 to 100"),
        ({"gpus": -1}, "gpus=-1"),
        ({"port": 80}, "port=80"),
        ({"isolation": "vm"}, "auto, plain, hosts, network"),
        ({"gpu_env": "intel"}, "nvidia, amd"),
        ({"gpu_type": "a 100"}, "'a 100'"),
        ({"settings": {"NodeName": "x"}}, "nodes, cpus, memory and gpus"),
        ({"settings": {"slurmctldport": "1"}}, "Use port instead"),
        ({"settings": {"KillWait": "3\nMaxJobs=1"}}, "not one line"),
        ({"settings": {"Kill Wait": "3"}}, "not one line"),
    ],
)
def test_a_wrong_value_is_named_with_the_right_ones(asked: dict[str, Any], words: str) -> None:
    with pytest.raises(SandboxError) as caught:
        SandboxConfig(**asked)
    assert words in str(caught.value)


def test_plain_values_make_the_same_config_again() -> None:
    config = SandboxConfig(nodes=3, settings={"KillWait": "9"})
    assert SandboxConfig(**config.as_dict()) == config
