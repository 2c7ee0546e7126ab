"""Parse a site from TOML, and write it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import fields

from allranks.cluster.sites.model import GPU_OPTIONS, GPU_VENDORS, Match, NodeShape, Partition, Site
from allranks.cluster.sites.toml_table import TomlTable
from allranks.core.units import format_memory, format_time
from allranks.errors import SiteError, nearest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def parse_site(text: str, file: str, name: str) -> Site:
    """Parse a site; ``name`` is its name when the text has none."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SiteError(f"{file} is not TOML: {error}.") from None
    return _site(TomlTable(data, file, "the top of the file"), name)


def _site(top: TomlTable, name: str) -> Site:
    named = top.table("shapes")
    shapes = {key: _shape(named.table(key)) for key in named.keys()}  # noqa: SIM118
    partitions = tuple(_partition(each, shapes) for each in top.tables("partitions"))
    site = Site(
        name=top.string("name") or name,
        description=top.string("description") or "",
        partitions=partitions,
        default_partition=top.string("default_partition"),
        match=_match(top.table("match")),
        environment=top.unchecked("environment"),
        variables=_variables(top.table("variables")),
        interface=top.string("interface"),
        gpu_option=top.choice("gpu_option", GPU_OPTIONS) or "gpus-per-node",
        job=top.unchecked("job"),
        requires=top.strings("requires"),
        slurm_version=top.string("slurm_version"),
        requeue_allowed=top.boolean("requeue_allowed"),
        kill_wait=top.integer("kill_wait"),
        note=top.string("note") or "",
        references=top.strings("references"),
        source=top.file,
    )
    top.check_unknown()
    _check_names(top, site)
    return site


def _check_names(top: TomlTable, site: Site) -> None:
    names = [each.name for each in site.partitions]
    for each in sorted({each for each in names if names.count(each) > 1}):
        raise top.error(f"describes partition '{each}' twice.")
    default = site.default_partition
    if default is not None and names and default not in names:
        raise top.error(
            f"default_partition is '{default}', which is not among the partitions: "
            f"{', '.join(names)}."
        )


def _shape(table: TomlTable) -> NodeShape:
    shape = NodeShape(
        gpus=table.integer("gpus") or 0,
        gpu_type=table.string("gpu_type"),
        gpu_vendor=table.choice("gpu_vendor", GPU_VENDORS),
        cpus=table.integer("cpus", least=1),
        memory=table.memory("memory"),
        threads_per_core=table.integer("threads_per_core", least=1) or 1,
        reserved_cpus=table.integer("reserved_cpus") or 0,
        reserved_memory=table.memory("reserved_memory") or 0,
        cpu_lists=table.strings("cpu_lists"),
        nodes=table.integer("nodes"),
    )
    table.check_unknown()
    if shape.cpu_lists and len(shape.cpu_lists) != shape.gpus:
        raise table.error(
            f"cpu_lists has {len(shape.cpu_lists)} lists for {shape.gpus} GPUs. Give one per GPU."
        )
    return shape


def _partition(table: TomlTable, named: Mapping[str, NodeShape]) -> Partition:
    name = table.string("name")
    if not name:
        raise table.error('has no name. Write name = "…".')
    table.where = f"[[partitions]] '{name}'"
    partition = Partition(
        name=name,
        shapes=_shapes_of(table, named),
        nodes=table.integer("nodes"),
        max_time=table.time("max_time"),
        max_nodes=table.integer("max_nodes", least=1),
        max_cpus_per_node=table.integer("max_cpus_per_node", least=1),
        max_memory_per_node=table.memory("max_memory_per_node"),
        default=bool(table.boolean("default")),
        exclusive=bool(table.boolean("exclusive")),
        preemptible=bool(table.boolean("preemptible")),
        note=table.string("note") or "",
    )
    table.check_unknown()
    return partition


def _shapes_of(table: TomlTable, named: Mapping[str, NodeShape]) -> tuple[NodeShape, ...]:
    shapes = []
    for key in table.strings("shapes"):
        if key not in named:
            close = nearest(key, named)
            hint = f"Did you mean '{close}'?" if close else f"Describe it under [shapes.{key}]."
            raise table.error(f"names a shape '{key}' that is not described.\n{hint}")
        shapes.append(named[key])
    return tuple(shapes)


def _match(table: TomlTable) -> Match:
    match = Match(clusters=table.strings("clusters"), hostnames=table.strings("hostnames"))
    table.check_unknown()
    return match


def _variables(table: TomlTable) -> Mapping[str, str]:
    return {key: table.string(key) or "" for key in table.keys()}  # noqa: SIM118


def dump_site(site: Site) -> str:
    """Return the site as TOML. Equal shapes are written once."""
    names = _shape_names(site)
    document = _set_fields(site, Site(name=""), skip=("partitions", "match", "source", "found"))
    if site.match != Match():
        document["match"] = _set_fields(site.match, Match())
    if names:
        document["shapes"] = {
            name: _set_fields(shape, NodeShape()) for shape, name in names.items()
        }
    partitions = []
    for each in site.partitions:
        table = _set_fields(each, Partition(name=""), skip=("shapes",))
        if each.shapes:
            table["shapes"] = [names[shape] for shape in each.shapes]
        partitions.append(table)
    if partitions:
        document["partitions"] = partitions
    import tomli_w  # only writing needs it

    return tomli_w.dumps(document, multiline_strings=False)


def _shape_names(site: Site) -> dict[NodeShape, str]:
    names: dict[NodeShape, str] = {}
    used: dict[str, int] = {}
    for partition in site.partitions:
        for shape in partition.shapes:
            if shape not in names:
                stem = (shape.gpu_type or ("gpu" if shape.gpus else "cpu")).lower()
                used[stem] = used.get(stem, 0) + 1
                names[shape] = stem if used[stem] == 1 else f"{stem}-{used[stem]}"
    return names


def _set_fields(value: object, empty: object, skip: tuple[str, ...] = ()) -> dict[str, object]:
    """Return the fields that differ from the defaults, in the units of a site file."""
    table: dict[str, object] = {}
    for each in fields(value):  # type: ignore[arg-type]
        content = getattr(value, each.name)
        if each.name in skip or content == getattr(empty, each.name):
            continue
        table[each.name] = _written(each.name, content)
    return table


def _written(key: str, content: object) -> object:
    if key == "max_time" and isinstance(content, int):
        return format_time(content)
    if "memory" in key and isinstance(content, int):
        return format_memory(content)
    if isinstance(content, tuple):
        return list(content)
    return dict(content) if isinstance(content, Mapping) else content
