"""Horovod's and TensorFlow's own variables."""

from __future__ import annotations

import json
from typing import Any

from allranks.errors import WorldError
from allranks.runtime.world.endpoints import split_endpoint
from allranks.runtime.world.env_variables import Env, first_set, read_int, require_int
from allranks.runtime.world.model import DetectedRank


def read_horovod(env: Env) -> DetectedRank | None:
    """horovodrun with gloo. (With MPI, mpirun's own variables are there.)

    HOROVOD_GLOO_RENDEZVOUS_ADDR is where horovodrun runs, which need not be rank 0's node.
    """
    if not first_set(env, "HOROVOD_RANK"):
        return None
    rank, size = require_int(env, "HOROVOD_RANK"), require_int(env, "HOROVOD_SIZE")
    local_rank = require_int(env, "HOROVOD_LOCAL_RANK")
    local_size = require_int(env, "HOROVOD_LOCAL_SIZE")
    cross_rank, cross_size = (
        read_int(env, "HOROVOD_CROSS_RANK"),
        read_int(env, "HOROVOD_CROSS_SIZE"),
    )
    return DetectedRank(
        rank=rank,
        size=size,
        local_rank=local_rank,
        local_size=local_size,
        node_rank=cross_rank if cross_rank is not None else (rank - local_rank) // local_size,
        nodes=cross_size or -(-size // local_size),
        launcher="horovod",
        reason=f"horovod (HOROVOD_RANK={rank}, HOROVOD_SIZE={size})",
        rank_name="HOROVOD_RANK",
        size_name="HOROVOD_SIZE",
    )


def read_tensorflow(env: Env) -> DetectedRank | None:
    """TF_CONFIG: the chief, then the workers, in the order of the list; hosts give the nodes."""
    text = env.get("TF_CONFIG", "").strip()
    if not text:
        return None
    workers, rank = _workers(text)
    if not workers:
        return None
    hosts = [split_endpoint(worker)[0] for worker in workers]
    order = list(dict.fromkeys(hosts))
    return DetectedRank(
        rank=rank,
        size=len(hosts),
        local_rank=hosts[:rank].count(hosts[rank]),
        local_size=hosts.count(hosts[rank]),
        node_rank=order.index(hosts[rank]),
        nodes=len(order),
        launcher="tensorflow",
        reason=f"tensorflow (TF_CONFIG: worker {rank} of {len(hosts)})",
        master_addr=hosts[0],
        rank_name="the task in TF_CONFIG",
        size_name="the workers in TF_CONFIG",
    )


def _workers(text: str) -> tuple[list[str], int]:
    """All workers' addresses and this one's index; no workers where TF_CONFIG names no cluster."""
    try:
        config: dict[str, Any] = json.loads(text)
        cluster, task = config.get("cluster") or {}, config.get("task") or {}
        chiefs = list(cluster.get("chief") or cluster.get("master") or [])
        workers = chiefs + list(cluster.get("worker") or [])
        if not workers:
            return [], 0
        kind, index = str(task["type"]), int(task["index"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise WorldError(
            f"TF_CONFIG={text} cannot be read ({type(error).__name__}: {error}). It must look like "
            '{"cluster": {"worker": ["host:port", …]}, "task": {"type": "worker", "index": 0}}.'
        ) from None
    if kind not in ("chief", "master", "worker"):
        raise WorldError(
            f"TF_CONFIG makes this process a '{kind}', which trains no replica and so has no rank. "
            "Call allranks.world only in the chief and the workers."
        )
    rank = index + (len(chiefs) if kind == "worker" else 0)
    if rank >= len(workers):
        raise WorldError(f"TF_CONFIG names {kind} {index}, but only {len(workers)} workers in all.")
    return workers, rank
