"""TF_CONFIG, by which TensorFlow's workers find each other."""

from __future__ import annotations

import json


def tf_config(workers: list[str], rank: int) -> str:
    """Return TF_CONFIG for one worker; ``workers`` holds a ``host:port`` for each rank."""
    task = {"type": "worker", "index": rank}
    return json.dumps({"cluster": {"worker": workers}, "task": task})
