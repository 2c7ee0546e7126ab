"""Settings files of DeepSpeed (JSON, often not quite) and accelerate (YAML)."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

from allranks.core.lenient_json import Correction, LenientJSONError, read_lenient
from allranks.job.accelerate_config import AccelerateFile, parse_accelerate
from allranks.lint.source_text import SourceFile, Span

_DEEPSPEED_KEYS = {
    "train_batch_size", "train_micro_batch_size_per_gpu", "zero_optimization", "fp16", "bf16", "optimizer",
    "gradient_accumulation_steps", "zero_allow_untested_optimizer", "scheduler", "gradient_clipping",
}  # fmt: skip
_ACCELERATE_KEYS = {
    "distributed_type",
    "num_machines",
    "num_processes",
    "machine_rank",
    "compute_environment",
}


class ConfigFile:
    """One settings file."""

    def __init__(self, source: SourceFile, named: bool = False) -> None:
        self.source = source
        self.named = named
        """A command names it as DeepSpeed's or accelerate's, so it is one whatever it holds."""

    @property
    def is_json(self) -> bool:
        """Whether its name says JSON."""
        return Path(self.source.name).suffix.lower() == ".json"

    @cached_property
    def _read(self) -> tuple[Any, list[Correction], LenientJSONError | None]:
        try:
            return (*read_lenient(self.source.text), None)
        except LenientJSONError as error:
            return None, [], error

    @property
    def settings(self) -> dict[str, Any] | None:
        """DeepSpeed's settings; None where the file is none of DeepSpeed's."""
        value = self._read[0] if self.is_json else None
        if not isinstance(value, dict) or not (self.named or _DEEPSPEED_KEYS & value.keys()):
            return None
        return value

    @property
    def corrections(self) -> list[Correction]:
        """What is not strict JSON and can be read all the same."""
        return self._read[1]

    @property
    def failure(self) -> LenientJSONError | None:
        """Why it cannot be read at all."""
        return self._read[2] if self.is_json else None

    @cached_property
    def accelerate(self) -> AccelerateFile | None:
        """accelerate's settings; None where the file is none of accelerate's."""
        if self.is_json and not self.named:
            return None
        file = parse_accelerate(self.source.name, self.source.text)
        return file if self.named or len(_ACCELERATE_KEYS & file.values.keys()) >= 2 else None

    def line_span(self, line: int) -> Span:
        """A whole line."""
        start = self.source.start_of(line)
        return self.source.span(start, start + len(self.source.line(line)))

    def key_span(self, key: str) -> Span:
        """Where a key is written; the start of the file where it is not."""
        at = self.source.text.find(key)
        return self.source.span(max(at, 0), max(at, 0) + (len(key) if at >= 0 else 1))
