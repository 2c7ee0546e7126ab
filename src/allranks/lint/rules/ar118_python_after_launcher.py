"""``torchrun python train.py``: the launcher starts Python by itself."""

from __future__ import annotations

import re
from collections.abc import Iterator

from allranks.lint.finding import ERROR, WARNING, Edit, Finding
from allranks.lint.job_script import JobScript
from allranks.lint.launch_commands import ACCELERATE, DEEPSPEED, LAUNCH, TORCHRUN
from allranks.lint.rule import Rule, example

RULE = Rule(
    id="AR118",
    name="python-after-launcher",
    title="The launcher takes python for the name of your script",
    why="""torchrun, accelerate launch and deepspeed start Python by themselves, and the first word that is no
    option is the script. With python there they look for a file called python, and stop. Another program
    than Python needs --no_python.""",
    severity=ERROR,
    symptoms=("can't open file 'python'", "stops at once"),
    bad=example("torchrun --nproc_per_node=4 python train.py", "--nodes=1", "--gres=gpu:4"),
    good=example("torchrun --nproc_per_node=4 train.py", "--nodes=1", "--gres=gpu:4"),
    clean=(
        example("torchrun --nproc_per_node=4 --no-python python train.py", "--nodes=1", "--gres=gpu:4"),
        example("deepspeed --num_gpus 4 --no_local_rank --no_python python train.py", "--gres=gpu:4"),
        example("torchrun --nproc_per_node=4 python.py", "--gres=gpu:4"),
        example("horovodrun -np 4 python train.py", "--gres=gpu:4"),
        example("mpirun -np 4 python train.py", "--gres=gpu:4"),
    ),
)  # fmt: skip
_PYTHON = re.compile(r"^(\S*/)?python[\d.]*$")


def check(job: JobScript) -> Iterator[Finding]:
    """Launchers whose script is called python."""
    for launch in job.launches:
        script = launch.script
        if launch.kind not in (TORCHRUN, LAUNCH, ACCELERATE, DEEPSPEED) or script is None:
            continue
        if launch.options.has("no-python") or launch.module:
            continue
        if not _PYTHON.match(script.text or "") or not launch.args:
            continue
        plain = script.span.text == script.text
        yield RULE.at(
            script.span,
            f"{launch.written} starts Python itself: it looks for a script called {script.text}.",
            help=f"Leave out {script.text}, or write --no_python before it.",
            fix=[Edit(script.span.to(launch.args[0].span), launch.args[0].span.text)]
            if plain
            and launch.args[0].span.source is script.span.source
            and not launch.args[0].start.startswith("-")
            else (),
            severity=ERROR if launch.certain else WARNING,
        )
