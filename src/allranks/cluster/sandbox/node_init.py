"""The init process of a node that is a separate machine. Started by path, not imported.

It names the machine, lays the sandbox's host names over /etc/hosts (in a private mount namespace),
configures the network where the node has one, starts slurmd, and collects whatever ends, as an init
must: slurmd does not collect the steps that outlive it. When slurmd ends, the node is off.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time


def main(arguments: list[str]) -> int:
    """Run NAME HOSTS ADDRESS COMMAND…; ADDRESS is empty when the network is shared."""
    name, hosts, address, *command = arguments
    socket.sethostname(name)
    subprocess.run(["mount", "--bind", hosts, "/etc/hosts"], check=True)
    if address:
        _configure(address)
    return _supervise(command)


def _configure(address: str) -> None:
    """Bring up loopback and the interface that the sandbox moves here."""
    deadline = time.monotonic() + 20
    while "eth0" not in [interface for _, interface in socket.if_nameindex()]:
        if time.monotonic() > deadline:
            raise SystemExit("node_init: no interface eth0 after 20 s")
        time.sleep(0.01)
    for words in ("link set lo up", f"addr add {address}/24 dev eth0", "link set eth0 up"):
        subprocess.run(["ip", *words.split()], check=True)


def _supervise(command: list[str]) -> int:
    child = subprocess.Popen(command)
    while True:
        pid, status = os.wait()
        if pid == child.pid:
            child.returncode = os.waitstatus_to_exitcode(status)
            return child.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
