"""Serves the table by which Horovod's ranks find each other, for a job script.

    python -m allranks.runtime.agent horovod-server --host NODE --port N

prints the address and the port that it took, in one line, when ranks may come, and serves until the
shell that started it ends.
"""

from __future__ import annotations

import os
import signal

from allranks.runtime.agent.linux_processes import die_with
from allranks.runtime.world.endpoints import route_address
from allranks.runtime.world.horovod_rendezvous import open_rendezvous_server


def serve(host: str, port: int) -> None:
    """Serve on the address by which this machine and ``host`` reach each other, and on no other."""
    shell = os.getppid()
    with open_rendezvous_server(route_address(host)[0], port) as table:
        die_with(shell)
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
        print(table.server_name, table.server_port, flush=True)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the reader takes one line and goes
        table.serve_forever()
