"""The small process beside the ranks: starts them, keeps their logs, ends them cleanly.

Run as ``python -m allranks.runtime.agent ranks|rank|summary|before|after|horovod-server``. It needs nothing but the
standard library, and it must start fast: on a large job it is the first thing that every node does.

    __main__      the commands
    options       what they take
    placement     which ranks are mine
    variables     the environment of a rank
    binding       the CPUs of a rank
    preload       may the ranks be forked, and the imports they share
    children      fork, then exec or run the script
    script        run a script as ``python script.py`` would
    supervisor    the event loop, and what signals do
    output        what the ranks print, on the way to their logs and the console
    ends          how the ranks ended: failures, and ranks that ask to go on
    stream        bytes of a pipe → lines
    console       lines of many ranks → one terminal
    attempt       the files of the attempt folder
    failures      the first error: tail, traceback, record
    summary       the same, for people
    policy        how often a run may go on by itself
    before        may an attempt begin here: killed ones before it, nodes that failed twice
    after         what follows an attempt: nothing, a restart, a requeue, the end
    job_facts     what Slurm says of the job and its nodes
    processes     prctl, signalfd, /proc
    guard         what still works when the agent itself is killed
    sweep         end every process of a launch
    quick_end     a forked rank need not take torch apart
    horovod       where Horovod's ranks find each other
"""
