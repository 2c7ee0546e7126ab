"""The agent: the small process beside the ranks that starts them, writes their logs and ends them.

Run as ``python -m allranks.runtime.agent COMMAND``. It needs only the standard library, and it must
start fast: on a large job it is the first thing that every node starts.

Start the ranks, in the order of a launch:

    __main__, agent_options   the commands and their options
    rank_launch               from the options to running ranks, and to the exit code
    rank_environment          which ranks are mine, and their environment variables
    cpu_binding, build_locks  the CPUs near a rank's GPU; locks left by killed builds of DeepSpeed
    preload, script_runner    fork ranks after importing torch once; run a script in a forked rank
    rank_processes            fork, exec

Supervise them:

    supervisor                the event loop: exits, signals, grace time. Three subclasses:
    rank_supervisor             the agent's ranks
    local_ranks, spawn          the ranks that a script starts itself with ``nprocs``
                                (the third watches a launcher: schedulers.launcher_watch)
    rank_output, console      pipes to lines, logs and one terminal
    attempt_files, failures   records of started and failed ranks; the first error
    linux_processes, orphans  prctl, signalfd, /proc; end what a killed supervisor leaves

Between two attempts, for the job script:

    attempt_start             may this attempt start on these nodes
    attempt_end               what follows it: nothing, a restart, a requeue, the end
    scontrol_facts            what Slurm reports of the job and its nodes
"""
