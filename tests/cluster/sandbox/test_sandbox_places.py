"""Directories, ports and programs: what is looked for before a sandbox starts."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from allranks.cluster.sandbox import Sandbox, SandboxConfig, boot, isolation, ports, testing
from allranks.cluster.sandbox import directories as layout
from allranks.cluster.sandbox import slurm_programs as programs
from allranks.cluster.sandbox.directories import Layout
from allranks.errors import MissingDependencyError, SandboxError


@pytest.fixture(autouse=True)
def _own_home(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with tempfile.TemporaryDirectory(prefix="ar", dir="/tmp") as folder:
        monkeypatch.setattr(layout, "home", lambda: Path(folder) / "home")
        yield


def test_a_long_directory_is_refused() -> None:
    with pytest.raises(SandboxError, match="Use a shorter directory"):
        Layout(Path("/tmp/" + "x" * 70))


@pytest.mark.parametrize("text", ["/tmp/a b", "/tmp/%n", "/tmp/a#b", "relative"])
def test_a_directory_that_slurm_cannot_write_down_is_refused(text: str) -> None:
    with pytest.raises(SandboxError, match=r"slurm\.conf cannot hold"):
        Layout(Path(text))


@pytest.mark.parametrize("name", ["", "../x", "a b", "-n", "x" * 31])
def test_a_bad_name_is_refused(name: str) -> None:
    with pytest.raises(SandboxError, match="cannot name a sandbox"):
        layout.check_name(name)


def test_a_directory_with_other_files_is_left_alone() -> None:
    folder = layout.home().parent / "work"
    folder.mkdir()
    (folder / "thesis.tex").touch()
    with pytest.raises(SandboxError, match="holds other files"):
        layout.make_root("x", folder)
    assert (folder / "thesis.tex").exists()


def test_a_home_that_others_can_write_to_is_refused() -> None:
    layout.home().mkdir()
    layout.home().chmod(0o777)
    with pytest.raises(SandboxError, match="only you"):
        layout.make_root("x", None)


def test_an_unknown_sandbox_says_what_there_is() -> None:
    with pytest.raises(SandboxError, match="allranks sandbox up"):
        Sandbox.open("nowhere")


def test_two_that_start_at_once_get_two_blocks() -> None:
    with (
        ports.reserve(None, "hosts", 2, set(), lambda _: "") as first,
        ports.reserve(None, "hosts", 2, set(), lambda _: "") as second,
    ):
        assert first.number != second.number
        assert not set(first.ports(2)) & set(second.ports(2))


def test_a_port_in_use_is_skipped_and_a_wanted_one_refused() -> None:
    with socket.socket() as busy:
        busy.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with ports.reserve(None, "plain", 2, set(), lambda _: "") as free:
            pass
        busy.bind(("127.0.0.1", free.port + 1))
        busy.listen()
        with ports.reserve(None, "plain", 2, set(), lambda _: "") as other:
            assert other.port != free.port
        with (
            pytest.raises(SandboxError, match=f"port {free.port + 1} is in use"),
            ports.reserve(free.port, "plain", 2, set(), lambda _: ""),
        ):
            pass


def test_blocks_of_other_sandboxes_and_busy_networks_are_skipped() -> None:
    with ports.reserve(None, "network", 1, {160}, lambda b: "busy" * (b.number == 161)) as block:
        assert block.number > 161
        assert block.controller == f"10.{block.number}.0.254"


def test_a_name_is_held_by_one() -> None:
    with ports.guard("test/x") as first, ports.guard("test/x") as second:
        assert first
        assert not second
    with ports.guard("test/x") as again:
        assert again


def test_missing_programs_are_all_named_with_the_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(programs, "search_path", lambda: str(tmp_path))
    with pytest.raises(MissingDependencyError) as caught:
        boot.start("x", SandboxConfig(accounting=True), None, replace=False)
    text = str(caught.value)
    for word in ("slurmctld", "munged", "srun", "mariadbd", "apt-get install", "dnf install"):
        assert word in text
    assert not layout.home().exists()
    assert "apt-get" in testing.missing_reason()


def test_daemons_are_found_where_a_users_path_does_not_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin")
    assert "/usr/sbin" in programs.search_path().split(":")


def test_without_namespaces_nodes_are_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "_obstacle", lambda: "namespaces are not allowed here (EPERM)")
    assert isolation.choose("auto") == ("plain", "namespaces are not allowed here (EPERM)")
    monkeypatch.setattr(programs, "require", lambda *_: None)
    with pytest.raises(SandboxError, match="--isolation plain"):
        isolation.choose("hosts")


def test_only_root_makes_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation.os, "geteuid", lambda: 1000)
    with pytest.raises(SandboxError, match="--isolation hosts"):
        isolation.choose("network")
