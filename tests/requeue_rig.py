"""Trainings without torch that leave and go on, and how their attempts are read."""

from __future__ import annotations

import json
from typing import Any

from command_rig import Allranks

STEPS = """
import json, os, pathlib, sys, time
run, attempt = (pathlib.Path(os.environ[f"ALLRANKS_{name}_DIR"]) for name in ("RUN", "ATTEMPT"))
saved, total = run / "saved", int(sys.argv[1])
first = int(saved.read_text()) if saved.exists() else 0
step = min(first + int(sys.argv[2]), total)
done = step == total
began = time.time()
time.sleep(0.5)
saved.write_text(str(step))
progress = {"first_step": first, "step": step, "began": began, "updated": time.time(), "total_steps": total,
            "saved_step": step, "outcome": "finished" if done else "interrupted"}
(attempt / "progress.json").write_text(json.dumps(progress))
print(f"steps {first} to {step} in {attempt.name}", flush=True)
if not done:
    (attempt / "interrupted").write_text("the time limit came near\\n")
"""
"""Each attempt goes on from the last checkpoint, a number in a file: arguments are the steps in all, and
those of one attempt."""

LEAVES = """
import os, pathlib, signal, sys, time
attempt = pathlib.Path(os.environ["ALLRANKS_ATTEMPT_DIR"])
def leave(number, frame):
    (attempt / "interrupted").write_text("it was told to leave\\n")
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
print("up", attempt.name, flush=True)
time.sleep(1 if attempt.name == sys.argv[1] else 600)
"""
"""Saves and leaves when it is told to; the attempt of that number ends by itself."""


def attempts(slurm: Allranks, run: str = "last") -> dict[str, Any]:
    done = slurm("ps", "--attempts", "--json", run)
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)
    return found
