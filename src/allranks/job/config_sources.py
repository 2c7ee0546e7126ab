"""The layers of a job's values: the command line overrides the file, the file overrides the site.

Each value keeps its origin, which ``--explain`` prints.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from allranks.cluster.sites.model import Site
from allranks.errors import UsageError, did_you_mean
from allranks.job.fields import Job, empty, options, read

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILE = "allranks.toml"
_POSITIONAL = ("script", "args")
_PATHS = (
    "chdir", "python", "conda_root", "venv", "uv", "setup", "container", "binds", "runs", "output", "error",
)  # fmt: skip


@dataclass(frozen=True)
class JobLayer:
    """Values from one source."""

    source: str
    values: Mapping[str, Any]


@dataclass(frozen=True)
class Origin:
    """The source of a value, and the reason for a derived one."""

    source: str
    why: str = ""

    def __str__(self) -> str:
        return f"{self.source}: {self.why}" if self.why else self.source


def merge(layers: list[JobLayer]) -> tuple[Job, dict[str, Origin]]:
    """Merge layers into a job, the last one strongest; tables are merged key by key."""
    values: dict[str, Any] = {}
    origins: dict[str, Origin] = {}
    for layer in layers:
        for name, value in layer.values.items():
            if name not in _POSITIONAL:
                value = read(name, value, options()[name])
            if isinstance(value, Mapping) and name in values:
                value = {**values[name], **value}
                origins[name] = Origin(f"{origins[name].source} + {layer.source}")
            else:
                origins[name] = Origin(layer.source)
            values[name] = value
    return Job(**values), origins


def file_layer(path: Path) -> JobLayer:
    """Read the job in ``allranks.toml``, or in the ``[tool.allranks]`` table of a pyproject."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"Cannot read {path}: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not valid TOML: {error}") from None
    if path.name == "pyproject.toml":
        data = data.get("tool", {}).get("allranks", {})
    values = _known(data, str(path))
    if path.parent.resolve() != Path.cwd():
        values = {name: _beside(path.parent, name, value) for name, value in values.items()}
    return JobLayer(path.name, values)


def site_layer(site: Site) -> JobLayer:
    """Return the site's defaults for the job, its environment and its variables."""
    values: dict[str, Any] = {**site.environment, **site.job}
    if site.variables:
        values["env"] = {**site.variables, **values.get("env", {})}
    if site.interface:
        values.setdefault("interface", site.interface)
    return JobLayer(f"site {site.name}", _known(values, f"site {site.name}"))


def find_file(start: Path) -> Path | None:
    """Return the nearest job file in a folder or its parents, up to the repository's root."""
    for folder in (start, *start.parents):
        if (folder / FILE).is_file():
            return folder / FILE
        pyproject = folder / "pyproject.toml"
        if pyproject.is_file() and "[tool.allranks" in pyproject.read_text("utf-8", "replace"):
            return pyproject
        if (folder / ".git").exists():
            break
    return None


def _known(data: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the values by field name; dashes are allowed in keys, unknown keys are errors."""
    names = (*options(), *_POSITIONAL)
    result: dict[str, Any] = {}
    for key, value in data.items():
        name = key.replace("-", "_")
        if name not in names:
            hint = did_you_mean(name, names, " See `allranks submit --help`.")
            raise UsageError(f"{where}: unknown key '{key}'.{hint}")
        if name == "time" and isinstance(value, int):
            value = str(value)  # a bare number is minutes to Slurm; an int would be seconds
        result[name] = _expand(value) if name in _PATHS else value
    return result


def _beside(folder: Path, name: str, value: Any) -> Any:
    """Resolve paths of a file in a parent folder from that folder, if they exist there."""
    if isinstance(value, list):
        return [_beside(folder, name, item) for item in value]
    if name not in ("script", *_PATHS) or not isinstance(value, str) or not value:
        return value
    found = folder / value
    return str(found) if not Path(value).is_absolute() and found.exists() else value


def _expand(value: Any) -> Any:
    """Expand ``~`` and ``$HOME`` in a file's paths, which no shell expands."""
    if isinstance(value, str):
        return os.path.expandvars(os.path.expanduser(value))  # noqa: PTH111
    return [_expand(item) for item in value] if isinstance(value, list) else value


def given(job: Job) -> dict[str, Any]:
    """Return the fields of a job that are set."""
    return {
        name: value
        for name in (*_POSITIONAL, *options())
        if (value := getattr(job, name)) != empty(name)
    }
