"""The small fixes that Horovod 0.28.1 needs for today's frameworks, applied to its source."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from allranks.errors import AllranksError

REVISION = 1
"""Counts up when a fix changes: wheels of older fixes are then built anew."""


@dataclass(frozen=True)
class Patch:
    """One fix: a pattern and what takes its place, in some files."""

    title: str
    files: tuple[str, ...]
    pattern: str
    replacement: str

    def apply(self, source: Path) -> None:
        """Change the files; the pattern must be in each."""
        for name in self.files:
            path = source / name
            text, count = re.subn(self.pattern, self.replacement, path.read_text(encoding="utf-8"))
            if not count:
                raise AllranksError(
                    f"The source is not the one that was expected: {name} has no '{self.pattern}'."
                )
            path.write_text(text, encoding="utf-8")


CXX17 = Patch(
    "C++17, which torch's headers ask for",
    ("CMakeLists.txt", "horovod/torch/CMakeLists.txt"),
    r"CMAKE_CXX_STANDARD 14",
    "CMAKE_CXX_STANDARD 17",
)
NO_XLA = Patch(
    "without xla_mpi_ops.cc, whose headers TensorFlow's wheel does not ship",
    ("horovod/tensorflow/CMakeLists.txt",),
    r".*xla_mpi_ops\.cc.*\n",
    "",
)
LEGACY_KERAS = Patch(
    "tf_keras in place of Keras 3, which Horovod cannot train",
    ("horovod/tensorflow/keras/__init__.py", "horovod/tensorflow/keras/callbacks.py"),
    r"from keras import backend as K",
    "from tf_keras import backend as K",
)


def patches_for(torch: bool, tensorflow: bool, tf_keras: bool) -> list[Patch]:
    """The fixes that a build for these frameworks needs."""
    chosen = [CXX17] if torch else []
    chosen += [NO_XLA] if tensorflow else []
    return chosen + ([LEGACY_KERAS] if tensorflow and tf_keras else [])


def apply_all(patches: Iterable[Patch], source: Path) -> None:
    """Apply them in order."""
    for patch in patches:
        patch.apply(source)
