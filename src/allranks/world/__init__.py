"""Which process am I, and how do I reach the others? torch is imported inside `init` only."""

from allranks.world.detect import detect
from allranks.world.extras import framework_variables
from allranks.world.model import World
from allranks.world.nodelist import compress, expand, expand_counts
from allranks.world.process_group import init, shutdown, world
from allranks.world.rendezvous import (
    derived_port,
    format_endpoint,
    free_port,
    interface_address,
    network_variables,
    route_address,
    split_endpoint,
)

__all__ = [
    "World",
    "compress",
    "derived_port",
    "detect",
    "expand",
    "expand_counts",
    "format_endpoint",
    "framework_variables",
    "free_port",
    "init",
    "interface_address",
    "network_variables",
    "route_address",
    "shutdown",
    "split_endpoint",
    "world",
]
