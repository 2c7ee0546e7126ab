"""What a checkpoint may hold beside tensors: plain values, since it is read without executing code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from allranks.errors import UsageError

_LEAVES = (type(None), bool, int, float, complex, str, bytes)


def plain(value: Any, whose: str, path: str = "") -> Any:
    """Return the value as dicts, lists and tuples of numbers, text and tensors; NumPy's become Python's.

    An error names ``whose`` value it is and where in it something else is.
    """
    if isinstance(value, Mapping):
        items = value.items()
        return {_number(key): plain(each, whose, f"{path}.{key}") for key, each in items}
    if isinstance(value, (list, tuple)):
        made = [plain(each, whose, f"{path}.{place}") for place, each in enumerate(value)]
        return made if isinstance(value, list) else tuple(made)
    value = _number(value)
    if type(value) in _LEAVES or hasattr(value, "detach") or _can_be_read(value):
        return value
    where = f" (at {path.lstrip('.')})" if path else ""
    raise UsageError(
        f"{whose} holds a {type(value).__name__}{where}: checkpoints hold numbers, text, tensors, "
        "lists and dicts of them."
    )


def _number(value: Any) -> Any:
    is_numpy = type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0
    return value.item() if is_numpy else value


def _can_be_read(value: Any) -> bool:
    """Whether torch can read it safely, as its own types and devices, and sets."""
    from allranks.train.checkpoint.checkpoint_reader import pack_blob, unpack_blob

    try:
        unpack_blob(pack_blob(value))
    except Exception:  # noqa: BLE001  whatever hinders it, it cannot be kept
        return False
    return True
