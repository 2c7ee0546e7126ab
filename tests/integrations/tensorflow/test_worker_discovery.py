"""Workers that find each other: over real sockets, without TensorFlow."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from allranks.errors import WorldError
from allranks.integrations.tensorflow.worker_strategy import set_tf_config
from allranks.runtime.agent import rank_environment as agent
from allranks.runtime.agent.rank_environment import RankPlacement
from allranks.runtime.world.detection import detect
from allranks.runtime.world.endpoints import derived_port
from allranks.runtime.world.model import World
from allranks.runtime.world.tf_config import discover_workers, is_free, reserve_port, worker_host


def _world(rank: int, size: int = 3, port: int = 24000, nodes: int = 1) -> World:
    text = f"rank={rank},size={size},nodes={nodes},master_addr=127.0.0.1,master_port={port}"
    return detect({"ALLRANKS_WORLD": text})


def _all(launch: str, size: int, port: int = 24000) -> list[list[str]]:
    with ThreadPoolExecutor(size) as pool:
        return list(
            pool.map(lambda r: discover_workers(_world(r, size, port), launch, 20), range(size))
        )


def test_all_get_the_same_list_of_different_free_ports() -> None:
    lists = _all("one", 4)
    assert lists.count(lists[0]) == 4
    assert len(set(lists[0])) == 4
    ports = [int(each.rpartition(":")[2]) for each in lists[0]]
    assert all(each.startswith("127.0.0.1:") for each in lists[0])
    assert all(20000 <= port <= 32767 and is_free(port) for port in ports)
    assert 24000 not in ports


def test_two_launches_at_once_do_not_mix() -> None:
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda port: _all("same user", 2, port), (24000, 24100))
    assert first[0] == first[1]
    assert second[0] == second[1]
    assert not set(first[0]) & set(second[0])


def test_missing_workers_are_named() -> None:
    with pytest.raises(WorldError, match=r"2 of 3 workers did not connect to .*: 1, 2"):
        discover_workers(_world(0), "lonely", 0.2)
    with pytest.raises(WorldError, match=r"did not find worker 0 at 127.0.0.1"):
        discover_workers(_world(1), "lonely", 0.2)


def test_a_reserved_port_is_nobody_elses() -> None:
    start = derived_port("reserve")
    with reserve_port(start, _world(0)) as first, reserve_port(start, _world(1)) as second:
        assert first != second
        assert not is_free(first)


def test_the_first_node_is_known_by_the_address_that_all_were_given() -> None:
    assert worker_host(_world(0, 4, nodes=2)) == worker_host(_world(1, 4, nodes=2)) == "127.0.0.1"
    assert worker_host(_world(3, 4)) == "127.0.0.1"


def test_tf_config_is_made_once_and_one_that_is_there_stays() -> None:
    envs: list[dict[str, str]] = [{}, {}]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda rank: set_tf_config(_world(rank, 2), 20, envs[rank]), range(2)))
    first, second = (json.loads(env["TF_CONFIG"]) for env in envs)
    assert first["cluster"] == second["cluster"]
    assert (first["task"]["index"], second["task"]["index"]) == (0, 1)
    kept = dict(envs[1])
    set_tf_config(_world(1, 2), 0.1, kept)
    assert kept == envs[1]


def test_a_port_that_is_taken_is_an_error_that_names_it() -> None:
    with reserve_port(derived_port("taken"), _world(0)) as port:
        config = {"cluster": {"worker": [f"a:{port}"]}, "task": {"type": "worker", "index": 0}}
        with pytest.raises(WorldError, match=rf"listen at a:{port} .*another program"):
            set_tf_config(_world(0, 2), 1, {"TF_CONFIG": json.dumps(config)})


def test_workers_are_reached_past_a_web_proxy() -> None:
    workers = [f"node{n}:{derived_port('proxy')}" for n in (1, 1, 2)]
    config = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": 0}}
    env = {"TF_CONFIG": json.dumps(config), "http_proxy": "http://p:3128", "no_proxy": "localhost"}
    set_tf_config(_world(0), 1, env)
    assert env["no_grpc_proxy"] == "localhost,node1,node2"
    env = {"TF_CONFIG": json.dumps(config)}
    set_tf_config(_world(0), 1, env)
    assert "no_grpc_proxy" not in env


@pytest.mark.parametrize("per_node", [1, 2])
def test_an_agent_speaks_for_the_ranks_of_its_node(
    per_node: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent, "_node_workers", {})

    def node(number: int) -> list[str]:
        return [
            agent.tensorflow_variables(
                RankPlacement(number * per_node + local, 2 * per_node, local, per_node, number, 2,
                      "127.0.0.1", 24000 + per_node, "x", "fork", ""), {}
            )["TF_CONFIG"]
            for local in range(per_node)
        ]  # fmt: skip

    with ThreadPoolExecutor(2) as pool:
        configs = [json.loads(text) for texts in pool.map(node, range(2)) for text in texts]
    assert [config["task"]["index"] for config in configs] == list(range(2 * per_node))
    assert all(config["cluster"] == configs[0]["cluster"] for config in configs)
    assert len(set(configs[0]["cluster"]["worker"])) == 2 * per_node


def test_a_node_without_gpus_is_counted_for_the_resolver(tmp_path: Path) -> None:
    step = {"SLURM_STEP_ID": "0", "PATH": "/nowhere"}
    assert agent.resolver_devices(2, step, tmp_path) == {"CUDA_VISIBLE_DEVICES": "0,1"}
    assert agent.resolver_devices(2, {**step, "CUDA_VISIBLE_DEVICES": ""}, tmp_path) == {}
    assert agent.resolver_devices(2, {"PATH": "/nowhere"}, tmp_path) == {}
    (tmp_path / "dev/kfd").mkdir(parents=True)
    assert agent.resolver_devices(2, step, tmp_path) == {}


def test_horovod_is_given_the_keras_that_it_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    assert agent.legacy_keras({}) == {"TF_USE_LEGACY_KERAS": "1"}
    assert agent.legacy_keras({"TF_USE_LEGACY_KERAS": "0"}) == {}
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert agent.legacy_keras({}) == {}
