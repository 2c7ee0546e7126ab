"""Commands in the documentation: found, told apart and run.

The convention, for writers:

* A ```` ```console ```` block holds commands after ``$ `` (continued by ``\\`` or ``> ``) and what they
  print. A ```` ```bash ```` block holds commands alone, unless it starts with ``#!`` (then it is a file).
  Both are run, command after command, in one shell per page, in a folder that holds ``examples/`` and
  ``train.py``; each must exit 0.
* Lines of a console block that start with ``Error:``, ``note:`` or ``Use --`` must really come.
* A block that calls sbatch, submits or detects a site is run against a sandbox of two nodes.
* A block of another kind (text, toml, python, none) is not run. The pages about training are the
  exception: all ```` ```python ```` blocks of such a page are one script (see test_docs_python.py).
* A comment before the block says otherwise:
    ``<!-- docs: slurm -->``      against the sandbox, too
    ``<!-- docs: exit 2 -->``     the last command ends with this code
    ``<!-- docs: not run: … -->`` with the reason
    ``<!-- docs: file NAME -->``  the block is written to that file instead (any kind of block)
    ``<!-- docs: remove NAME -->`` that file first
  They may be joined by ``;``.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

_FENCE = re.compile(r"^(?P<indent> *)```(?P<kind>\w*)[^`]*$")
_SLURM = re.compile(r"allranks (submit|sites detect)|\b(sbatch|srun|salloc|squeue) ")
_PROMISED = ("Error:", "note:", "Use --", "Leave --", "ValueError:")
_COMMENT = re.compile(r"^\s*<!-- docs: (?P<words>.+?) -->\s*$")


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    page: str
    line: int
    kind: str
    text: str
    words: tuple[str, ...] = ()

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def slurm(self) -> bool:
        return "slurm" in self.words or (self.runs and bool(_SLURM.search(self.commands)))

    @property
    def not_run(self) -> bool:
        return any(word.startswith("not run") for word in self.words)

    @property
    def file(self) -> str | None:
        return next((word[5:] for word in self.words if word.startswith("file ")), None)

    @property
    def exit_code(self) -> int:
        return next((int(word[5:]) for word in self.words if word.startswith("exit ")), 0)

    @property
    def runs(self) -> bool:
        return (
            self.kind in ("console", "bash", "sh")
            and not self.not_run
            and not self.file
            and not self.text.startswith("#!")
        )

    @property
    def commands(self) -> str:
        """The block as a shell reads it."""
        if self.kind != "console":
            return self.text
        lines: list[str] = []
        open_line = False
        for line in self.text.splitlines():
            if line.startswith("$ ") or (open_line and line):
                lines.append(line.removeprefix("$ ").removeprefix("> "))
                open_line = lines[-1].endswith("\\")
        return "\n".join(lines) + "\n"

    @property
    def promised(self) -> list[str]:
        """Lines that the page shows and that must be in the output; paths differ from ours."""
        shown = self.text.splitlines() if self.kind == "console" else []
        return [line for line in shown if line.startswith(_PROMISED) and "/" not in line]


def read_blocks(path: Path) -> list[Block]:
    """The blocks of a page, in their order."""
    blocks: list[Block] = []
    words: tuple[str, ...] = ()
    lines = iter(enumerate(path.read_text(encoding="utf-8").splitlines(), start=1))
    for number, line in lines:
        if match := _COMMENT.match(line):
            words = tuple(word.strip() for word in match["words"].split(";"))
        elif fence := _FENCE.match(line):
            text = []
            for _, inner in lines:
                if inner.strip() == "```":
                    break
                text.append(inner.removeprefix(fence["indent"]))
            blocks.append(Block(path.name, number, fence["kind"], "\n".join(text) + "\n", words))
            words = ()
        elif line.strip():
            words = ()
    return blocks


def page_script(blocks: list[Block]) -> str:
    """One bash script of all blocks of a page. A block that ends otherwise than it says ends it."""
    parts = ["export PS4='+ '"]
    for block in blocks:
        parts += [f"rm -f '{word[7:]}'" for word in block.words if word.startswith("remove ")]
        if block.file:
            parts.append(f"mkdir -p \"$(dirname '{block.file}')\"")
            parts.append(f"cat >'{block.file}' <<'END OF FILE'\n{block.text}END OF FILE")
        elif block.runs:
            parts.append(
                f"echo '--- {block.where}' >&2\n"
                f"(\nset -e\n{block.commands}) >../output 2>&1 </dev/null\ncode=$?\ncat ../output\n"
                f"if ((code != {block.exit_code})); then\n"
                f'  echo "{block.where} ended with $code, not {block.exit_code}" >&2; exit 97\nfi'
            )
            parts += [
                f"grep -qF -- {shlex.quote(line)} ../output || "
                f"{{ echo {shlex.quote(f'{block.where} did not print: {line}')} >&2; exit 98; }}"
                for line in block.promised
            ]
    return "\n".join(parts) + "\n"


def page_program(blocks: list[Block]) -> str:
    """One Python script of all Python blocks of a page, each below the line where it stands."""
    chosen = [
        block for block in blocks if block.kind == "python" and not block.not_run and not block.file
    ]
    return "\n".join(f"# {block.where}\n{block.text}" for block in chosen)
