"""Derivation of the values that the user did not set, each with its reason.

By default there is one rank per GPU, and a job gets CPUs and memory of a node in proportion to its GPUs.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from allranks.cluster.sites.model import NodeShape, Site
from allranks.cluster.sites.partition_fit import (
    NodeShare,
    ResourceRequest,
    select_node_shape,
    select_partition,
    share_of_node,
)
from allranks.core.python_imports import ImportScan, scan
from allranks.core.units import Gpus
from allranks.errors import JobError
from allranks.job.config_sources import Origin
from allranks.job.fields import Job, flag
from allranks.job.launchers import LAUNCHERS, Launcher
from allranks.job.plan import JobShape, Plan

NO_GPUS = Gpus(0)


class Derivation:
    """Derives the missing values of one job and records the origin of each."""

    def __init__(
        self, job: Job, origins: dict[str, Origin], site: Site | None, on_cluster: bool
    ) -> None:
        self.job = job
        self.origins = dict(origins)
        self.site = site
        if site is not None and job.partition is None and site.default_partition:
            self.job = replace(job, partition=site.default_partition)
            self.origins["partition"] = Origin(f"site {site.name}", "its default")
        self.on_cluster = on_cluster
        self.notes: list[str] = []

    def plan(self) -> Plan:
        """Derive the values in the order in which they depend on each other."""
        job = self.job
        if not job.script:
            raise JobError("No script was given. Name one: allranks submit train.py")
        self.imports = self._scan(job.script)
        self.framework = self._framework()
        self.launcher = self._launcher()
        if self.on_cluster:
            self.launcher.check(job)
        nodes = job.nodes or self._derive("nodes", 1, "the default")
        gpus = self._gpus()
        ranks = self._ranks(nodes, gpus)
        tasks = self._tasks(ranks)
        if job.gpus_per_task:
            gpus = Gpus(job.gpus_per_task.count * tasks, job.gpus_per_task.type)
            self._derive("gpus_per_node", gpus, f"{job.gpus_per_task.count} × {tasks} tasks")
        shape = self._resources(JobShape(nodes, ranks, tasks, gpus))
        self._compare_ranks_with_gpus(shape)
        self.notes += requeue_notes(job)
        if self.site is not None and self.on_cluster:
            self._check_site(self.site, shape)
        name = job.name or self._derive("name", _stem(job.script), "the script's name")
        return Plan(
            job=replace(job, name=name),
            shape=shape,
            launcher=self.launcher,
            site=self.site,
            origins=self.origins,
            notes=tuple(self.notes),
            imports=self.imports,
            framework=self.framework,
            script_in_folder=Path(job.chdir or ".", job.script).is_file(),
            local_rank_option=self._local_rank_option(),
        )

    def _derive(self, name: str, value: Any, why: str) -> Any:
        self.origins[name] = Origin("derived", why)
        return value

    def _scan(self, script: str) -> ImportScan | None:
        path = Path(self.job.chdir or ".", script)
        return scan(path) if not self.job.module and path.is_file() else None

    def _local_rank_option(self) -> str | None:
        """Return the script's spelling of the option that older launchers pass, if it has one."""
        for path in self.imports.files if self.imports else ():
            text = path.read_text("utf-8", "replace")
            for word in ("local_rank", "local-rank"):
                if f"--{word}" in text:
                    return word
        return None

    def _framework(self) -> str | None:
        asked = self.job.framework or "auto"
        if asked != "auto":
            return None if asked == "none" else asked
        found = self.imports.framework if self.imports else None
        return self._derive("framework", found, f"{self.job.script} imports it") if found else None

    def _launcher(self) -> Launcher:
        job, asked = self.job, self.job.launcher or "auto"
        if asked != "auto":
            return LAUNCHERS[asked]
        if not self.on_cluster:
            return LAUNCHERS[self._derive("launcher", *self._local_launcher())]
        name, why = "srun", "Slurm starts, binds and ends one task per rank"
        if self.framework == "horovod":
            name, why = "horovod", f"{job.script} imports horovod"
        elif job.tasks_per_node == 1 and self._several_ranks():
            name, why = "torchrun", "--tasks-per-node 1 with several ranks per node"
        return LAUNCHERS[self._derive("launcher", name, why)]

    def _local_launcher(self) -> tuple[str, str]:
        if self.framework == "horovod":
            return "horovod", f"{self.job.script} imports horovod"
        return "fork", "one process imports the framework and forks the ranks of this machine"

    def _several_ranks(self) -> bool:
        job = self.job
        gpus = job.gpus_per_node or job.gpus_per_task or NO_GPUS
        return gpus.count > 1 or (job.nprocs or 1) > (job.nodes or 1)

    def _gpus(self) -> Gpus:
        job = self.job
        if job.gpus_per_node and job.gpus_per_task:
            raise JobError(
                f"--gpus-per-node {job.gpus_per_node} and --gpus-per-task {job.gpus_per_task} "
                "exclude each other. Keep one of them."
            )
        return job.gpus_per_node or job.gpus_per_task or NO_GPUS

    def _ranks(self, nodes: int, gpus: Gpus) -> int:
        job = self.job
        if job.nprocs:
            if job.nprocs % nodes:
                low, high = job.nprocs // nodes * nodes, -(-job.nprocs // nodes) * nodes
                raise JobError(
                    f"--nprocs {job.nprocs} ranks cannot be divided evenly among {nodes} nodes.\n"
                    f"Use --nprocs {low or high}" + (f" or {high}." if low else ".")
                )
            return job.nprocs // nodes
        if job.tasks_per_node and self.launcher.task_per_rank:
            return job.tasks_per_node
        if not self.launcher.supervised:
            return 1
        if job.gpus_per_task and self.launcher.task_per_rank:
            return int(self._derive("nprocs", 1, "one task"))
        ranks = max(1, gpus.count)
        why = f"one rank per GPU × {nodes} nodes" if gpus.count else "no GPUs: one rank per node"
        self._derive("nprocs", ranks * nodes, why)
        return ranks

    def _tasks(self, ranks: int) -> int:
        job, per_rank = self.job, self.launcher.task_per_rank
        wanted = ranks if per_rank else 1
        if job.tasks_per_node and job.tasks_per_node != wanted:
            if per_rank:
                raise JobError(
                    f"--tasks-per-node {job.tasks_per_node} contradicts {ranks} ranks per node "
                    f"({self.origins.get('nprocs', 'asked for')}): the {self.launcher.name} launcher has "
                    f"one task per rank.\nUse --tasks-per-node {ranks}, or leave it out."
                )
            raise JobError(
                f"--tasks-per-node {job.tasks_per_node} with --launcher {self.launcher.name}: it starts "
                f"the ranks of a node itself and needs one task per node.\n"
                f"Leave --tasks-per-node out, or use --launcher srun."
            )
        if not job.tasks_per_node:
            why = f"{self.launcher.name} has one task per " + ("rank" if per_rank else "node")
            self._derive("tasks_per_node", wanted, why)
        return wanted

    def _resources(self, shape: JobShape) -> JobShape:
        """Add CPUs and memory: as given, else in proportion to the GPUs."""
        job, node = self.job, self._node_shape(shape)
        cpus, memory = job.cpus_per_task, job.memory
        if node is not None and (shape.gpus_per_node.count or job.exclusive):
            part = self._share(node, shape.gpus_per_node.count)
            if cpus is None and part.cpus:
                cpus = max(1, part.cpus // shape.tasks_per_node)
                self._derive(
                    "cpus_per_task", cpus, f"{part.why}, over {_tasks(shape.tasks_per_node)}"
                )
            if memory is None and part.memory is not None:
                memory = self._derive("memory", part.memory, part.why)
        if cpus is None and shape.gpus_per_node.count and self.on_cluster:
            self.notes.append(
                "The CPUs of a node are unknown, so Slurm's default applies (often 1 per task). Use "
                f"{flag('cpus_per_task')}, or {flag('site')} (see `allranks sites`)."
            )
        return replace(shape, cpus_per_task=cpus, memory=memory)

    def _share(self, node: NodeShape, gpus: int) -> NodeShare:
        if self.job.exclusive:
            return NodeShare(node.usable_cpus, 0, "the whole node, as --exclusive is given")
        return share_of_node(node, gpus)

    def _node_shape(self, shape: JobShape) -> NodeShape | None:
        """Return the kind of node that the job will get, if the site describes it."""
        if self.site is None or not self.site.partitions or not self.on_cluster:
            return None
        request = self._request(shape)
        return select_node_shape(select_partition(self.site, request), request)

    def _request(self, shape: JobShape) -> ResourceRequest:
        cpus = shape.cpus_per_task or self.job.cpus_per_task
        return ResourceRequest(
            nodes=shape.nodes,
            gpus_per_node=shape.gpus_per_node.count,
            gpu_type=shape.gpus_per_node.type,
            cpus_per_node=cpus * shape.tasks_per_node if cpus else None,
            memory_per_node=shape.memory if shape.memory is not None else self.job.memory,
            time=self.job.time,
            partition=self.job.partition,
        )

    def _compare_ranks_with_gpus(self, shape: JobShape) -> None:
        gpus, ranks = shape.gpus_per_node.count, shape.ranks_per_node
        if not self.launcher.supervised or gpus in (0, ranks):
            return
        if ranks > gpus:
            self.notes.append(
                f"{ranks} ranks share {gpus} GPUs on each node; NCCL refuses two ranks on one GPU. "
                f"Use {flag('nprocs')} {gpus * shape.nodes}."
            )
        elif not self.job.gpus_per_task:
            self.notes.append(
                f"{gpus - ranks} of {gpus} GPUs on each node stay idle with {ranks} ranks there. "
                f"Use {flag('nprocs')} {gpus * shape.nodes}."
            )

    def _check_site(self, site: Site, shape: JobShape) -> None:
        if missing := [name for name in site.requires if not getattr(self.job, name, None)]:
            options = " and ".join(flag(name) for name in missing)
            raise JobError(
                f"Site {site.name} requires {options}. Add it to the command or to allranks.toml."
            )
        select_partition(site, self._request(shape))


def derive(
    job: Job, origins: dict[str, Origin], site: Site | None = None, on_cluster: bool = True
) -> Plan:
    """Return the plan of a job on a site, or on this machine (without ``on_cluster``)."""
    return Derivation(job, origins, site, on_cluster).plan()


def _tasks(number: int) -> str:
    return f"{number} tasks" if number > 1 else "one task"


def _stem(script: str) -> str:
    name = Path(script).name
    return name[:-3] if name.endswith(".py") else name or "job"


def requeue_notes(job: Job) -> list[str]:
    """Return notes about limits without effect; a signal that would be misread raises `JobError`."""
    _refuse_term(job)
    given = [flag(name) for name in ("max_attempts", "max_no_progress") if getattr(job, name)]
    if not given or job.requeue or job.restarts:
        return []
    without = f"without {flag('requeue')} or {flag('restarts')}"
    return [f"{' and '.join(given)} {without}: the run has one attempt."]


def _refuse_term(job: Job) -> None:
    """A job script with --requeue takes TERM as Slurm's own signal for the end of the job."""
    asked = job.signal or ""
    options, _, signal = asked.rpartition(":")
    name, _, seconds = signal.partition("@")
    if not job.requeue or "B" not in options or name.removeprefix("SIG") not in ("TERM", "15"):
        return
    other = f"{options}:USR1" + (f"@{seconds}" if seconds else "")
    raise JobError(
        f"{flag('signal')} {asked} with {flag('requeue')}: Slurm ends jobs with TERM, so the job script "
        f"could not distinguish it from a cancellation.\nUse another signal: {flag('signal')} {other}"
    )
