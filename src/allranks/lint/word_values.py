"""What words are worth: numbers where the text tells them, and where an address comes from."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Sequence

from allranks.lint.command_calls import TASK, Call, Layer, Shell
from allranks.lint.job_resources import Allocation, Shape, step_shape
from allranks.lint.shell.model import Arithmetic, Literal, Part, Substitution, Variable, Word

Numbers = frozenset[int]
_OPERATORS = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip
_SAFE = re.compile(r"^[\d\s+\-*/%()]{1,200}$")
_MOST = 16

FIRST_HOST, ALL_HOSTS, OWN_HOST, OWN_ADDRESS, LOCALHOST, FIXED, UNKNOWN = (
    "first host", "all hosts", "own host", "own address", "localhost", "fixed", "unknown",
)  # fmt: skip
RANKS = frozenset({"SLURM_PROCID", "SLURM_NODEID", "SLURM_LOCALID"})
"""What differs between tasks; in the batch shell all three are 0."""
HOST_VARIABLES = frozenset({"HOSTNAME", "SLURMD_NODENAME", "HOST"})


class Values:
    """Reads words in the light of what the job asks for."""

    def __init__(self, allocation: Allocation) -> None:
        self.allocation = allocation

    def number(self, word: Word | None) -> int | None:
        """The number that a word surely stands for."""
        found = None if word is None else self.numbers(word)
        return next(iter(found)) if found is not None and len(found) == 1 else None

    def numbers(self, word: Word) -> Numbers | None:
        """The numbers that it may stand for; None where that is not known."""
        return self._of_parts(word.parts)

    def shape(self, step: Layer | None) -> Shape:
        """How many nodes and tasks a step has."""
        return step_shape(self.allocation, step, self.number)

    def _of_parts(self, parts: Sequence[Part], depth: int = 0) -> Numbers | None:
        kept = [part for part in parts if not (isinstance(part, Literal) and not part.text)]
        if depth > 8 or not kept:
            return None
        if len(kept) == 1:
            return self._of_part(kept[0], depth)
        texts = [part.text for part in kept if isinstance(part, Literal)]
        return _plain("".join(texts)) if len(texts) == len(kept) else None

    def _of_part(self, part: Part, depth: int) -> Numbers | None:
        if isinstance(part, Literal):
            return _plain(part.text)
        if isinstance(part, Arithmetic):
            return self._arithmetic(part, depth + 1)
        if isinstance(part, Substitution):
            return self._printed(part)
        if part.choices and not part.operator:
            found = [self._of_parts(choice, depth + 1) for choice in part.choices]
            if any(each is None for each in found):
                return None
            return frozenset(number for each in found for number in each or ())
        if part.operator and part.operator not in (":-", "-"):
            return None
        given = self.slurm(part.name, part.shell)
        return None if given is None else frozenset({given})

    def slurm(self, name: str, shell: Shell | None) -> int | None:
        """The value of one of Slurm's variables, where the options tell it."""
        job = self.allocation
        inside = shell is not None and shell.kind == TASK and shell.step is not None
        shape = self.shape(shell.step) if inside and shell else Shape(job.nodes, job.tasks)
        if name in RANKS and shell is not None and shell.kind == "batch":
            return 0
        if name == "SLURM_JOB_NUM_NODES":
            return job.nodes if job.options.has("nodes") else None
        if name in ("SLURM_NNODES", "SLURM_STEP_NUM_NODES"):
            return shape.nodes if inside or job.options.has("nodes") else None
        if name in ("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_STEP_NUM_TASKS"):
            given = job.options.has("ntasks", "ntasks-per-node", "ntasks-per-gpu")
            return shape.tasks if inside or given else None
        if name == "SLURM_NTASKS_PER_NODE":
            return job.number("ntasks-per-node")
        if name == "SLURM_GPUS_ON_NODE":
            return job.gpus_per_node or None
        if name in (
            "SLURM_GPUS_PER_NODE",
            "SLURM_GPUS_PER_TASK",
            "SLURM_CPUS_PER_TASK",
            "SLURM_GPUS",
        ):
            return job.number(name[6:].lower().replace("_", "-"))
        return None

    def _arithmetic(self, part: Arithmetic, depth: int) -> Numbers | None:
        results = {""}
        for term in part.terms:
            if isinstance(term, str):
                pieces = {"" if term in ("$((", "))", "$[", "]") else term}
            else:
                found = self._of_parts((term,), depth)
                if found is None:
                    return None
                pieces = {str(number) for number in found}
            results = {f"{before} {piece}" for before in results for piece in pieces}
            if len(results) > _MOST:
                return None
        computed = [_compute(text) for text in results]
        return (
            None if None in computed else frozenset(each for each in computed if each is not None)
        )

    def _printed(self, part: Substitution) -> Numbers | None:
        """``$(scontrol show hostnames … | wc -l)`` counts the nodes, ``$(echo 4)`` is 4."""
        names = [call.name for call in part.calls]
        if len(names) == 1 and names[0] == "echo" and len(part.calls[0].args) == 1:
            return self.numbers(part.calls[0].args[0])
        if names == ["expr"]:
            return self._expr(part.calls[0])
        if names[:1] == ["scontrol"] and names[-1:] == ["wc"] and self.allocation.nodes:
            return frozenset({self.allocation.nodes})
        if names[:1] == ["nvidia-smi"] and names[-1:] == ["wc"] and self.allocation.gpus_per_node:
            return frozenset({self.allocation.gpus_per_node})
        return None

    def _expr(self, call: Call) -> Numbers | None:
        """``expr $NODES \\* 4``."""
        pieces = []
        for word in call.args:
            number = self.number(word)
            pieces.append(word.text or "?" if number is None else str(number))
        result = _compute(" ".join(pieces))
        return None if result is None else frozenset({result})


def _plain(text: str) -> Numbers | None:
    text = text.strip()
    return (
        frozenset({int(text)}) if text.isdecimal() and text.isascii() and len(text) < 12 else None
    )


def _compute(text: str) -> int | None:
    text = re.sub(r"\b0+(\d)", r"\1", text).replace("/", "//")
    if not _SAFE.match(text):
        return None
    try:
        return _evaluate(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError):
        return None


def _evaluate(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return int(_OPERATORS[type(node.op)](_evaluate(node.left), _evaluate(node.right)))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_evaluate(node.operand)
    raise ValueError("not plain arithmetic")


def origin(parts: Sequence[Part]) -> str:
    """Where an address comes from."""
    kept = [part for part in parts if not (isinstance(part, Literal) and not part.text)]
    if not kept:
        return UNKNOWN
    if all(isinstance(part, Literal) for part in kept):
        text = "".join(part.text for part in kept if isinstance(part, Literal)).strip()
        return LOCALHOST if text.lower() in ("localhost", "127.0.0.1", "::1") else FIXED
    found = {_origin_of(part) for part in kept if not isinstance(part, Literal)}
    return found.pop() if len(found) == 1 else UNKNOWN


def _origin_of(part: Part) -> str:
    if isinstance(part, Substitution):
        return _of_commands(part.calls)
    if isinstance(part, Variable):
        if part.choices:
            found = {origin(choice) for choice in part.choices}
            only = found.pop() if len(found) == 1 else UNKNOWN
            return FIRST_HOST if only == ALL_HOSTS and part.index in ("", "0") else only
        if part.name in HOST_VARIABLES and not part.operator:
            return OWN_HOST
    return UNKNOWN


def _of_commands(calls: Sequence[Call]) -> str:
    if not calls:
        return UNKNOWN
    first = calls[0]
    names = [call.name for call in calls]
    if first.name == "scontrol" and any(
        (word.text or "").startswith("hostname") for word in first.args
    ):
        cut = any(name in ("head", "sed", "awk", "cut", "grep") for name in names[1:])
        return FIRST_HOST if cut else ALL_HOSTS
    if first.name == "hostname":
        step = any(layer.starts for layer in first.layers)
        if any(_asks_address(word) for word in first.args):
            return FIRST_HOST if step and _one_host(first) else OWN_ADDRESS
        return FIRST_HOST if step else OWN_HOST
    if first.name in ("getent", "host", "nslookup", "dig") and first.args:
        return FIRST_HOST if origin(first.args[-1].parts) == FIRST_HOST else UNKNOWN
    if first.name in ("echo", "printf") and len(first.args) == 1:
        return origin(first.args[0].parts)
    return UNKNOWN


def _asks_address(word: Word) -> bool:
    return (word.text or "") in ("-i", "-I", "--ip-address", "--all-ip-addresses")


def _one_host(call: Call) -> bool:
    return any(layer.options.has("nodelist") for layer in call.layers)
