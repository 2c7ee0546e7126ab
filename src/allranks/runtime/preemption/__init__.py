"""Leaving in time: when the job ends, who was told to end, and one step at which all ranks leave.

A signal handler sets a flag and does nothing else. The ranks look at their flags together, about every
two seconds and at the same step, so that all save the same step and none waits for another.

    ends.py        when the job ends: from its environment, or asked of Slurm
    signals.py     the flag that TERM, USR1 and USR2 set
    workers.py     loader workers live on when those signals reach them
    looks.py       at which steps all ranks look, and what they agree on there
    talk.py        how numbers are summed over the ranks: torch.distributed, Horovod, or one rank alone
    notes.py       one running number of steps; progress.json and ``interrupted`` of the attempt
    deadline.py    `Deadline`, which joins them for a training loop
"""
