"""The telemetry of a node in one attempt: the files ``nodes/node-00000.jsonl`` as one.

One file per node has CPUs, memory, network, disk and the GPUs that its first rank sees. Where ranks see
only a GPU of their own there are further files, ``node-00000.K.jsonl`` of local rank K, with that GPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from allranks.runs.jsonl_tail import JsonlTail

_FILE = re.compile(r"^node-(\d+)(?:\.(\d+))?\.jsonl$")
_MOST_GPUS = 1 << 16
_GARBLED = 8
"""Lines at the end of a file among which one that can be read is looked for."""
_FACTS = re.compile(rb'"kind"\s*:\s*"node"')


class NodeSource:
    """The samples of one node of one attempt, followed as they are written."""

    def __init__(self, node: int) -> None:
        self.node = node
        self.files: dict[int, JsonlTail] = {}
        """By the local rank that wrote each; 0 wrote the node's own."""
        self.gpus: dict[int, dict[str, Any]] = {}
        """What is known of each GPU, by a number that it has alone on this node."""
        self.numbering = 0
        """Increases whenever the GPUs are numbered again."""
        self._numbers: dict[tuple[int, int], int] = {}
        self._known: tuple[tuple[int, int], ...] = ()

    def add(self, local_rank: int, path: Path) -> None:
        """Follow one more file of this node."""
        if local_rank not in self.files:
            self.files[local_rank] = JsonlTail(path, aside=_FACTS)
            self.files = dict(sorted(self.files.items()))

    def refresh(self) -> bool:
        """Read what was added; return whether anything changed."""
        changed = [file.refresh() for file in self.files.values()]
        seen = tuple((file.generation, len(file.aside)) for file in self.files.values())
        if seen != self._known:
            self._known = seen
            self._number_gpus()
        return any(changed)

    @property
    def facts(self) -> dict[str, Any]:
        """Its host, CPUs, memory and GPUs, as last recorded; empty when that was lost."""
        return {} if self._main is None else _last_facts(self._main)

    @property
    def host(self) -> str:
        """Its name; ``node 3`` when that was not recorded."""
        return str(self.facts.get("host") or f"node {self.node}")

    @property
    def samples(self) -> JsonlTail | list[dict[str, Any]]:
        """The samples of the node itself, in order, each read when it is used."""
        return [] if self._main is None else self._main

    def gpus_of(self, local_rank: int) -> list[int]:
        """Return the GPUs in the file of this local rank."""
        return sorted(number for (who, _), number in self._numbers.items() if who == local_rank)

    def latest(self) -> dict[str, Any]:
        """Return the last sample, with the GPUs of all files; empty when there is none."""
        samples = [(who, row) for who, file in self.files.items() if (row := _last_sample(file))]
        if not samples:
            return {}
        gpus = {number: gpu for who, each in samples for number, gpu in self.gpus_in(who, each)}
        return {**samples[0][1], "gpus": [{**gpus[each], "gpu": each} for each in sorted(gpus)]}

    def gpus_in(
        self, local_rank: int, sample: Mapping[str, Any]
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """Return the GPUs of a sample of one file, each by its number on this node."""
        for given, gpu in _gpus(sample):
            # A sample whose facts were lost is believed where no other file may say the same number.
            number = self._numbers.get((local_rank, given), None if self._numbers else given)
            if number is not None:
                yield number, gpu

    @property
    def _main(self) -> JsonlTail | None:
        return self.files.get(min(self.files)) if self.files else None

    def _number_gpus(self) -> None:
        """Number the GPUs by uuid: where each rank sees one GPU only, every rank calls its own 0."""
        self.gpus, self._numbers = {}, {}
        self.numbering += 1
        seen: set[str] = set()
        for who, file in self.files.items():
            for given, gpu in _gpus(_last_facts(file)):
                uuid = str(gpu.get("uuid") or f"{who}:{given}")
                if uuid in seen:
                    continue
                seen.add(uuid)
                number = given if given not in self.gpus else max(self.gpus) + 1
                self._numbers[who, given] = number
                self.gpus[number] = {**gpu, "gpu": number}


def find_nodes(attempt: Path, nodes: dict[int, NodeSource]) -> None:
    """Add the nodes that are in the attempt's folder now to ``nodes``."""
    try:
        names = sorted(child.name for child in (attempt / "nodes").iterdir())
    except OSError:
        return
    for match in filter(None, map(_FILE.match, names)):
        node = int(match[1])
        nodes.setdefault(node, NodeSource(node)).add(
            int(match[2] or 0), attempt / "nodes" / match[0]
        )


def _last_facts(file: JsonlTail) -> dict[str, Any]:
    return file.aside[-1] if file.aside else {}


def _last_sample(file: JsonlTail) -> dict[str, Any]:
    """Return the last readable sample: a file cut by a full disk may end in a garbled line."""
    last = file[-1] if len(file) else {}
    return last or next((row for row in reversed(file[-_GARBLED:]) if row), {})


def _gpus(line: Mapping[str, Any]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Return the GPUs in a line, each with the number that it has there."""
    found = line.get("gpus")
    for gpu in found if isinstance(found, list) else ():
        number = gpu.get("gpu") if isinstance(gpu, dict) else None
        if isinstance(number, int) and 0 <= number < _MOST_GPUS:
            yield number, gpu
