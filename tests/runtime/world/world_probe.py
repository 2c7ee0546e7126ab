"""Started by the tests under each launcher: say who I am, add up with the others.

One write per process, so that lines of several ranks do not mix.
"""

import json
import os
import sys
import warnings

import allranks.runtime.world as aw

warnings.simplefilter("ignore")
before = aw.world()
backends = [word for word in sys.argv[1:] if word in ("gloo", "nccl")]
after = aw.init(backends[0] if backends else None, timeout=60)
assert aw.init() is after

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

value = torch.tensor([float(after.rank + 1)])
dist.all_reduce(value)
told = {
    "rank": after.rank,
    "size": after.size,
    "local": after.local_rank,
    "launcher": before.launcher,
    "sum": value.item(),
    "port": after.master_port,
    "given": before.port_is_given,
    "env": os.environ["RANK"],
    "backend": dist.get_backend(),
}
os.write(1, (json.dumps(told) + "\n").encode())
if "raise" in sys.argv:
    raise RuntimeError("a rank that fails")
