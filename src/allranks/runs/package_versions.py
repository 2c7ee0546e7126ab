"""The versions of a run: its interpreter and every package."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from allranks.runs.atomic_files import write_json, write_text
from allranks.runs.code_snapshot import without_credentials

# Runs in the job's interpreter, which may be older than ours and has no allranks: plain Python 3.
_SCRIPT = r"""
import json, platform, sys
found = {}
try:
    from importlib.metadata import distributions
except ImportError:
    distributions = lambda: []
for one in distributions():
    try:
        about = one.metadata
        name, version = about["Name"], about["Version"]
        if name and name not in found:
            found[name] = [version, one.read_text("direct_url.json")]
    except Exception:
        pass
print("\n" + json.dumps({"python": platform.python_version(),
    "implementation": platform.python_implementation(), "executable": sys.executable,
    "platform": platform.platform(), "packages": found}))
"""
_LIMIT = 20  # seconds; a cold environment on a network file system takes several


def write_versions(run_path: Path, python: str | None = None) -> dict[str, Any]:
    """Write ``versions.json`` and ``requirements.txt`` for the interpreter (this one by default).

    Never fails a submission: what cannot be found is recorded under ``error``.
    """
    versions = collect_versions(python)
    write_json(run_path / "versions.json", versions)
    write_text(run_path / "requirements.txt", requirements(versions))
    return versions


def collect_versions(python: str | None = None, timeout: float = _LIMIT) -> dict[str, Any]:
    """Return ``{"python", "implementation", "executable", "platform", "packages": {name: version}}``."""
    try:
        raw = _here() if python in (None, sys.executable) else _ask(str(python), timeout)
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        return {"executable": python, "packages": {}, "error": f"{type(error).__name__}: {error}"}
    return _tidy(raw)


def requirements(versions: dict[str, Any]) -> str:
    """Return lines for ``pip install -r``; packages from git or a folder with their source."""
    sources = versions.get("sources", {})
    lines = [
        f"{name} @ {sources[name]}" if name in sources else f"{name}=={version}"
        for name, version in versions["packages"].items()
    ]
    return "".join(f"{line}\n" for line in lines)


def _here() -> dict[str, Any]:
    """Return what _SCRIPT prints, without starting a second interpreter."""
    found: dict[str, tuple[str, str | None]] = {}
    for one in metadata.distributions():
        about = one.metadata  # which is read and parsed each time that it is asked for
        # A half-removed package has metadata without a name.
        if name := about["Name"]:
            found.setdefault(name, (about["Version"], one.read_text("direct_url.json")))
    return {
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "executable": sys.executable,
        "platform": platform.platform(),
        "packages": found,
    }


def _ask(python: str, timeout: float) -> dict[str, Any]:
    done = subprocess.run(
        [python, "-c", _SCRIPT],
        capture_output=True,
        text=True,
        timeout=timeout,
        stdin=subprocess.DEVNULL,
        check=True,
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
    )
    return _last_line(done.stdout)


def _last_line(output: str) -> dict[str, Any]:
    """Return the last line of the output: a sitecustomize may print before it."""
    content = json.loads(output.strip().splitlines()[-1])
    if not isinstance(content, dict):
        raise ValueError("the interpreter printed something else")
    return content


def _tidy(raw: dict[str, Any]) -> dict[str, Any]:
    """Return the packages by name, and the sources of those that no index has."""
    found = sorted(raw.pop("packages").items(), key=lambda item: item[0].lower())
    sources = {name: source for name, (_, url) in found if (source := _source(url))}
    return raw | {"packages": {name: version for name, (version, _) in found}, "sources": sources}


def _source(direct_url: str | None) -> str | None:
    """Return where a package was installed from (PEP 610)."""
    try:
        about = json.loads(direct_url or "")
        url = without_credentials(str(about["url"]))
    except (ValueError, KeyError, TypeError):
        return None
    vcs = about.get("vcs_info") or {}
    commit = vcs.get("commit_id")
    return f"{vcs['vcs']}+{url}@{commit}" if commit and "vcs" in vcs else url
