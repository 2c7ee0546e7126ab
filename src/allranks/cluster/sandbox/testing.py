"""A cluster for the tests of any project.

    import pytest
    from allranks.errors import MissingDependencyError
    from allranks.cluster.sandbox.testing import sandbox_for_tests

    @pytest.fixture(scope="session")
    def cluster():
        try:
            with sandbox_for_tests(nodes=2) as sandbox:
                yield sandbox
        except MissingDependencyError as error:
            pytest.skip(str(error))

Needs no pytest itself.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from allranks.cluster.sandbox import slurm_programs as programs
from allranks.cluster.sandbox.sandbox_cluster import Sandbox
from allranks.cluster.sandbox.sandbox_config import SandboxConfig
from allranks.errors import MissingDependencyError


@contextmanager
def sandbox_for_tests(**config: Any) -> Iterator[Sandbox]:
    """Start a cluster with its own name and ports; it is stopped at the end, whatever happens.

    Takes the fields of ``SandboxConfig``. Raises ``MissingDependencyError``, with the command to
    type, when the programs are not installed.
    """
    name = f"test-{os.getpid()}-{secrets.token_hex(3)}"
    # Clusters of parallel tests share this machine's ports, which jobs often choose by their id.
    settings = {"FirstJobId": str(1 + secrets.randbelow(5000)), **config.pop("settings", {})}
    with Sandbox.up(config=SandboxConfig(**config, settings=settings), name=name) as sandbox:
        yield sandbox


def missing_reason(isolation: str = "auto", accounting: bool = False) -> str:
    """Return why such a cluster cannot be started here, for ``pytest.mark.skipif``; empty when it can."""
    try:
        programs.require(isolation, accounting)
    except MissingDependencyError as error:
        return str(error)
    return ""
