"""A server in the background that wait waits for."""

from __future__ import annotations

import re
from collections.abc import Iterator

from allranks.lint.command_calls import Call
from allranks.lint.finding import WARNING, Finding
from allranks.lint.job_script import JobScript
from allranks.lint.rule import Rule, example

RULE = Rule(
    id="AR408",
    name="never-ends",
    title="The job waits for something that never ends",
    why="""wait without an argument waits for everything in the background. A server or a monitor there does
    not end by itself, so the job stands until its time limit, with its GPUs idle, and counts as TIMEOUT.""",
    symptoms=("the job runs until its time limit", "GPUs idle"),
    bad=example("nvidia-smi dmon > gpu.log &\nsrun python train.py &\nwait", "--nodes=1"),
    good=example(
        "nvidia-smi dmon > gpu.log &\nmonitor=$!\nsrun python train.py\nkill $monitor", "--nodes=1"
    ),
    clean=(
        example("python server.py &\nsrun python client.py\nkill %1\nwait", "--nodes=1"),
        example("srun python train.py &\nwait", "--nodes=1"),
        example(
            "uv run uvicorn api:app &\nserver=$!\nsrun python train.py\nkill $server", "--nodes=1"
        ),
        example("tensorboard --logdir x &\nsrun python train.py", "--nodes=1"),
    ),
)
_ENDLESS = frozenset({"tensorboard", "redis-server", "watch", "vmstat", "iostat", "dstat", "sar", "mlflow", "jupyter",
                      "nvitop", "jupyter-lab", "uvicorn", "gunicorn", "vllm-serve"})  # fmt: skip
_SERVER = re.compile(r"server|monitor|daemon|\bserve\b", re.I)


def check(job: JobScript) -> Iterator[Finding]:
    """A bare ``wait`` after something endless, with nothing that ends it."""
    if any(call.name in ("kill", "pkill", "killall", "scancel", "timeout") for call in job.calls):
        return
    endless = [
        call for call in job.calls if call.background and not call.loop and _is_endless(call)
    ]
    waits = [call for call in job.named("wait") if not call.args and call.inside != "trap"]
    for call in waits[:1]:
        before = [each for each in endless if each.span.start < call.span.start]
        if before:
            yield RULE.at(
                call.span,
                f"wait waits for {before[0].name or 'the server'} of line {before[0].span.line} too, which does not "
                "end by itself.",
                help="Keep its number (server=$!), wait for the training alone, and kill $server at the end.",
                severity=WARNING,
                related=[before[0].span],
            )


def _is_endless(call: Call) -> bool:
    if call.name in _ENDLESS:
        return True
    words = [word.shown for word in call.args]
    if call.name in ("nvidia-smi", "rocm-smi"):
        return any(
            word in ("dmon", "pmon", "-l") or word.startswith(("--loop", "-l", "-lms"))
            for word in words
        )
    if call.name in ("vllm", "ollama", "trl", "sglang", "ray"):
        return any(word in ("serve", "vllm-serve", "--block") for word in words[:8])
    return call.name in ("python", "python3") and any(_SERVER.search(word) for word in words[:3])
