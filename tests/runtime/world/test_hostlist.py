"""Host lists: by example, by property, and against the real scontrol."""

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allranks.errors import UsageError
from allranks.runtime.world.hostlist import expand_counts, expand_hostlist

EXAMPLES = {
    "node1": ["node1"],
    "node[1-3,07-10]": ["node1", "node2", "node3", "node07", "node08", "node09", "node10"],
    "r[1-2]n[01-02]": ["r1n01", "r1n02", "r2n01", "r2n02"],
    "a[1-2][3-4]": ["a13", "a14", "a23", "a24"],
    "a,b[1-2]": ["a", "b1", "b2"],
    "a[9-11]": ["a9", "a10", "a11"],
    "a[099-101]": ["a099", "a100", "a101"],
    "a[1-02]": ["a1", "a2"],
    "a[3,1]": ["a3", "a1"],
    "[1-3]": ["1", "2", "3"],
    "a,,b,": ["a", "b"],
    " a , b[1]": ["a", "b1"],
    "gpu-a[1-2]-[3-4]": ["gpu-a1-3", "gpu-a1-4", "gpu-a2-3", "gpu-a2-4"],
    "n1,n1": ["n1", "n1"],
    "": [],
}


@pytest.mark.parametrize(("text", "names"), EXAMPLES.items())
def test_expand(text, names):
    assert expand_hostlist(text) == names


def test_text_after_the_last_bracket_is_kept():
    assert expand_hostlist("node[1-2]-ib,x[1-2].site.org") == [
        "node1-ib",
        "node2-ib",
        "x1.site.org",
        "x2.site.org",
    ]


@pytest.mark.parametrize(
    "text",
    ["a[3-1]", "a[1", "a]", "a[]", "a[1,]", "a[x]", "a[1-2-3]", "a[-1]", "a[[1]]", "a]1[", "a[²]"],
)
def test_malformed_text_is_named(text):
    with pytest.raises(UsageError, match="is not a host list") as error:
        expand_hostlist(text)
    assert text in str(error.value)


def test_a_list_that_cannot_be_a_cluster_is_refused_at_once():
    for text in ("n[1-99999999999]", "a[1-9999]b[1-9999]", "a[1-999999],b[1-999999]"):
        with pytest.raises(UsageError, match="more than"):
            expand_hostlist(text)


def test_counts():
    assert expand_counts("2(x3),1") == [2, 2, 2, 1]
    assert expand_counts("4") == [4]
    for text in ("", "2(3)", "x", "2(x3", "1,,2"):
        with pytest.raises(UsageError, match="list of counts"):
            expand_counts(text)


def test_long_lists():
    names = [f"r{i % 7}n{i:05d}" for i in range(80_000)]
    assert expand_hostlist(",".join(names)) == names
    assert len(expand_hostlist("n[00001-20000]")) == 20_000


@st.composite
def host_lists(draw):
    """Lists Slurm accepts: prefixes, one or two brackets, padding."""

    def bracket():
        ranges = []
        for _ in range(draw(st.integers(1, 3))):
            first, more = draw(st.integers(0, 120)), draw(st.integers(0, 12))
            width = draw(st.sampled_from([0, 0, 2, 3, 5]))
            last = f"-{first + more:0{width}d}" if more else ""
            ranges.append(f"{first:0{width}d}{last}")
        return "[" + ",".join(ranges) + "]"

    words = []
    for _ in range(draw(st.integers(1, 3))):
        word = draw(st.from_regex(r"[a-z][a-z0-9-]{0,4}[a-z]", fullmatch=True))
        shape = draw(st.sampled_from(["plain", "number", "one", "two", "touching"]))
        word += {
            "plain": lambda: "",
            "number": lambda: str(draw(st.integers(0, 2000))),
            "one": bracket,
            "two": lambda: bracket() + "n" + bracket(),
            "touching": lambda: bracket() + bracket(),
        }[shape]()
        words.append(word)
    return ",".join(words)


@pytest.fixture(scope="module")
def scontrol(tmp_path_factory):
    """``scontrol show hostnames`` needs a slurm.conf, but no running cluster."""
    if not shutil.which("scontrol"):
        pytest.skip("scontrol is not installed: host lists are not compared with Slurm's own")
    conf = Path(tmp_path_factory.mktemp("slurm")) / "slurm.conf"
    conf.write_text("ClusterName=x\nSlurmctldHost=localhost\n")

    def hostnames(text):
        command = ["scontrol", "show", "hostnames", text]
        env = {"SLURM_CONF": str(conf), "PATH": "/usr/bin:/bin"}
        return subprocess.run(
            command, env=env, check=True, capture_output=True, text=True
        ).stdout.split()

    return hostnames


@settings(max_examples=60, deadline=None)
@given(lists=st.lists(host_lists(), min_size=1, max_size=15))
def test_as_scontrol_reads_them(scontrol, lists):
    text = ",".join(lists)
    assert expand_hostlist(text) == scontrol(text)


def test_examples_as_scontrol_reads_them(scontrol):
    for text in EXAMPLES:
        if text and " " not in text:
            assert expand_hostlist(text) == scontrol(text), text
