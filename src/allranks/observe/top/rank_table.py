"""The table of the live view: a row per rank or per node, with its GPU, memory and step time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rich.text import Text

from allranks.core.formatting import clean, clock, rate, step_time
from allranks.observe.top.footer import ViewSettings
from allranks.observe.top.text_layout import Column, Glyphs, bar, memory, percent, table
from allranks.observe.view.model import GpuNow, NodeNow, RankNow, RunView

_HOST = 16
"""Cells of a host's name; names of nodes mostly differ at their end."""
_BAR = 24
_OLD = 60.0
"""Seconds; what was sampled longer ago is dated."""


@dataclass(frozen=True)
class ScreenTable:
    """A table that is ready to be cut to the screen."""

    head: Text
    row: Callable[[int], Text]
    count: int


def screen_table(run_view: RunView, view: ViewSettings, width: int, glyphs: Glyphs) -> ScreenTable:
    """Return the table as the settings want it; by default ranks where GPUs are seen, else nodes."""
    by_node = shown_rows(run_view, view) == "nodes"
    if by_node:
        nodes = _sorted_nodes(run_view, view.slowest)
        columns = _node_columns(nodes, run_view, glyphs)
        count = len(nodes)
    else:
        ranks = _sorted_ranks(run_view.ranks, view.slowest)
        columns = _rank_columns(ranks, run_view, glyphs)
        count = len(ranks)
    if not count:
        return ScreenTable(Text(), lambda _: Text(), 0)
    head, row = table(columns, width)
    return ScreenTable(head, row, count)


def shown_rows(run_view: RunView, view: ViewSettings) -> str:
    """Return which of the two tables is shown: "ranks" or "nodes"."""
    if view.rows:
        return view.rows
    gpus = any(rank.gpu for rank in run_view.ranks)
    return "nodes" if run_view.nodes and not gpus else "ranks"


def _rank_columns(ranks: Sequence[RankNow], run_view: RunView, glyphs: Glyphs) -> list[Column]:
    ages = _ages(run_view)
    gpus = [rank.gpu or GpuNow(-1) for rank in ranks]
    return [
        Column("RANK", [str(rank.rank) for rank in ranks]),
        Column("HOST", [_host(rank.host, glyphs) for rank in ranks], rank=6, right=False),
        Column("GPU", [str(rank.gpu.gpu) if rank.gpu else "" for rank in ranks], rank=7),
        *_use_columns([gpu.use for gpu in gpus], glyphs, "USE"),
        Column("MEMORY", [_memory(gpu.memory, gpu.memory_total) for gpu in gpus], rank=3),
        Column("POWER", [_watts(gpu.power) for gpu in gpus], rank=5),
        Column("TEMP", [_degrees(gpu.temperature, glyphs) for gpu in gpus], rank=4),
        Column("STEP", [_time(rank.step_seconds, glyphs) for rank in ranks], rank=1),
        Column("DATA", [_time(rank.data_seconds, glyphs) for rank in ranks], rank=9),
        Column("COMPUTE", [_time(rank.compute_seconds, glyphs) for rank in ranks], rank=10),
        Column("WAIT", [_time(r.communication_seconds, glyphs) for r in ranks], rank=8),
        Column(
            "", [_rank_note(rank) or _age_note(ages.get(rank.host)) for rank in ranks], right=False
        ),
    ]


def _node_columns(nodes: Sequence[NodeNow], run_view: RunView, glyphs: Glyphs) -> list[Column]:
    gpus, ages = any(node.gpus for node in nodes), _ages(run_view)
    busy = [node.cpu / node.cpus if node.cpu is not None and node.cpus else None for node in nodes]
    first = (
        _use_columns([_mean(gpu.use for gpu in node.gpus) for node in nodes], glyphs, "GPU")
        if gpus
        else _use_columns(busy, glyphs, "CPU")
    )
    return [
        Column("NODE", [_host(node.host, glyphs) or str(node.node) for node in nodes], right=False),
        Column("GPUS", [str(len(node.gpus)) if node.gpus else "" for node in nodes], rank=8),
        *first,
        *_gpu_sums(nodes, glyphs),
        Column("CPUS", [_cpus(node) for node in nodes], rank=3),
        Column("RAM", [_memory(node.memory, node.memory_limit) for node in nodes], rank=2),
        Column("NET IN", [rate(node.net_in, "") for node in nodes], rank=7),
        Column("OUT", [rate(node.net_out, "") for node in nodes], rank=7),
        Column("DISK READ", [rate(node.disk_read, "") for node in nodes], rank=9),
        Column("WRITE", [rate(node.disk_write, "") for node in nodes], rank=9),
        Column(
            "",
            [_node_note(node, run_view) or _age_note(ages.get(node.host)) for node in nodes],
            right=False,
        ),
    ]


def _gpu_sums(nodes: Sequence[NodeNow], glyphs: Glyphs) -> list[Column]:
    used = [_sum(gpu.memory for gpu in node.gpus) for node in nodes]
    there = [_sum(gpu.memory_total for gpu in node.gpus) for node in nodes]
    power = [_sum(gpu.power for gpu in node.gpus) for node in nodes]
    hottest = [
        max((gpu.temperature for gpu in node.gpus if gpu.temperature is not None), default=None)
        for node in nodes
    ]
    memories = [_memory(a, b) for a, b in zip(used, there, strict=True)]
    return [
        Column("GPU MEM", memories, rank=4),
        Column("POWER", [_watts(watts) for watts in power], rank=5),
        Column("TEMP", [_degrees(degrees, glyphs) for degrees in hottest], rank=6),
    ]


def _use_columns(shares: Sequence[float | None], glyphs: Glyphs, title: str) -> list[Column]:
    """Return the stretching bar and the number after it; nothing where no share is known."""
    if all(share is None for share in shares):
        return []

    def draw(row: int, width: int) -> Text:
        return bar(shares[row], width, _use_colour(shares[row]), glyphs)

    cells = [""] * len(shares)
    return [
        Column("", cells, rank=2, right=False, draw=draw, least=7, most=_BAR),
        Column(title, [Text(percent(share), _use_colour(share)) for share in shares]),
    ]


def _use_colour(share: float | None) -> str:
    if share is None:
        return ""
    return "red" if share < 0.5 else "yellow" if share < 0.8 else "green"


def _rank_note(rank: RankNow) -> Text:
    if rank.failed:
        return Text("failed", "bold red")
    if rank.straggler:
        return Text(
            f"straggler +{percent(rank.behind)}" if rank.behind else "straggler", "bold red"
        )
    return Text()


def _node_note(node: NodeNow, run_view: RunView) -> Text:
    here = [rank for rank in run_view.ranks if rank.host == node.host]
    if failed := [rank.rank for rank in here if rank.failed]:
        return Text(f"rank {failed[0]} failed", "bold red")
    if slow := [rank for rank in here if rank.straggler]:
        return Text(f"straggler: rank {slow[0].rank}", "bold red")
    return Text()


def _ages(run_view: RunView) -> dict[str, float]:
    """Map hosts to the age of their last sample, where it is old; empty when the run is over."""
    if run_view.status.state.ended:
        return {}
    ages = {node.host: run_view.time - node.time for node in run_view.nodes}
    return {host: age for host, age in ages.items() if age > _OLD}


def _age_note(age: float | None) -> Text:
    return Text() if age is None else Text(f"sampled {clock(age)} ago", "yellow")


def _time(seconds: float | None, glyphs: Glyphs) -> str:
    return step_time(seconds).replace("µ", glyphs.micro)


def _sorted_ranks(ranks: Sequence[RankNow], slowest: bool) -> list[RankNow]:
    return sorted(ranks, key=_slowness) if slowest else sorted(ranks, key=lambda rank: rank.rank)


def _slowness(rank: RankNow) -> tuple[float, float, int]:
    """Return a sort key: the most behind first; without a comparison the longest step."""
    return -(rank.behind or 0.0), -(rank.step_seconds or 0.0), rank.rank


def _sorted_nodes(run_view: RunView, slowest: bool) -> list[NodeNow]:
    if not slowest:
        return sorted(run_view.nodes, key=lambda node: node.node)
    worst: dict[str, tuple[float, float, int]] = {}
    for rank in run_view.ranks:
        worst[rank.host] = min(worst.get(rank.host, (0.0, 0.0, 0)), _slowness(rank))
    return sorted(
        run_view.nodes, key=lambda node: (*worst.get(node.host, (0.0, 0.0, 0))[:2], node.node)
    )


def _host(name: str, glyphs: Glyphs) -> str:
    short = clean(name).partition(".")[0]
    return short if len(short) <= _HOST else glyphs.more + short[-_HOST + len(glyphs.more) :]


def _memory(used: float | None, total: float | None) -> Text:
    full = used is not None and total and used / total > 0.95
    return Text(memory(used, total), "red" if full else "")


def _watts(power: float | None) -> str:
    return "" if power is None else f"{power:.0f} W"


def _degrees(celsius: float | None, glyphs: Glyphs) -> Text:
    if celsius is None:
        return Text()
    return Text(f"{celsius:.0f} {glyphs.degree}C", "red" if celsius >= 85 else "")


def _cpus(node: NodeNow) -> str:
    if node.cpu is None:
        return ""
    return f"{node.cpu:.1f}/{node.cpus}" if node.cpus else f"{node.cpu:.1f}"


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
