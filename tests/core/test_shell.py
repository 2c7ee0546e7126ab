"""Words of a shell command reach a program as they are; only our own shell text is read by bash."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from allranks.core.shell import Raw, fold, join, quote

WORDS = st.lists(
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
    min_size=1,
    max_size=6,
)


def told_by_bash(text: str) -> list[str]:
    """The words that bash makes of a text."""
    script = f"printf '%s\\0' {text}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, check=True)
    return done.stdout.decode().split("\0")[:-1]


@settings(max_examples=60, deadline=None)
@given(WORDS)
@example(
    ["$(touch oops)", "`id`", "it's", '"', "\\", "!!", "~", "*", "a\nb", "", "-n", "#", "$HOME"]
)
def test_every_word_arrives_as_it_is(words: list[str]) -> None:
    assert told_by_bash(join(words)) == words
    assert told_by_bash(fold([[word] for word in words])) == words


def test_raw_is_shell_text() -> None:
    assert quote(Raw('"$HOME"')) == '"$HOME"'
    assert join(["a b", Raw('"$x"')]) == "'a b' \"$x\""


def test_fold_leaves_empty_groups_out() -> None:
    assert fold([["a", "b"], [], ["c"]]) == "a b \\\n  c"


def test_a_nul_byte_cannot_be_a_word() -> None:
    with pytest.raises(ValueError, match="NUL byte"):
        quote("a\0b")
