"""A training script, read by ``ast``: what it imports and calls, never what it does."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cached_property

from allranks.lint.source_text import SourceFile, Span


class PythonFile:
    """One Python file."""

    def __init__(self, source: SourceFile) -> None:
        self.source = source

    @cached_property
    def tree(self) -> ast.Module | None:
        """Its tree; None where it is no Python that we can read."""
        try:
            return ast.parse(self.source.text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All nodes, outer ones first."""
        return list(ast.walk(self.tree)) if self.tree is not None else []

    @cached_property
    def names(self) -> dict[str, str]:
        """Local names and what they were imported as: ``DDP`` → ``torch.nn.parallel.Distributed…``."""
        found: dict[str, str] = {}
        for node in self.nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    found[alias.asname or alias.name.partition(".")[0]] = (
                        alias.name if alias.asname else alias.name.partition(".")[0]
                    )
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for alias in node.names:
                    found[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        return found

    @cached_property
    def modules(self) -> frozenset[str]:
        """The first words of everything that is imported."""
        return frozenset(name.partition(".")[0] for name in self.names.values())

    def full_name(self, node: ast.expr) -> str:
        """``torch.nn.DataParallel`` for ``nn.DataParallel``; empty where it is no name."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return ".".join(["", *reversed(parts)]) if parts else ""
        return ".".join([self.names.get(node.id, node.id), *reversed(parts)])

    @cached_property
    def calls(self) -> list[tuple[str, ast.Call]]:
        """Every call with its full name."""
        return [(self.full_name(n.func), n) for n in self.nodes if isinstance(n, ast.Call)]

    def called(self, *ends: str) -> Iterator[ast.Call]:
        """Calls whose name ends so: ``DataParallel``, ``nn.DataParallel``."""
        for name, call in self.calls:
            if any(name == end or name.endswith(f".{end}") for end in ends):
                yield call

    def mentions(self, *words: str) -> bool:
        """Whether one of these words is in the text at all."""
        return any(word in self.source.text for word in words)

    def span(self, node: ast.AST) -> Span:
        """The place of a node."""
        line = getattr(node, "lineno", 1)
        column = getattr(node, "col_offset", 0)
        start = self._offset(line, column)
        end = self._offset(
            getattr(node, "end_lineno", line), getattr(node, "end_col_offset", column)
        )
        return self.source.span(start, end)

    def _offset(self, line: int, column: int) -> int:
        """ast counts bytes, we count characters."""
        text = self.source.line(line)
        return self.source.start_of(line) + len(text.encode()[:column].decode("utf-8", "ignore"))

    @property
    def distributed(self) -> bool:
        """Whether it takes part in a training of several processes in any way that is known."""
        words = (
            "init_process_group", "init_distributed", "Accelerator(", "hvd.", "horovod", "deepspeed",
            "lightning", "Trainer(", "MultiWorkerMirrored", "mpi4py", "MPI.", "torch.distributed", "dist.",
            "LOCAL_RANK", "SLURM_PROCID", "SLURM_LOCALID", "WORLD_SIZE", "idr_torch", "composer", "jax.distributed",
            "submitit", "allranks", "ray.", "SLURM_ARRAY", "SLURM_NTASKS", "OMPI_COMM",
        )  # fmt: skip
        return self.mentions(*words)


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    """The value of a keyword argument."""
    return next((each.value for each in call.keywords if each.arg == name), None)


def constant(node: ast.expr | None) -> object:
    """The value of a constant, else None."""
    return node.value if isinstance(node, ast.Constant) else None
