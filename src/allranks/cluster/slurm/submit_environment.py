"""Which variables are passed into a submitted job, and which only configure the client.

sbatch hands its whole environment to the job. When it is called from inside another job, from a
rank or after salloc, that environment describes the outer job, and the inner srun believes it:
wrong task counts, wrong CPUs, another job's rendezvous. So the outer job's variables are removed.

Removed always:
    SLURM_* and SLURMD_*, but for the client's settings in ``KEPT``
    SRUN_*, PMI*, PMIX_* (not PMIX_MCA_*), OMPI_* (not the user's OMPI_MCA_* and OMPI_ALLOW_*), MPI_LOCAL*
    the variables of a rank: RANK, WORLD_SIZE, MASTER_ADDR, TORCHELASTIC_*, TF_CONFIG …
    ALLRANKS_RUN_DIR, _ATTEMPT_DIR, _DEADLINE, _RESUME_DIR, _LAUNCH_ID, _LAUNCHER, _BIND, _FRAMEWORK, _WORLD
Removed inside a job or a rank only (elsewhere they are the user's own):
    SBATCH_*, SALLOC_*, CUDA_VISIBLE_DEVICES and its kin, OMP_NUM_THREADS, ENVIRONMENT=BATCH
Kept:
    everything else, SLURM_CONF and SLURM_CLUSTERS above all
"""

from __future__ import annotations

from collections.abc import Mapping

KEPT = frozenset(
    {
        "SLURM_CONF",
        "SLURM_CONF_SERVER",
        "SLURM_CLUSTERS",
        "SLURM_TIME_FORMAT",
        "SLURM_BITSTR_LEN",
        "SLURM_EXIT_ERROR",
        "SLURM_EXIT_IMMEDIATE",
        "SLURM_DEBUG_FLAGS",
        "SLURM_JWT",
    }
)
"""Settings of the client. They say where the cluster is and how to print, nothing about a job."""

_PREFIXES = ("SLURM_", "SLURMD_", "SRUN_", "PMI", "OMPI_", "MPI_LOCAL", "TORCHELASTIC_", "HYDI_")
_SETTINGS = ("OMPI_MCA_", "OMPI_ALLOW_", "PMIX_MCA_")
_MPIRUN_MCA = tuple(
    f"OMPI_MCA_{word}" for word in ("ess_", "orte_", "plm_", "pmix_", "prte", "initial_wdir")
)
RANK_VARIABLES = frozenset(
    {
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "NODE_RANK",
        "GROUP_RANK",
        "GROUP_WORLD_SIZE",
        "ROLE_RANK",
        "ROLE_NAME",
        "ROLE_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "TF_CONFIG",
        "HOROVOD_RANK",
        "HOROVOD_SIZE",
        "HOROVOD_LOCAL_RANK",
        "HOROVOD_LOCAL_SIZE",
        "HOROVOD_CROSS_RANK",
        "HOROVOD_CROSS_SIZE",
        "HOROVOD_HOSTNAME",
        "HOROVOD_CONTROLLER",
        "HOROVOD_CPU_OPERATIONS",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR",
        "HOROVOD_GLOO_RENDEZVOUS_PORT",
        "HOROVOD_GLOO_IFACE",
        "ALLRANKS_RUN_DIR",
        "ALLRANKS_ATTEMPT_DIR",
        "ALLRANKS_DEADLINE",
        "ALLRANKS_RESUME_DIR",
        "ALLRANKS_LAUNCH_ID",
        "ALLRANKS_SAMPLED",
        "ALLRANKS_LAUNCHER",
        "ALLRANKS_BIND",
        "ALLRANKS_FRAMEWORK",
        "ALLRANKS_WORLD",
    }
)
"""Variables that set the rank of a process: an inner launch must not inherit them."""
_OUTER = frozenset(
    {
        "CUDA_VISIBLE_DEVICES",
        "ROCR_VISIBLE_DEVICES",
        "HIP_VISIBLE_DEVICES",
        "GPU_DEVICE_ORDINAL",
        "ZE_AFFINITY_MASK",
        "OMP_NUM_THREADS",
        "ENVIRONMENT",
    }
)
_OUTER_PREFIXES = ("SBATCH_", "SALLOC_")
_PRINTING = ("SQUEUE_", "SACCT_", "SINFO_", "SCANCEL_", "SCONTROL_")


def inside_job(env: Mapping[str, str]) -> bool:
    """Return whether this environment belongs to a job or a rank rather than to a login shell."""
    return any(name in env for name in ("SLURM_JOB_ID", "SLURM_JOBID", "ALLRANKS_ATTEMPT_DIR"))


def clean_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment to submit with: the user's settings without the variables of an outer job."""
    inside = inside_job(env)
    return {name: value for name, value in env.items() if not _foreign(name, inside)}


def query_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for queries: without variables that filter or reformat the answer.

    Times are requested in seconds since the epoch, so that no time zone matters, and the lists
    of array tasks without the "..." that Slurm puts in after 64 characters.
    """
    asked = {name: value for name, value in env.items() if not name.startswith(_PRINTING)}
    return asked | {"SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0"}


def _foreign(name: str, inside: bool) -> bool:
    if name in KEPT:
        return False
    if name in RANK_VARIABLES or name.startswith(_MPIRUN_MCA):
        return True
    if name.startswith(_PREFIXES):
        return not name.startswith(_SETTINGS)
    return inside and (name in _OUTER or name.startswith(_OUTER_PREFIXES))
