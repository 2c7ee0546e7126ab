"""Graceful exit: when the job ends, which signals came, and one step at which all ranks save and exit.

A signal handler sets a flag and does nothing else. The ranks exchange their flags about every two seconds
and at the same step, so that all save the same step and none waits for another.

    job_end_time.py       when the job ends: from its environment, or from Slurm
    signal_flags.py       the flag that TERM, USR1 and USR2 set
    worker_signals.py     loader workers survive those signals
    flag_exchange.py      at which steps all ranks exchange their flags
    progress_writer.py    the running number of steps; progress.json and ``interrupted`` of the attempt
    deadline.py           `Deadline`, which joins them for a training loop
    signal_probe.py       what ``allranks check --signal`` runs on every rank
"""
