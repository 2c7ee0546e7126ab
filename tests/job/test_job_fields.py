"""A value means the same from the command line, from TOML and from Python, and so do its errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from allranks.core.units import Gpus
from allranks.errors import UsageError
from allranks.job import field_parsing as parse
from allranks.job.config_sources import JobLayer, file_layer, given, merge
from allranks.job.fields import Job, empty, flag, options

SAME = [
    # field, what an option gives, what TOML gives, what Python gives, the value
    ("nodes", "2", "2", 2, 2),
    ("gpus_per_node", "A100:2", '"A100:2"', Gpus(2, "A100"), Gpus(2, "A100")),
    ("gpus_per_node", "4", "4", 4, Gpus(4)),
    ("memory", "64G", '"64G"', 65536, 65536),
    ("memory", "4000", "4000", 4000, 4000),
    ("time", "2h", '"2h"', 7200, 7200),
    ("time", "15", "15", "15", 900),
    ("exclusive", True, "true", True, True),
    ("requeue", False, "false", False, False),
    ("modules", ("cuda/12", "gcc"), '["cuda/12", "gcc"]', ["cuda/12", "gcc"], ("cuda/12", "gcc")),
    ("modules", ("cuda",), '"cuda"', "cuda", ("cuda",)),
    ("env", ("A=1", "B=x=y"), '{A = 1, B = "x=y"}', {"A": 1, "B": "x=y"}, {"A": "1", "B": "x=y"}),
    ("sbatch", ("hold", "--nice=5"), "{hold = true, nice = 5}", {"hold": "", "nice": "5"},
     {"hold": "", "nice": "5"}),
    ("sbatch", ("gpu_freq=high",), '{gpu-freq = "high"}', {"gpu_freq": "high"}, {"gpu-freq": "high"}),
    ("setup_commands", ("ulimit -n 4096",), '"ulimit -n 4096"', ["ulimit -n 4096"], ("ulimit -n 4096",)),
    ("launcher", "torchrun", '"torchrun"', "torchrun", "torchrun"),
    ("port", "29500", "29500", 29500, 29500),
    ("bind", "0-7;8-15,17", '"0-7;8-15,17"', "0-7;8-15,17", "0-7;8-15,17"),
    ("signal", "B:USR1@120", '"B:USR1@120"', "B:USR1@120", "B:USR1@120"),
    ("account", "12345", "12345", 12345, "12345"),
    ("venv", "envs/a", '"envs/a"', Path("envs/a"), "envs/a"),
    ("setup", ("a.sh",), '["a.sh"]', [Path("a.sh")], ("a.sh",)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "typed", "toml", "python", "value"), SAME)
def test_three_ways_give_one_value(
    name: str, typed: Any, toml: str, python: Any, value: Any, tmp_path: Path
) -> None:
    file = tmp_path / "allranks.toml"
    file.write_text(f"{name} = {toml}\n")
    from_options, _ = merge([JobLayer("command line", {name: typed})])
    from_file, _ = merge([file_layer(file)])
    from_python = Job(**{name: python})
    assert [getattr(job, name) for job in (from_options, from_file, from_python)] == [value] * 3


REFUSED = [
    ("nodes", "0", "'0' is not a number of at least 1"),
    ("nodes", "two", "'two' is not a number"),
    ("nodes", True, "'True' is not a number"),
    ("gpus_per_node", "many", "--gpus-per-node: 'many' is not a number of GPUs"),
    ("memory", "much", "--memory: 'much' is not a memory size"),
    ("time", "soon", "--time: 'soon' is not a time"),
    ("port", "80", "80 is not a port from 1024 to 65535"),
    ("port", "99999", "is not a port"),
    ("launcher", "torchrnu", "'torchrnu' is not one of: auto, fork, torchrun"),
    ("exclusive", "maybe", "'maybe' is neither true nor false"),
    ("env", ["A"], "--env: 'A' does not have the form NAME=VALUE"),
    ("env", ["1A=x"], "'1A' is not a valid name of an environment variable"),
    ("env", {"A\n": "x"}, "is not a valid name"),
    ("env", {"A": "\0"}, "The value of A contains a NUL byte"),
    ("sbatch", ["x"], "'x' is not the long name of an sbatch option"),
    ("sbatch", {"a b": "1"}, "'a b' is not the long name"),
    ("sbatch", {"hold\n": "1"}, "is not the long name"),
    ("comment", "two\nlines", "--comment: 'two\\nlines' contains a line break"),
    ("comment", ["a"], "['a'] is not text"),
    ("modules", {"a": 1}, "--load: {'a': 1} is not a list of texts"),
    ("modules", ["a\nb"], "--load: 'a\\nb' contains a line break"),
    ("setup_commands", [1], "--setup-command: [1] is not a list of shell commands"),
    ("signal", "B:USR1';id;'@60", "--signal: 'B:USR1';id;'@60' is not a signal"),
    ("signal", "USR1@soon", "is not a signal and a time. Write USR1@120"),
    ("bind", "cores", "--bind: 'cores' is not a binding"),
    ("bind", "0-7;", "is not a binding"),
]


@pytest.mark.parametrize(("name", "value", "message"), REFUSED)
def test_an_error_names_the_option_and_the_value(name: str, value: Any, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        Job(**{name: value})
    assert str(caught.value).startswith(f"{flag(name)}: ")
    assert message in str(caught.value)


def test_the_arguments_are_a_list_of_words() -> None:
    job = Job(Path("train.py"), ["--lr", 0.1, "a\nb", ""])
    assert (job.script, job.args) == ("train.py", ("--lr", "0.1", "a\nb", ""))
    with pytest.raises(UsageError, match="Write a list"):
        Job("train.py", "--lr 0.1")
    with pytest.raises(UsageError, match="NUL"):
        Job("train.py", ["a\0"])


def test_a_job_is_known_by_what_it_holds() -> None:
    job = Job("train.py", nodes=2, env={"A": "1"})
    assert given(job) == {"script": "train.py", "nodes": 2, "env": {"A": "1"}}
    assert given(Job()) == {}
    assert (empty("env"), empty("modules"), empty("nodes")) == ({}, (), None)


def test_every_field_has_help_and_a_group() -> None:
    for name, spec in options().items():
        assert spec.help.endswith((".", "].")), name
        assert spec.group


@pytest.mark.parametrize("value", ["-1", "1.5", "many"])
def test_a_number_that_may_be_nothing_says_so(value: str) -> None:
    assert (parse.whole("0"), parse.whole(2)) == (0, 2)
    with pytest.raises(UsageError, match=f"'{value}' is not a whole number of at least 0."):
        parse.whole(value)
