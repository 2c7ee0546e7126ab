"""``hostname -i`` and ``-I`` print addresses that may be the wrong ones."""

from __future__ import annotations

import re
from collections.abc import Iterator

from allranks.lint.command_calls import Call
from allranks.lint.finding import NOTE, WARNING, Finding
from allranks.lint.job_script import JobScript
from allranks.lint.rule import Rule, example
from allranks.lint.rules.addresses import addresses
from allranks.lint.shell.model import Substitution, Word

RULE = Rule(
    id="AR202",
    name="several-addresses",
    title="hostname prints several addresses, or the wrong one",
    why="""hostname -I prints all addresses of the node in no fixed order (management, InfiniBand, docker0),
    and hostname -i what the name resolves to: often 127.0.1.1, or several in a row. With more than one the
    endpoint is not an address; with the wrong one the other nodes cannot reach it. The name of the node
    from scontrol works in its place.""",
    symptoms=("hangs at init", "Name or service not known", "Connection refused"),
    bad=example(
        'head=$(scontrol show hostnames | head -n 1)\nip=$(srun -N1 -n1 -w "$head" hostname --ip-address)\n'
        "srun torchrun --nnodes=2 --rdzv_backend=c10d --rdzv_endpoint=$ip:29500 train.py",
        "--nodes=2",
    ),
    good=example(
        "head=$(scontrol show hostnames | head -n 1)\n"
        "srun torchrun --nnodes=2 --rdzv_backend=c10d --rdzv_endpoint=$head:29500 train.py",
        "--nodes=2",
    ),
    clean=(
        example("echo address: $(hostname -I)\nsrun python train.py", "--nodes=2"),
        example("export MASTER_ADDR=$(hostname)\nsrun python train.py", "--nodes=2"),
    ),
)
_FLAGS = ("-i", "-I", "--ip-address", "--all-ip-addresses")
_CUTS = ("awk", "cut", "head", "sed", "grep", "tr")


def check(job: JobScript) -> Iterator[Finding]:
    """Values that come from hostname's addresses; what is only printed does no harm."""
    for call in job.calls:
        for item in call.assignments:
            words = [item.value] if item.value is not None else list(item.array or ())
            for asked in (each for word in words for each in _asked(word)):
                yield from _finding(job, asked, item.name)

    for rendezvous in addresses(job):
        for asked in _asked(rendezvous.word):
            yield from _finding(job, asked, "the address")


def _asked(word: Word) -> Iterator[Call]:
    for part in word.parts:
        if isinstance(part, Substitution):
            for call in part.calls[:1]:
                if call.name == "hostname" and any(
                    (each.text or "") in _FLAGS for each in call.args
                ):
                    yield call


def _finding(job: JobScript, call: Call, name: str) -> Iterator[Finding]:
    if not re.search(r"addr|ip|master|head|host|node|rdzv", name, re.I):
        return
    flag = next(each.text or "" for each in call.args if (each.text or "") in _FLAGS)
    cut = any(each.name in _CUTS for each in call.piped_to)
    if cut:
        text = f"hostname {flag} lists the interfaces in no fixed order; the first may not reach the other nodes."
    else:
        text = f"hostname {flag} may print several addresses, or 127.0.1.1; {name} is then no address to meet at."
    several = job.allocation.several_nodes
    yield RULE.at(
        call.span,
        text,
        help='Use the node\'s name: $(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        severity=WARNING if several and not cut else NOTE,
    )
