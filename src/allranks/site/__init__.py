"""Sites: what a cluster has, which one this is, and whether a job fits."""

from allranks.site.detect import detect_site
from allranks.site.fit import Request, Share, check, shape_for, share
from allranks.site.load import SiteFile, dump_site, find_site, list_sites, load_site
from allranks.site.model import Match, NodeShape, Partition, Site

__all__ = [
    "Match", "NodeShape", "Partition", "Request", "Share", "Site", "SiteFile", "check",
    "detect_site", "dump_site", "find_site", "list_sites", "load_site", "shape_for", "share",
]  # fmt: skip
