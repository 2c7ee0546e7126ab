"""All ranks write the same checkpoint."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from allranks.lint.finding import NOTE, Finding
from allranks.lint.python_file import PythonFile
from allranks.lint.related_files import Launched
from allranks.lint.rule import Rule

_HEAD = (
    "import torch\ntorch.distributed.init_process_group()\nrank = torch.distributed.get_rank()\n"
)
RULE = Rule(
    id="AR806",
    name="every-rank-writes",
    title="Every rank writes the same file",
    why="""Without a condition all ranks save to the same path at the same time. The file may be a mixture of
    several writes that cannot be loaded, and N copies of it go over the network.""",
    severity=NOTE,
    symptoms=("the checkpoint cannot be loaded", "PytorchStreamReader failed"),
    bad=_HEAD + "torch.save(model.state_dict(), 'model.pt')\n",
    good=_HEAD + "if rank == 0:\n    torch.save(model.state_dict(), 'model.pt')\n",
    clean=(
        _HEAD + "torch.save(model.state_dict(), f'model-{rank}.pt')\n",
        _HEAD
        + "def save():\n    torch.save(model.state_dict(), 'model.pt')\nif rank == 0:\n    save()\n",
        "import torch\ntorch.save(1, 'x.pt')\n",
    ),
    example="train.py",
)
_GUARD = re.compile(r"rank|main|master|proc|is_first|primary|zero|chief|should_save", re.I)


def check_python(file: PythonFile, launch: Launched | None) -> Iterator[Finding]:
    """``torch.save`` with no condition around it that could be about the rank."""
    if file.tree is None or not file.mentions("init_process_group", "init_distributed"):
        return
    if re.search(
        r"if\s+.*rank\s*(!=|>)\s*0.*:\s*\n\s*(return|continue|sys\.exit|exit)", file.source.text
    ):
        return
    guards = _guarded(file.tree)
    for call in file.called("torch.save"):
        text = file.span(call).text
        if id(call) in guards or _GUARD.search(text):
            continue
        yield RULE.at(
            file.span(call),
            "No condition about the rank stands around this: every process writes the file.",
            help="Write if rank == 0: before it.",
        )
        return


def _guarded(tree: ast.Module) -> set[int]:
    """Calls below a condition, or in a function of their own, whose caller may hold the condition."""
    found: set[int] = set()
    for node in ast.walk(tree):
        if (isinstance(node, ast.If) and _GUARD.search(ast.unparse(node.test))) or (
            isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
            and re.search("save|checkpoint", node.name)
        ):
            found |= {id(each) for each in ast.walk(node) if isinstance(each, ast.Call)}
    return found
