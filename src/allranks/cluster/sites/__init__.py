"""Sites: what a cluster has, which one this is, and whether a job fits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from allranks.core.lazy import names_from

if TYPE_CHECKING:
    from allranks.cluster.sites.model import Match as Match
    from allranks.cluster.sites.model import NodeShape as NodeShape
    from allranks.cluster.sites.model import Partition as Partition
    from allranks.cluster.sites.model import Site as Site
    from allranks.cluster.sites.partition_fit import Request as Request
    from allranks.cluster.sites.partition_fit import Share as Share
    from allranks.cluster.sites.partition_fit import check as check
    from allranks.cluster.sites.partition_fit import shape_for as shape_for
    from allranks.cluster.sites.partition_fit import share as share
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
    "Request": "partition_fit",
    "Share": "partition_fit",
    "Site": "model",
    "SiteFile": "site_lookup",
    "check": "partition_fit",
    "detect_site": "site_detection",
    "dump_site": "site_lookup",
    "find_site": "site_lookup",
    "list_sites": "site_lookup",
    "load_site": "site_lookup",
    "shape_for": "partition_fit",
    "share": "partition_fit",
}

__all__ = [*_HOMES]
__getattr__ = names_from(__name__, _HOMES)
