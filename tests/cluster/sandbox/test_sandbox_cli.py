"""``allranks sandbox`` as it is typed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from allranks.cli.sandbox import sandbox
from allranks.cluster.sandbox.testing import missing_reason
from allranks.errors import SandboxError

NAME = f"cli-{os.getpid()}"


def invoke(*words: str) -> Result:
    return CliRunner().invoke(sandbox, list(words), terminal_width=80)


@pytest.mark.parametrize(
    "verb", ["up", "down", "status", "list", "shell", "kill-node", "start-node"]
)
def test_help_fits_80_columns_and_explains_every_option(verb: str) -> None:
    done = invoke(verb, "--help")
    assert done.exit_code == 0
    assert max(map(len, done.output.splitlines())) <= 80
    command = sandbox.commands[verb]
    options = [each for each in command.params if isinstance(each, click.Option)]
    assert all(option.help for option in options)


def test_a_setting_without_a_value() -> None:
    done = invoke("up", "--set", "KillWait")
    assert done.exit_code == 2
    assert "KEY=VALUE" in done.output


def test_no_sandbox() -> None:
    assert f"There is no sandbox '{NAME}'" in invoke("down", "-n", NAME).output
    assert isinstance(invoke("status", "-n", NAME).exception, SandboxError)


def test_the_command_loads_the_sandbox_only_when_it_is_used() -> None:
    code = "import sys, allranks.cli.sandbox; print('allranks.cluster.sandbox' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "False"


@pytest.mark.slurm
@pytest.mark.skipif(bool(missing_reason()), reason=missing_reason() or "all programs are here")
def test_a_life() -> None:
    try:
        up = invoke("up", "-n", NAME, "--set", "KillWait=4")
        assert up.exit_code == 0, up.exception
        assert f"allranks sandbox shell --name {NAME}" in up.output
        assert max(map(len, up.output.splitlines())) <= 80
        assert "node1  on     idle" in invoke("status", "-n", NAME).output
        state = json.loads(invoke("status", "-n", NAME, "--json").output)
        assert "KillWait=4" in Path(state["slurm_conf"]).read_text()
        assert NAME in [each["name"] for each in json.loads(invoke("list", "--json").output)]
        assert "node2 is off" in invoke("kill-node", "node2", "-n", NAME).output
        assert "off already" in invoke("kill-node", "node2", "-n", NAME).output
        assert "1 of 2" in invoke("list").output
        assert "takes jobs" in invoke("start-node", "node2", "-n", NAME).output
        assert isinstance(invoke("kill-node", "node9", "-n", NAME).exception, SandboxError)
        code = "from allranks.cli.sandbox import sandbox; sandbox()"
        words = ["shell", "-n", NAME, "--", "srun", "-N2", "-l", "echo", "here"]
        done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
        assert sorted(done.stdout.splitlines()) == ["0: here", "1: here"], done.stderr
    finally:
        assert "is down" in invoke("down", "-n", NAME).output
    assert "There is no sandbox" in invoke("down", "-n", NAME).output
