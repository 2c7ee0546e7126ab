"""Ports, routes, interfaces, endpoints."""

import socket

import pytest

from allranks.errors import WorldError
from allranks.runtime.world.endpoints import (
    FIRST_PORT,
    LAST_PORT,
    candidate_ports,
    derived_port,
    format_endpoint,
    free_port,
    route_address,
    split_endpoint,
)


def test_ports_are_derived_and_spread():
    ports = [derived_port(f"{job}/0") for job in range(2000)]
    assert ports == [derived_port(f"{job}/0") for job in range(2000)]
    assert min(ports) >= FIRST_PORT
    assert max(ports) <= LAST_PORT < 32768
    assert len(set(ports)) > 1700


def test_candidates_stay_in_range_and_differ():
    ports = candidate_ports(LAST_PORT)
    assert len(set(ports)) == 8
    assert all(FIRST_PORT <= port <= LAST_PORT for port in ports)
    assert candidate_ports(40000) == [40000]


def test_free_port_passes_over_a_taken_one():
    start = free_port("127.0.0.1", derived_port("a test"))
    with socket.create_server(("127.0.0.1", start)):
        other = free_port("127.0.0.1", start)
        assert other != start
        assert other in candidate_ports(start, 64)
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        with pytest.raises(WorldError, match=str(taken)):
            free_port("127.0.0.1", taken)
    with pytest.raises(WorldError, match="cannot be resolved"):
        free_port("no-such-host.invalid", start)


def test_free_port_on_ipv6():
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    assert FIRST_PORT <= free_port("::1") <= LAST_PORT


def test_route():
    assert route_address("127.0.0.1") == ("127.0.0.1", "lo")
    assert route_address("localhost")[1] == "lo"
    with pytest.raises(WorldError, match=r"no-such-host\.invalid"):
        route_address("no-such-host.invalid")


def test_route_to_elsewhere_names_an_interface_with_that_address():
    try:
        address, interface = route_address("192.0.2.77")
    except WorldError:
        pytest.skip("this machine has no route to other networks")
    assert interface in {name for _, name in socket.if_nameindex()}
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as mine:
        mine.bind((address, 0))


@pytest.mark.parametrize(
    ("host", "port", "text"),
    [("::1", 5, "[::1]:5"), ("node1", 5, "node1:5"), ("1.2.3.4", 5, "1.2.3.4:5")],
)
def test_endpoints(host, port, text):
    assert format_endpoint(host, port) == text
    assert split_endpoint(text) == (host, port)


def test_endpoints_without_a_port():
    assert split_endpoint("fe80::1") == ("fe80::1", None)
    assert split_endpoint("[::1]") == ("::1", None)
    assert split_endpoint("a") == ("a", None)
    for text in ("", "a:b", "[::1]x"):
        with pytest.raises(WorldError, match="not an address"):
            split_endpoint(text)
