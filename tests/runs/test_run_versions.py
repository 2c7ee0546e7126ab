"""Versions: of this interpreter, of another, and when it does not answer."""

from __future__ import annotations

import json
import platform
import sys
from pathlib import Path

from allranks.runs.package_versions import collect_versions, requirements, write_versions


def test_this_interpreter(tmp_path: Path) -> None:
    write_versions(tmp_path)
    about = json.loads((tmp_path / "versions.json").read_text())
    assert about["python"] == platform.python_version()
    assert "pytest" in about["packages"]
    lines = (tmp_path / "requirements.txt").read_text().splitlines()
    assert f"pytest=={about['packages']['pytest']}" in lines


def test_another_interpreter_says_the_same(tmp_path: Path) -> None:
    other = tmp_path / "python"
    other.write_text(f'#!/bin/sh\necho a banner\nexec "{sys.executable}" "$@"\n')
    other.chmod(0o755)
    assert collect_versions(str(other))["packages"] == collect_versions()["packages"]


def test_interpreters_that_fail_do_not_stop_a_run(tmp_path: Path) -> None:
    silent = tmp_path / "python"
    silent.write_text("#!/bin/sh\nexit 3\n")
    silent.chmod(0o755)
    slow = tmp_path / "slow"
    slow.write_text("#!/bin/sh\nexec sleep 20\n")
    slow.chmod(0o755)
    for python in (str(silent), "/nowhere/python"):
        assert "error" in write_versions(tmp_path, python)
        assert (tmp_path / "requirements.txt").read_text() == ""
    assert "error" in collect_versions(str(slow), timeout=0.3)


def test_sources_that_no_index_has() -> None:
    versions = {"packages": {"a": "1", "b": "2"}, "sources": {"b": "git+https://h/b@abc"}}
    assert requirements(versions) == "a==1\nb @ git+https://h/b@abc\n"
