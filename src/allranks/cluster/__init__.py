"""What a cluster is: Slurm through its commands, site files, and a sandbox cluster on this machine."""
