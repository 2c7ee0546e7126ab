"""Resolve a job to a plan: merge site, file and user values, then derive the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from allranks.cluster.sites.model import Site
from allranks.cluster.sites.site_lookup import find_site, load_site
from allranks.errors import JobError, UsageError
from allranks.job.accelerate_config import check_accelerate_file, find_accelerate_file
from allranks.job.config_sources import JobLayer, file_layer, find_file, given, merge, site_layer
from allranks.job.deepspeed_config import check_deepspeed_config
from allranks.job.defaults import derive
from allranks.job.fields import Job
from allranks.job.plan import Plan


def resolve(
    values: Mapping[str, Any] | Job,
    *,
    on_cluster: bool = True,
    source: str = "command line",
    config: str | None = None,
    between: tuple[JobLayer, ...] = (),
    detect: bool = False,
) -> Plan:
    """Return the plan of a job, for nodes of a cluster or for this machine.

    ``between`` are layers below the user's values (an allocation, this machine). ``detect`` asks Slurm
    about the cluster if there is no site file for it.
    """
    own = JobLayer(source, given(values) if isinstance(values, Job) else values)
    path = Path(config) if config else find_file(Path.cwd())
    file = [file_layer(path)] if path else []
    named = next((x.values["site"] for x in (own, *file) if x.values.get("site")), None)
    site = _site(named, detect) if on_cluster else None
    job, origins = merge([*([site_layer(site)] if site else []), *file, *between, own])
    if job.chdir:  # named from here, used elsewhere
        job = replace(job, chdir=str(Path(job.chdir).expanduser().absolute()))
    _check_script(job)
    return _read_framework_files(derive(job, origins, site, on_cluster), on_cluster)


def _read_framework_files(plan: Plan, on_cluster: bool) -> Plan:
    """Add what the settings files of Accelerate and DeepSpeed say; a contradiction is an error here."""
    plan = replace(plan, accelerate_file=find_accelerate_file(plan))
    notes = (*check_accelerate_file(plan, on_cluster), *check_deepspeed_config(plan, on_cluster))
    return replace(plan, notes=(*plan.notes, *notes))


def _site(name: str | None, detect: bool) -> Site | None:
    if name:
        return load_site(name)
    if not detect:
        return find_site(runner=lambda _: "")  # works where there is no Slurm, so it asks none
    found = find_site()
    if found is None:
        from allranks.cluster.sites.site_detection import detect_site

        return detect_site()
    return found


def _check_script(job: Job) -> None:
    """Report a missing script now, not after hours in the queue."""
    script = job.script
    if not script or job.module:
        return
    path = Path(job.chdir or ".", script)
    if job.chdir and not Path(job.chdir).is_dir():
        raise UsageError(f"--chdir {job.chdir}: there is no such directory.")
    if path.is_dir():
        raise UsageError(f"{script} is a directory. Name the training script in it.")
    if not path.is_file():
        if "/" in script or script.endswith(".py"):
            raise UsageError(f"There is no script {script} in {path.parent.resolve()}.")
        return  # a program on the PATH of the job
    if script.endswith((".sh", ".slurm", ".sbatch")) and "#SBATCH" in path.read_text(
        "utf-8", "replace"
    ):
        raise JobError(
            f"{script} is a job script (it has #SBATCH lines).\n"
            f"Submit it with: allranks submit {script}\n"
            f"Or convert it: allranks convert {script}"
        )
