"""A client of Slurm's commands, the only one: submit, query, cancel, requeue.

Text, not REST and not JSON: the delimited text of ``squeue`` and ``sacct`` reads the same on every
version, the JSON does not (and its exit codes are wrong on 22.05).
"""
