"""Sites: the facts of clusters, detection of the current one, and whether a job fits it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from allranks.core.lazy_attributes import names_from

if TYPE_CHECKING:
    from allranks.cluster.sites.model import Match as Match
    from allranks.cluster.sites.model import NodeShape as NodeShape
    from allranks.cluster.sites.model import Partition as Partition
    from allranks.cluster.sites.model import Site as Site
    from allranks.cluster.sites.partition_fit import NodeShare as NodeShare
    from allranks.cluster.sites.partition_fit import ResourceRequest as ResourceRequest
    from allranks.cluster.sites.partition_fit import select_node_shape as select_node_shape
    from allranks.cluster.sites.partition_fit import select_partition as select_partition
    from allranks.cluster.sites.partition_fit import share_of_node as share_of_node
    from allranks.cluster.sites.site_detection import detect_site as detect_site
    from allranks.cluster.sites.site_lookup import SiteFile as SiteFile
    from allranks.cluster.sites.site_lookup import dump_site as dump_site
    from allranks.cluster.sites.site_lookup import find_site as find_site
    from allranks.cluster.sites.site_lookup import list_sites as list_sites
    from allranks.cluster.sites.site_lookup import load_site as load_site

_HOMES = {
    "Match": "model",
    "NodeShape": "model",
    "Partition": "model",
    "ResourceRequest": "partition_fit",
    "NodeShare": "partition_fit",
    "Site": "model",
    "SiteFile": "site_lookup",
    "select_partition": "partition_fit",
    "detect_site": "site_detection",
    "dump_site": "site_lookup",
    "find_site": "site_lookup",
    "list_sites": "site_lookup",
    "load_site": "site_lookup",
    "select_node_shape": "partition_fit",
    "share_of_node": "partition_fit",
}

__all__ = [*_HOMES]
__getattr__ = names_from(__name__, _HOMES)
