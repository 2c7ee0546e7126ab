"""Directive lines, read the way sbatch reads them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allranks.lint.directives import Directives, read_directives
from allranks.lint.job_resources import allocation_of
from allranks.lint.source_text import SourceFile


def _read(text: str) -> Directives:
    return read_directives(SourceFile("job.sh", text))


def _options(line: str) -> list[tuple[str, str | None]]:
    found = _read(f"#!/bin/bash\n#SBATCH {line}\n")
    return [(item.name, item.value.text if item.value else None) for item in found.options.items]


@pytest.mark.parametrize(
    ("line", "options"),
    [
        ("--nodes=2", [("nodes", "2")]),
        ("--nodes 2", [("nodes", "2")]),
        ("-N2", [("nodes", "2")]),
        ("-N 2 -n 4", [("nodes", "2"), ("ntasks", "4")]),
        ("--ntasks-per-n=4", [("ntasks-per-node", "4")]),
        ("--tasks-per-node=4", [("ntasks-per-node", "4")]),
        ("--nodes=2# two", [("nodes", "2")]),
        ("--nodes=2 # --ntasks=8", [("nodes", "2")]),
        ("--comment='a # b' -N 1", [("comment", "a # b"), ("nodes", "1")]),
        ('--job-name="two words"', [("job-name", "two words")]),
        (r"-J two\ words", [("job-name", "two words")]),
        ("--exclusive --requeue", [("exclusive", None), ("requeue", None)]),
        ("--exclusive=user", [("exclusive", "user")]),
        ("-HQ -p gpu", [("hold", None), ("quiet", None), ("partition", "gpu")]),
        ("--container-image=nvcr.io#x", [("container-image", "nvcr.io")]),
        ("--unknown=3 -t 10", [("unknown", "3"), ("time", "10")]),
    ],
)
def test_options(line: str, options: list[tuple[str, str | None]]) -> None:
    assert _options(line) == options


def test_reading_stops_at_the_first_command() -> None:
    found = _read(
        "#!/bin/bash\n#SBATCH -N 1\n\n# x\n#SBATCH -n 2\ncd /tmp\n#SBATCH -t 3\n##SBATCH -p x\n"
    )
    assert [line.span.line for line in found.lines] == [2, 5]
    assert [span.line for span in found.late] == [7]


def test_what_is_switched_off_or_indented() -> None:
    found = _read("#!/bin/bash\n##SBATCH -N 1\n# SBATCH -N 2\n  #SBATCH -N 3\n#SBATCH -N 4\n")
    assert [span.line for span in found.disabled] == [2, 3]
    assert [span.line for span in found.indented] == [4]
    assert found.options.text("nodes") == "4"


def test_a_heterogeneous_job_is_not_taken_for_a_plain_one() -> None:
    found = _read("#!/bin/bash\n#SBATCH -N 1\n#SBATCH hetjob\n#SBATCH -N 4\n")
    assert found.components == 2
    assert found.options.text("nodes") == "1"
    assert not allocation_of(found).known


def test_words_that_belong_to_no_option() -> None:
    line = _read("#!/bin/bash\n#SBATCH -J module purge --nodes=2\n").lines[0]
    assert [word.text for word in line.stray] == ["purge"]
    assert line.options.text("nodes") == "2"
    assert _read('#!/bin/bash\n#SBATCH -J "open\n').lines[0].unclosed


_VALUES = st.text(
    st.characters(codec="utf-8", exclude_characters="\n\r\0"), min_size=1, max_size=20
)


@given(_VALUES)
def test_a_quoted_value_comes_back_as_it_is(value: str) -> None:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    assert _options(f'--comment="{escaped}" -N 3') == [("comment", value), ("nodes", "3")]


@given(_VALUES)
def test_an_escaped_value_comes_back_as_it_is(value: str) -> None:
    escaped = "".join(f"\\{character}" for character in value)
    assert _options(f"--comment={escaped} -N 3") == [("comment", value), ("nodes", "3")]


@given(st.text(st.characters(exclude_characters="\n"), max_size=40))
def test_what_follows_a_sign_is_a_comment(text: str) -> None:
    assert _options(f"-N 3 #{text}") == [("nodes", "3")]


@pytest.mark.parametrize(
    ("lines", "nodes", "tasks_per_node", "gpus"),
    [
        ("-N 2 --gres=gpu:a100:4", 2, 1, 4),
        ("-N 2 -n 8 --gpus-per-node=A100:4", 2, 4, 4),
        ("--ntasks-per-node=4 --gpus-per-task=1", 1, 4, 4),
        ("-N 2 --gpus=8", 2, 1, 4),
        ("-N 2-4 --gres=gpu:2", None, 1, 2),
        ("-n 8 --gres=gpu:2", None, None, 2),
        ("-N 1 --ntasks-per-gpu=1 --gpus-per-node=4", 1, 4, 4),
        ("-N 2", 2, 1, 0),
        ("--gres=gpu", 1, 1, 1),
        ("--gres=gpu:v100-32g:2,nvme:100", 1, 1, 2),
    ],
)
def test_the_allocation(
    lines: str, nodes: int | None, tasks_per_node: int | None, gpus: int | None
) -> None:
    asked = allocation_of(_read(f"#!/bin/bash\n#SBATCH {lines}\n"))
    assert (asked.nodes, asked.tasks_per_node, asked.gpus_per_node) == (nodes, tasks_per_node, gpus)
