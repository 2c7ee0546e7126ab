"""Sites: what a cluster has, which one this is, and whether a job fits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from allranks._lazy import names_from

if TYPE_CHECKING:
    from allranks.site.detect import detect_site as detect_site
    from allranks.site.fit import Request as Request
    from allranks.site.fit import Share as Share
    from allranks.site.fit import check as check
    from allranks.site.fit import shape_for as shape_for
    from allranks.site.fit import share as share
    from allranks.site.load import SiteFile as SiteFile
    from allranks.site.load import dump_site as dump_site
    from allranks.site.load import find_site as find_site
    from allranks.site.load import list_sites as list_sites
    from allranks.site.load import load_site as load_site
    from allranks.site.model import Match as Match
    from allranks.site.model import NodeShape as NodeShape
    from allranks.site.model import Partition as Partition
    from allranks.site.model import Site as Site

_HOMES = {
    "Match": "model",
    "NodeShape": "model",
    "Partition": "model",
    "Request": "fit",
    "Share": "fit",
    "Site": "model",
    "SiteFile": "load",
    "check": "fit",
    "detect_site": "detect",
    "dump_site": "load",
    "find_site": "load",
    "list_sites": "load",
    "load_site": "load",
    "shape_for": "fit",
    "share": "fit",
}

__all__ = [*_HOMES]
__getattr__ = names_from(__name__, _HOMES)
