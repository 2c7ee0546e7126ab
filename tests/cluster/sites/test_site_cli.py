"""``allranks sites``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from allranks.cli.sites import sites
from allranks.cluster.sites import detect_site, load_site
from allranks.errors import MissingDependencyError, SiteError, UsageError


def run(*words: str) -> str:
    result = CliRunner().invoke(sites, words, catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


@pytest.fixture
def on_a_cluster(no_sites: Path, runner_of: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(
        "allranks.cluster.sites.detect_site", lambda name: detect_site(runner_of(), name)
    )
    return no_sites


@pytest.mark.parametrize("words", [(), ("list",)])
def test_list(words: tuple[str, ...], no_sites: Path) -> None:
    text = run(*words)
    assert "lumi" in text
    assert "Here: no site that is known." in text


@pytest.mark.parametrize("words", [("--json",), ("list", "--json")])
def test_list_json(words: tuple[str, ...], no_sites: Path) -> None:
    data = json.loads(run(*words))
    assert data["here"] is None
    assert "lumi" in [each["name"] for each in data["sites"]]


def test_list_says_where_we_are(no_sites: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALLRANKS_SITE", "lumi")
    assert "Here: lumi (ALLRANKS_SITE is lumi)." in run()


def test_show(no_sites: Path) -> None:
    text = run("show", "lumi")
    assert "standard-g" in text
    assert "2-00:00:00" in text
    assert "NCCL_SOCKET_IFNAME" in text
    data = json.loads(run("show", "alvis", "--json"))
    assert data["partitions"][0]["shapes"][0]["gpu_type"] == "T4"


def test_show_site_without_shapes(no_sites: Path) -> None:
    assert "scc-gpu" in run("show", "scc")


def test_show_here(no_sites: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SiteError, match="No site file knows this machine"):
        run("show")
    monkeypatch.setenv("ALLRANKS_SITE", "scc")
    assert "taken because ALLRANKS_SITE is scc" in run("show")


def test_detect_prints_a_site_file(on_a_cluster: Path) -> None:
    Path("x.toml").write_text(run("detect", "--name", "x"))
    assert load_site("x.toml").partitions[0].shapes[0].gpu_type == "a100"
    assert json.loads(run("detect", "--json"))["name"] == "lab"


def test_detect_writes(on_a_cluster: Path) -> None:
    assert run("detect", "-o", "sub/there.toml") == ""
    assert load_site("sub/there.toml").name == "lab"
    run("detect", "--write", "--name", "mine")
    assert load_site("mine").kill_wait == 30


def test_detect_refuses(on_a_cluster: Path) -> None:
    with pytest.raises(UsageError, match="not both"):
        run("detect", "--write", "-o", "x")
    with pytest.raises(UsageError, match="cannot be the name"):
        run("detect", "--name", "../x")
    Path("file").write_text("")
    with pytest.raises(SiteError, match="Cannot write"):
        run("detect", "-o", "file/x.toml")


def test_detect_without_slurm(no_sites: Path) -> None:
    with pytest.raises(MissingDependencyError, match="no Slurm"):
        run("detect")
