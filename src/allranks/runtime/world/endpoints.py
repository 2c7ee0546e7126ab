"""Ports that are tried in order, and addresses with their network interface, chosen by route."""

from __future__ import annotations

import fcntl
import hashlib
import ipaddress
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

from allranks.errors import WorldError

FIRST_PORT, LAST_PORT = 20000, 32767
"""Below Linux's ephemeral range (32768 and up), so no outgoing connection takes the port first."""
_SIOCGIFADDR = 0x8915
_STRIDE = 1009
"""Candidates lie far apart, so that a neighbour's TensorFlow (ports in a row) blocks only one."""


def derived_port(seed: str) -> int:
    """Return a port in the range, the same on every rank that has the same seed.

    A job id seeds it with its own number: jobs with neighbouring ids on a node get different ports.
    """
    digest = int.from_bytes(hashlib.sha256(seed.encode()).digest()[:8], "big")
    return FIRST_PORT + digest % (LAST_PORT - FIRST_PORT + 1)


def candidate_ports(start: int, count: int = 8) -> list[int]:
    """Return the ports that rank 0 tries to listen at, and the others to connect to, in this order."""
    span = LAST_PORT - FIRST_PORT + 1
    if not FIRST_PORT <= start <= LAST_PORT:
        return [start]
    return [FIRST_PORT + (start - FIRST_PORT + step * _STRIDE) % span for step in range(count)]


def free_port(host: str, start: int | None = None) -> int:
    """Return the first port, from the start on, that can be bound on this machine's address ``host``."""
    first = derived_port(host) if start is None else start
    tried = candidate_ports(first, 64)
    for port in tried:
        if _can_bind(host, port):
            return port
    raise WorldError(
        f"No free port for {format_endpoint(host, tried[0])}: {len(tried)} tried, all taken, from "
        f"{tried[0]} on. Set MASTER_PORT to a port that is free on {host}."
    )


def format_endpoint(host: str, port: int) -> str:
    """Return ``host:port``, with brackets around an IPv6 address: ``[::1]:29500``."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_endpoint(text: str) -> tuple[str, int | None]:
    """Split ``host:port``, ``[::1]:port`` or a bare host; the port is None when there is none."""
    if text.startswith("["):
        host, _, port = text[1:].partition("]")
        port = port.removeprefix(":")
    elif text.count(":") > 1:
        host, port = text, ""
    else:
        host, _, port = text.partition(":")
    if not host or (port and not port.isdigit()):
        raise WorldError(f"'{text}' is not an address. Write host:port, or [fe80::1]:port.")
    return host, int(port) if port else None


def route_address(peer: str) -> tuple[str, str | None]:
    """Return this machine's address on the route to ``peer``, and its interface.

    Connecting a UDP socket sends nothing: the kernel only looks up the route. ``hostname -i`` gives
    127.0.1.1 on many machines, which no peer can reach.
    """
    try:
        found = socket.getaddrinfo(peer, 9, type=socket.SOCK_DGRAM)
    except OSError as error:
        raise WorldError(
            f"The name '{peer}' cannot be resolved on {socket.gethostname()}: {error}."
        ) from None
    problem: OSError | None = None
    for family, kind, protocol, _, target in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(target)
                address = str(probe.getsockname()[0]).partition("%")[0]
        except OSError as error:
            problem = error
            continue
        return address, _interface_of(address)
    raise WorldError(f"No route from {socket.gethostname()} to {peer}: {problem}.")


def _can_bind(host: str, port: int) -> bool:
    """Whether torch's store could listen: on the host's address and on all addresses."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise WorldError(f"The name '{host}' cannot be resolved: {error}.") from None
    everywhere = "::" if found[0] == socket.AF_INET6 else "0.0.0.0"
    for target in (found[4][0], everywhere):
        with socket.socket(found[0], socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((target, port))
                probe.listen(1)
            except OSError:
                return False
    return True


def _interface_of(address: str) -> str | None:
    """Return the interface that has an address; all of 127.0.0.0/8 is lo."""
    if address.startswith("127."):
        return "lo"
    if ":" in address:
        return next((interface for found, interface in _inet6() if found == address), None)
    return next((name for _, name in socket.if_nameindex() if _ipv4_of(name) == address), None)


def _ipv4_of(name: str) -> str | None:
    request = struct.pack("256s", name.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            return socket.inet_ntoa(fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)[20:24])
        except OSError:
            return None


def _inet6() -> Iterator[tuple[str, str]]:
    """Return address and interface of each line of the kernel's table; the ioctl knows only IPv4."""
    table = Path("/proc/net/if_inet6")
    for line in table.read_text().splitlines() if table.exists() else []:
        fields = line.split()
        yield str(ipaddress.IPv6Address(int(fields[0], 16))), fields[5]


def listen(port: int) -> socket.socket:
    """Listen on all addresses: IPv6 and IPv4."""
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(
                ("::", port), family=socket.AF_INET6, backlog=1024, dualstack_ipv6=True
            )
        except OSError:  # taken, or IPv6 is switched off: IPv4 decides
            pass
    return socket.create_server(("", port), backlog=1024)
