"""List site files, and find the one of this cluster.

A name is looked for among the user's own files, then in the folders of ``ALLRANKS_SITES``, then
among the profiles that ship. The first file of a name wins: a user's ``lumi.toml`` replaces ours.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path

from allranks.cluster.sites.model import Site
from allranks.cluster.sites.site_toml import dump_site, parse_site
from allranks.errors import AllranksError, SiteError, nearest

__all__ = ["SiteFile", "dump_site", "find_site", "list_sites", "load_site", "user_folder"]

HERE = "allranks-site.toml"
_SHIPPED = Path(__file__).parent / "profiles"


@dataclass(frozen=True)
class SiteFile:
    """A file that describes a site."""

    name: str
    path: Path
    origin: str
    """``yours``, ``ALLRANKS_SITES`` or ``shipped``."""


def user_folder(env: Mapping[str, str] | None = None) -> Path:
    """Return the folder of the user's site files."""
    env = os.environ if env is None else env
    config = env.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(config).expanduser() / "allranks" / "sites"


def list_sites(env: Mapping[str, str] | None = None) -> list[SiteFile]:
    """Return every site file by name, without reading it."""
    found: dict[str, SiteFile] = {}
    for folder, origin in _folders(os.environ if env is None else env):
        for path in sorted(folder.glob("*.toml")):
            found.setdefault(path.stem, SiteFile(path.stem, path, origin))
    return sorted(found.values(), key=lambda each: each.name)


def _folders(env: Mapping[str, str]) -> list[tuple[Path, str]]:
    shared = [Path(each).expanduser() for each in env.get("ALLRANKS_SITES", "").split(":") if each]
    return [
        (user_folder(env), "yours"),
        *((each, "ALLRANKS_SITES") for each in shared),
        (_SHIPPED, "shipped"),
    ]


def load_site(name: str | os.PathLike[str], env: Mapping[str, str] | None = None) -> Site:
    """Return the site of that name, or in that file."""
    text = os.fspath(name)
    if "/" in text or text.endswith(".toml"):
        return _read(Path(text).expanduser())
    there = {each.name: each for each in list_sites(env)}
    if text in there:
        return _read(there[text].path)
    close = nearest(text, there)
    hint = f"Did you mean '{close}'? " if close else ""
    raise SiteError(
        f"There is no site '{text}'.\n{hint}There is: {', '.join(there)}. "
        f"Or describe this cluster with: allranks sites detect --write --name {text}"
    )


def _read(path: Path) -> Site:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise SiteError(f"Cannot read the site file {path}: {reason}.") from None
    return parse_site(text, str(path), path.stem)


def find_site(
    env: Mapping[str, str] | None = None,
    hostname: str | None = None,
    runner: Callable[[Sequence[str]], str] | None = None,
    cwd: Path | None = None,
) -> Site | None:
    """Return the site of this cluster, None when no site file matches it; ``found`` is the reason.

    Asked in turn, the cheap and certain first: ``ALLRANKS_SITE``, ``allranks-site.toml`` here,
    ``SLURM_CLUSTER_NAME``, the host name, and Slurm itself. ``runner`` runs ``scontrol`` (tests).
    """
    env = os.environ if env is None else env
    if named := env.get("ALLRANKS_SITE"):
        return replace(load_site(named, env), found=f"ALLRANKS_SITE is {named}")
    here = (cwd or Path.cwd()) / HERE
    if here.is_file():
        return replace(_read(here), found=f"{HERE} is in this folder")
    sites = [_read(each.path) for each in list_sites(env)]
    hostname = hostname or os.uname().nodename
    if cluster := env.get("SLURM_CLUSTER_NAME"):
        # A site that names its clusters is not this one, whatever the host is called.
        nameless = [each for each in sites if not each.match.clusters]
        return _of_cluster(sites, cluster, "SLURM_CLUSTER_NAME") or _of_host(nameless, hostname)
    return _of_host(sites, hostname) or _of_slurm(sites, env, runner)


def _of_host(sites: list[Site], hostname: str) -> Site | None:
    for site in sites:
        for pattern in site.match.hostnames:
            if fnmatch(hostname.lower(), pattern.lower()):
                return replace(site, found=f"the host {hostname} matches {pattern}")
    return None


def _of_cluster(sites: list[Site], cluster: str, who: str) -> Site | None:
    for site in sites:
        if cluster.lower() in (each.lower() for each in site.match.clusters):
            return replace(site, found=f"{who} is {cluster}")
    return None


def _of_slurm(
    sites: list[Site], env: Mapping[str, str], runner: Callable[[Sequence[str]], str] | None
) -> Site | None:
    from allranks.cluster.sites.site_detection import cluster_name, slurm_runner

    try:
        cluster = cluster_name(runner or slurm_runner(env, timeout=5))
    except AllranksError:  # no Slurm, or it is down: then no site, which is an answer
        return None
    return _of_cluster(sites, cluster, "Slurm's ClusterName")
