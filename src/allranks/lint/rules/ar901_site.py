"""What the cluster does not have."""

from __future__ import annotations

from collections.abc import Iterator

from allranks.core.units import parse_memory, parse_time
from allranks.errors import SiteError, UsageError
from allranks.lint.finding import ERROR, Finding
from allranks.lint.job_script import JobScript
from allranks.lint.rule import Rule, example
from allranks.lint.source_text import Span

RULE = Rule(
    id="AR901",
    name="does-not-fit",
    title="The cluster has no such nodes",
    why="""The site file lists the partitions, the GPUs, CPUs and memory of their nodes, and the longest time.
    A job that asks for more is refused by sbatch, or waits in the queue for ever. Checked with --site NAME,
    and on a cluster that a site file describes.""",
    severity=ERROR,
    symptoms=(
        "Requested node configuration is not available",
        "the job waits for ever",
        "Invalid partition name",
    ),
    bad=example(
        "srun python train.py", "--partition=grete", "--nodes=1", "--gpus-per-node=A100:16"
    ),
    good=example(
        "srun python train.py", "--partition=grete", "--nodes=1", "--gpus-per-node=A100:4"
    ),
)
_PLACES = {
    "partition": ("partition",), "gpus": ("gpus-per-node", "gres", "gpus-per-task", "gpus"), "nodes": ("nodes",),
    "cpus": ("cpus-per-task",), "memory": ("mem",), "time": ("time",),
}  # fmt: skip


def check(job: JobScript) -> Iterator[Finding]:
    """The directives against the site."""
    from allranks.cluster.sites.partition_fit import ResourceRequest, select_partition

    site, ask = job.site, job.allocation
    if site is None or not job.directives.lines or not ask.known or ask.nodes is None:
        return
    cpus, tasks = ask.cpus_per_task, ask.tasks_per_node
    request = ResourceRequest(
        nodes=ask.nodes,
        gpus_per_node=ask.gpus_per_node or 0,
        gpu_type=ask.gpu_type,
        cpus_per_node=cpus * tasks if cpus and tasks else None,
        memory_per_node=_memory(job),
        time=_time(job),
        partition=ask.text("partition"),
    )
    try:
        select_partition(site, request)
    except SiteError as error:
        first, _, rest = str(error).partition("\n")
        yield RULE.at(_place(job, first), first, help=rest.replace("--memory", "--mem"))
    for name in site.requires:
        if not ask.options.has(name):
            yield RULE.at(
                job.directives.lines[0].span,
                f"Site {site.name} wants --{name}, which the script does not give.",
                help=f"Add #SBATCH --{name}=…",
            )


def _memory(job: JobScript) -> int | None:
    try:
        return parse_memory(job.option("mem") or "")
    except UsageError:
        return None


def _time(job: JobScript) -> int | None:
    try:
        return parse_time(job.option("time") or "")
    except UsageError:
        return None


def _place(job: JobScript, message: str) -> Span:
    """The directive that the message is about."""
    words = {
        "GPU": "gpus",
        "node": "nodes",
        "CPU": "cpus",
        "memory": "memory",
        "no partition": "partition",
    }
    order = ("no partition", "GPU", "CPU", "memory", "node")
    kind = next((words[word] for word in order if word in message.partition(", but")[0]), "time")
    option = job.allocation.options.find(*_PLACES[kind]) or job.allocation.options.find("partition")
    return option.span if option is not None else job.directives.lines[0].span
