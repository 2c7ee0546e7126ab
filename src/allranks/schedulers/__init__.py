"""Where a job goes: this machine (``local``) or a cluster (``slurm``)."""
