"""What a script imports, without running it."""

from __future__ import annotations

from pathlib import Path

import pytest

from allranks.core.python_imports import scan
from allranks.errors import UsageError


def found(folder: Path, text: str) -> tuple[str | None, tuple[str, ...]]:
    script = folder / "train.py"
    script.write_text(text)
    result = scan(script)
    return result.framework, result.preload


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import torch.nn as nn", ("torch", ("torch",))),
        ("def f():\n from lightning import Fabric", ("torch", ("torch",))),
        ("from allranks import Trainer", ("torch", ("torch",))),
        ("import allranks", (None, ())),
        ("import tensorflow as tf", ("tensorflow", ())),
        ("import torch\nimport jax", ("torch", ())),
        ("import horovod.torch as hvd\nimport torch", ("horovod", ("torch",))),
        ("from horovod import tensorflow", ("horovod", ())),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n import torch", (None, ())),
        ("import torch\nx = (", (None, ())),
        ("import numpy", (None, ())),
    ],
)
def test_frameworks(
    tmp_path: Path, text: str, expected: tuple[str | None, tuple[str, ...]]
) -> None:
    assert found(tmp_path, text) == expected


def test_local_modules_are_followed(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg/__init__.py").write_text("from .model import Net")
    (tmp_path / "pkg/model.py").write_text("from . import deep\nimport train")
    (tmp_path / "pkg/deep.py").write_text("import timm")
    assert found(tmp_path, "from pkg import Net") == ("torch", ("torch",))


def test_a_circle_of_modules_ends(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("import b")
    (tmp_path / "b.py").write_text("import a, broken")
    (tmp_path / "broken.py").write_bytes(b"\xff\x00(")
    assert found(tmp_path, "import a") == (None, ())


def test_no_script(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no script"):
        scan(tmp_path / "x.py")
