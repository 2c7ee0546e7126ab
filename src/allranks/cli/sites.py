"""``allranks sites``: the clusters that are known, and the one we are on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from allranks.cluster.sites import Partition, Site

_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group(invoke_without_command=True)
@_json
@click.pass_context
def sites(context: click.Context, as_json: bool) -> None:
    """Clusters: list them, show one, describe this one."""
    if context.invoked_subcommand is None:
        _list(as_json)


@sites.command("list")
@_json
def list_(as_json: bool) -> None:
    """Every site that --site takes."""
    _list(as_json)


@sites.command()
@click.argument("name", required=False)
@_json
def show(name: str | None, as_json: bool) -> None:
    """One site: its partitions, nodes, defaults. NAME may be a file [default: where we are]."""
    from allranks.cluster.sites import find_site, load_site
    from allranks.errors import SiteError

    site = load_site(name) if name else find_site()
    if site is None:
        raise SiteError(
            "No site file knows this machine.\n"
            "Name a site (allranks sites list), or describe this one: allranks sites detect"
        )
    _print_json(_as_data(site)) if as_json else _print_site(site)


@sites.command()
@click.option("--name", metavar="NAME", help="Name of the site [default: Slurm's ClusterName].")
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    help="Write the site file here.",
)  # fmt: skip
@click.option("--write", is_flag=True, help="Write it to your own sites, where --site finds it.")
@_json
def detect(name: str | None, output: Path | None, write: bool, as_json: bool) -> None:
    """Describe the Slurm cluster that we are on, as a site file."""
    from allranks.cluster.sites import detect_site, dump_site
    from allranks.errors import UsageError

    if output is not None and write:
        raise UsageError("Give --output or --write, not both.")
    if name is not None and not _plain(name):
        raise UsageError(f"'{name}' cannot be the name of a site: use letters, digits, - _ and .")
    site = detect_site(name=name)
    path = _user_file(site.name) if write else output
    if path is not None:
        _save(path, dump_site(site))
        click.echo(f"Wrote {path}.", err=True)
    if as_json:
        _print_json(_as_data(site))
    elif path is None:
        click.echo(dump_site(site), nl=False)


def _plain(name: str) -> bool:
    return name.replace("-", "").replace("_", "").replace(".", "").isalnum()


def _user_file(name: str) -> Path:
    from allranks.cluster.sites.site_lookup import user_folder

    return user_folder() / f"{name}.toml"


def _save(path: Path, text: str) -> None:
    from allranks.errors import SiteError

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SiteError(f"Cannot write {path}: {error.strerror}.") from None


def _list(as_json: bool) -> None:
    from allranks.cluster.sites import find_site, list_sites, load_site

    here = find_site()
    rows = []
    for each in list_sites():
        site = load_site(each.path)
        rows.append((each.name, each.origin, site.description, str(each.path)))
    if as_json:
        keys = ("name", "origin", "description", "path")
        listed = [dict(zip(keys, row, strict=True)) for row in rows]
        _print_json({"here": here.name if here else None, "sites": listed})
        return
    _print_table(("site", "from", "what"), (row[:3] for row in rows))
    click.echo(f"Here: {here.name} ({here.found})." if here else "Here: no site that is known.")


def _print_site(site: Site) -> None:
    from allranks.cluster.sites import dump_site

    click.echo(f"{site.name}: {site.description}\nfrom {site.source}")
    if site.found:
        click.echo(f"taken because {site.found}")
    columns = ("partition", "nodes", "GPUs", "CPUs", "memory", "time", "most nodes")
    _print_table(columns, (row for each in site.partitions for row in _rows(each)))
    rest = [line for line in dump_site(site).split("\n[shapes", 1)[0].splitlines() if line]
    click.echo("\n".join(rest))


def _rows(partition: Partition) -> Iterable[Sequence[str]]:
    from allranks.core.units import Gpus, format_memory, format_time

    time = format_time(partition.max_time) if partition.max_time is not None else ""
    first = (partition.name, _word(partition.nodes))
    last = (time, _word(partition.max_nodes))
    if not partition.shapes:
        yield (*first, "", "", "", *last)
    for shape in partition.shapes:
        gpus = str(Gpus(shape.gpus, shape.gpu_type)) if shape.gpus else ""
        memory = format_memory(shape.usable_memory) if shape.usable_memory is not None else ""
        nodes = _word(partition.nodes if shape.nodes is None else shape.nodes)
        yield (partition.name, nodes, gpus, _word(shape.usable_cpus), memory, *last)


def _word(number: int | None) -> str:
    return "" if number is None else str(number)


def _as_data(site: Site) -> dict[str, object]:
    from dataclasses import asdict

    return asdict(site)


def _print_json(data: object) -> None:
    import json

    click.echo(json.dumps(data, indent=2, default=str))


def _print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(*row)
    Console(highlight=False, markup=False).print(table)
