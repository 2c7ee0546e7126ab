"""The model as a table: layers, parameters, sizes. It runs nothing and needs no input.

A weight that is used in two places is counted where it comes first. Sharded parameters count whole,
parameters on the meta device like any other, and lazy ones, which have no shape yet, as unknown.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from allranks.core.formatting import amount, size

WIDTH = 80
_TRANSPARENT = ("ModuleList", "ModuleDict")  # they only hold others and have no forward
_NUMBERS = (10, 9, 7)  # columns of parameters, trainable, share


@dataclass
class ParameterCount:
    """Parameters of one row."""

    all: int = 0
    trainable: int = 0
    lazy: bool = False
    tied: bool = False

    def add(self, parameter: Any) -> None:
        """Count one parameter in."""
        if _is_lazy(parameter):
            self.lazy = True
            return
        count = _numel(parameter)
        self.all += count
        self.trainable += count if parameter.requires_grad else 0


@dataclass
class LayerRow:
    """One line: a layer, several alike, or parameters that a module holds directly."""

    name: str
    type: str
    level: int
    covers: list[str]
    count: ParameterCount = field(default_factory=ParameterCount)


def summarize(model: Any, depth: int = 2, width: int = WIDTH) -> str:
    """Return a table of layers down to ``depth``, with repeated blocks on one line, and their size."""
    model = getattr(model, "_orig_mod", model)  # torch.compile's wrapper
    whole = ParameterCount()
    owners = list(model.named_parameters())
    names = {name for name, _ in owners}
    for _, parameter in owners:
        whole.add(parameter)
    again = [n for n, _ in model.named_parameters(remove_duplicate=False) if n not in names]
    rows = list(_rows(model, depth))
    for row in rows:
        _fill(row, owners, again)
    kind = _kind(model)
    return "\n".join([*_table(kind, rows, whole, width), *_totals(model, owners, whole)])


def _rows(
    module: Any, depth: int, prefix: str = "", level: int = 0, shown: str = ""
) -> Iterator[LayerRow]:
    """``prefix`` is the module's full name, ``shown`` the part that the row above already shows."""
    if level >= depth:
        return
    if module._modules or not prefix:
        for name, _ in module.named_parameters(recurse=False):
            yield LayerRow(
                _join(prefix, name)[len(shown) :], "Parameter", level, [_join(prefix, name)]
            )
    for same in _alike(module, prefix):
        (first, child), last = same[0], same[-1][0]
        kind = _kind(child)
        if kind in _TRANSPARENT and child._modules:
            for name, inner in same:
                yield from _rows(inner, depth, name, level, shown)
        elif len(same) > 1:
            both = f"{first[len(shown) :]} … {last[len(shown) :]}"
            yield LayerRow(both, f"{len(same)} × {kind}", level, [name for name, _ in same])
        else:
            yield LayerRow(first[len(shown) :], kind, level, [first])
            yield from _rows(child, depth, first, level + 1, f"{first}.")


def _alike(module: Any, prefix: str) -> Iterator[list[tuple[str, Any]]]:
    """Yield the children in order, with identical neighbours together."""
    children = [(_join(prefix, name), child) for name, child in module.named_children()]
    for _, same in groupby(children, key=lambda each: _build(each[1])):
        run = list(same)
        if run[0][1]._modules or len(run) > 2:
            yield run
        else:  # two identical plain layers are clearer as two lines
            yield from ([each] for each in run)


def _build(module: Any) -> tuple[Any, ...]:
    """Return a key that is equal for copies of one block."""
    shapes = [
        (name, None if _is_lazy(p) else tuple(_shape(p)), p.requires_grad)
        for name, p in module.named_parameters()
    ]
    parts = [(name, _kind(each)) for name, each in module.named_modules()]
    return _kind(module), tuple(parts), tuple(shapes)


def _fill(row: LayerRow, owners: list[tuple[str, Any]], again: list[str]) -> None:
    def is_inside(parameter: str) -> bool:
        return any(parameter == each or parameter.startswith(f"{each}.") for each in row.covers)

    for name, parameter in owners:
        if is_inside(name):
            row.count.add(parameter)
    row.count.tied = any(is_inside(name) for name in again)


def _table(kind: str, rows: list[LayerRow], whole: ParameterCount, width: int) -> list[str]:
    head = ("layer", "type", "parameters", "trainable", "share")
    cells = [head, *(_cells(row, whole) for row in rows)]
    cells.append((kind, "", _count(whole), _trainable(whole), "100 %" if whole.all else ""))
    most = max(width - sum(_NUMBERS) - 8, 20)  # two spaces between columns
    longest = [max(len(row[column]) for row in cells) for column in (0, 1)]
    names = min(longest[0], most - min(longest[1], most * 2 // 5))
    kinds = min(longest[1], most - names)
    lines = [_line(row, names, kinds) for row in cells]
    rule = "─" * max(len(line) for line in lines)
    return [lines[0], rule, *lines[1:-1], *([rule] if rows else []), lines[-1]]


def _cells(row: LayerRow, whole: ParameterCount) -> tuple[str, str, str, str, str]:
    share = f"{100 * row.count.all / whole.all:.1f} %" if whole.all and row.count.all else ""
    name = "  " * row.level + row.name
    return name, row.type, _count(row.count), _trainable(row.count), share


def _line(cells: tuple[str, str, str, str, str], names: int, kinds: int) -> str:
    name, kind, count, trainable, share = cells
    left = f"{_shorten(name, names):<{names}}  {_shorten(kind, kinds):<{kinds}}"
    first, second, third = _NUMBERS
    return f"{left}  {count:>{first}}  {trainable:>{second}}  {share:>{third}}".rstrip()


def _totals(model: Any, owners: list[tuple[str, Any]], whole: ParameterCount) -> list[str]:
    sizes: dict[str, int] = defaultdict(int)
    for _, parameter in owners:
        if not _is_lazy(parameter):
            sizes[_type_name(parameter)] += _numel(parameter) * parameter.dtype.itemsize
    buffers = sum(b.numel() * b.dtype.itemsize for _, b in model.named_buffers() if not _is_lazy(b))
    weights = ", ".join(f"{size(held)} {name}" for name, held in sizes.items())
    lines = [f"Weights: {weights or 'none'}" + (f"; buffers: {size(buffers)}" if buffers else "")]
    if whole.lazy:
        lines.append("Layers marked + get their shape from the first batch.")
    return lines


def _count(count: ParameterCount) -> str:
    if count.lazy:
        return f"{amount(count.all)} +" if count.all else "+"
    return "tied" if count.tied and not count.all else amount(count.all)


def _trainable(count: ParameterCount) -> str:
    return amount(count.trainable) if count.all else ""


def _join(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


def _kind(module: Any) -> str:
    """Return the user's class: ``fully_shard`` replaces it by a generated subclass."""
    bases = type(module).__bases__
    made = len(bases) == 2 and bases[0].__name__ == "FSDPModule"
    return bases[1].__name__ if made else type(module).__name__


def _type_name(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _shape(parameter: Any) -> Any:
    return getattr(parameter, "ds_shape", parameter.shape)


def _numel(parameter: Any) -> int:
    return int(getattr(parameter, "ds_numel", parameter.numel()))  # ZeRO 3's are empty between uses


def _is_lazy(tensor: Any) -> bool:
    """Uninitialised parameters and buffers raise when asked for their shape."""
    return hasattr(tensor, "materialize")


def _shorten(text: str, width: int) -> str:
    """Cut the middle of a name: its end identifies the layer, its beginning the block."""
    if len(text) <= width:
        return text
    front = (width - 1) // 2
    return text[:front] + "…" + text[len(text) - (width - 1 - front) :]
