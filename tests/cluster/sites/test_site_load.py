"""Site files: reading, writing, finding."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from allranks.cluster.sites import dump_site, find_site, list_sites, load_site
from allranks.cluster.sites.model import Match, NodeShape, Partition, Site
from allranks.cluster.sites.site_toml import parse_site
from allranks.errors import SiteError, SlurmError
from allranks.job.fields import Job

SHIPPED = ["alvis", "grete", "lumi", "scc", "trixie"]

FULL = Site(
    name="full",
    description="Everything — set",
    partitions=(
        Partition(
            "gpu",
            (NodeShape(
                gpus=2, gpu_type="MI250", gpu_vendor="amd", cpus=64, memory=515_000,
                threads_per_core=2, reserved_cpus=8, reserved_memory=1024,
                cpu_lists=("0-3", "4-7,9"), nodes=3,
            ), NodeShape(cpus=4)),
            nodes=5, max_time=90_061, max_nodes=4, max_cpus_per_node=32,
            max_memory_per_node=2048, default=True, exclusive=True, preemptible=True, note="n",
        ),
        Partition("cpu", (NodeShape(cpus=4),)),
        Partition("bare"),
    ),
    default_partition="cpu",
    match=Match(clusters=("full",), hostnames=("login*",)),
    environment={"modules": ["a", "b"], "module_purge": True},
    variables={"NCCL_SOCKET_IFNAME": "ib0", "EMPTY": ""},
    interface="ib0",
    gpu_option="gres",
    job={"qos": "normal", "sbatch": {"hint": "nomultithread"}},
    requires=("account",),
    slurm_version="24.11.5",
    requeue_allowed=False,
    kill_wait=30,
    note="a\nb",
    references=("https://example.org",),
)  # fmt: skip


def read(text: str) -> Site:
    return parse_site(text, "my.toml", "my")


def problem(text: str) -> str:
    with pytest.raises(SiteError) as caught:
        read(text)
    return str(caught.value)


def test_everything_goes_both_ways() -> None:
    assert read(dump_site(FULL)) == FULL


def test_equal_shapes_are_written_once() -> None:
    assert dump_site(FULL).count("[shapes.") == 2


def test_empty_file_is_a_site() -> None:
    assert read("") == Site(name="my")


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_profiles(name: str, no_sites: Path) -> None:
    site = load_site(name)
    assert site.name == name
    assert read(dump_site(site)) == site
    assert site.description
    assert site.references
    assert site.first_choice is not None
    assert all(len(each) < 100 for each in site.description.splitlines())


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_defaults_are_job_fields(name: str, no_sites: Path) -> None:
    known = {each.name for each in fields(Job)}
    site = load_site(name)
    assert known >= {*site.environment, *site.job, *site.requires}


def test_lumi_cpus_of_each_gpu(no_sites: Path) -> None:
    site = load_site("lumi")
    shape = site.partitions[0].shapes[0]
    assert shape.usable_cpus == 56
    assert shape.cpu_lists == (
        "49-55", "57-63", "17-23", "25-31", "1-7", "9-15", "33-39", "41-47",
    )  # fmt: skip
    assert site.variables["NCCL_SOCKET_IFNAME"] == "hsn0,hsn1,hsn2,hsn3"


def test_trixie_asks_by_gres(no_sites: Path) -> None:
    assert load_site("trixie").gpu_option == "gres"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("nmae = 'x'", "my.toml: the top of the file has an unknown key 'nmae'.\nDid you mean"),
        ("zzz = 1", "unknown key 'zzz'.\nKnown: shapes, partitions, name"),
        ("name = 3", "name must be a string, not an integer. Write name = \"…\"."),
        ("requeue_allowed = 'yes'", "requeue_allowed must be true or false, not a string."),
        ("requires = 'account'", "requires must be a list, not a string."),
        ("requires = [1]", "requires must hold strings, not an integer."),
        ("gpu_option = 'gpus'", 'gpu_option must be one of "gpus-per-node", "gres", not "gpus".'),
        ("kill_wait = true", "kill_wait must be an integer, not true or false."),
        ("match = 3", "my.toml: [match] must be a table, not an integer."),
        ("environment = []", "environment must be a table, not a list. Write [environment]."),
        ("[variables]\nA = 1", "my.toml: [variables] A must be a string, not an integer."),
        ("[shapes.a]\ngpu = 4", "my.toml: [shapes.a] has an unknown key 'gpu'.\nDid you mean"),
        ("[shapes.a]\ngpus = -1", "gpus must be 0 or more, not -1."),
        ("[shapes.a]\nmemory = 'much'", "memory: 'much' is not a memory size."),
        ("[shapes.a]\ngpus = 2\ncpu_lists = ['0-3']", "cpu_lists has 1 lists for 2 GPUs."),
        ("[[partitions]]\nnodes = 1", "[[partitions]] 1 has no name."),
        ("[[partitions]]\nname = 'p'\nmax_tim = '1h'", "[[partitions]] 'p' has an unknown key"),
        ("[[partitions]]\nname = 'p'\nmax_time = 60", "max_time must be a string, not an integer"),
        ("[[partitions]]\nname = 'p'\nmax_time = 'long'", "max_time: 'long' is not a time."),
        ("[[partitions]]\nname = 'p'\nshapes = ['x']", "names a shape 'x' that is not described."),
        ("[[partitions]]\nname = 'p'\n[[partitions]]\nname = 'p'", "describes partition 'p' twice"),
        ("default_partition = 'q'\n[[partitions]]\nname = 'p'", "default_partition is 'q'"),
        ("name = ", "my.toml is not TOML:"),
    ],
)  # fmt: skip
def test_errors_name_file_table_and_key(text: str, says: str) -> None:
    assert says in problem(text)


def test_memory_as_number_or_text() -> None:
    shapes = "[shapes.a]\nmemory = {}\n[[partitions]]\nname = 'p'\nshapes = ['a']"
    assert read(shapes.format("1024")).partitions[0].shapes[0].memory == 1024
    assert read(shapes.format("'480G'")).partitions[0].shapes[0].memory == 480 * 1024


def test_unknown_name_lists_what_there_is(no_sites: Path) -> None:
    with pytest.raises(SiteError) as caught:
        load_site("lumni")
    assert str(caught.value).startswith(
        "There is no site 'lumni'.\nDid you mean 'lumi'? There is: "
    )
    assert all(each in str(caught.value) for each in SHIPPED)


def test_unreadable_file(no_sites: Path) -> None:
    with pytest.raises(SiteError, match=r"Cannot read the site file .*: No such file"):
        load_site("./none.toml")
    Path("bad.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(SiteError, match="not UTF-8"):
        load_site("bad.toml")


def _own(no_sites: Path, name: str, text: str) -> Path:
    folder = no_sites.parent / "config" / "allranks" / "sites"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.toml").write_text(text)
    return folder / f"{name}.toml"


def test_search_order(no_sites: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert {each.origin for each in list_sites()} == {"shipped"}
    shared = no_sites.parent / "shared"
    shared.mkdir()
    (shared / "lumi.toml").write_text("description = 'shared'")
    (shared / "extra.toml").write_text("description = 'extra'")
    monkeypatch.setenv("ALLRANKS_SITES", f"{shared}:/nowhere")
    assert load_site("lumi").description == "shared"
    _own(no_sites, "lumi", "description = 'own'")
    assert load_site("lumi").description == "own"
    assert [each.name for each in list_sites()] == sorted([*SHIPPED, "extra"])


def test_path_needs_no_search(no_sites: Path) -> None:
    Path("mine.toml").write_text("description = 'd'")
    assert (load_site("mine.toml").name, load_site(Path("mine.toml")).name) == ("mine", "mine")


def fail(_: Any) -> str:
    raise SlurmError("down")


def test_where_are_we(no_sites: Path) -> None:
    env = {"XDG_CONFIG_HOME": str(no_sites.parent / "config")}
    assert find_site(env, "laptop", runner=fail) is None
    by_host = find_site(env, "glogin9", runner=fail)
    assert by_host is not None
    assert (by_host.name, by_host.found) == ("grete", "the host glogin9 matches glogin[0-9]*")
    by_variable = find_site(env | {"SLURM_CLUSTER_NAME": "LUMI"}, "glogin9", runner=fail)
    assert by_variable is not None
    assert (by_variable.name, by_variable.found) == ("lumi", "SLURM_CLUSTER_NAME is LUMI")
    asked = find_site(env, "x", runner=lambda _: "ClusterName             = alvis\n")
    assert asked is not None
    assert (asked.name, asked.found) == ("alvis", "Slurm's ClusterName is alvis")


def test_another_cluster_with_a_host_of_that_name(no_sites: Path) -> None:
    env = {"SLURM_CLUSTER_NAME": "other"}
    assert find_site(env, "alvis1", runner=fail) is None
    assert find_site({}, "alvis1", runner=fail) is not None


def test_file_here_and_variable_go_first(no_sites: Path) -> None:
    (no_sites / "allranks-site.toml").write_text("name = 'project'")
    here = find_site({}, "glogin9", runner=fail)
    assert here is not None
    assert (here.name, here.found) == ("project", "allranks-site.toml is in this folder")
    named = find_site({"ALLRANKS_SITE": "scc"}, "glogin9", runner=fail)
    assert named is not None
    assert named.name == "scc"


def test_machine_without_slurm_has_no_site(no_sites: Path) -> None:
    assert find_site({"PATH": "/nowhere"}, "laptop") is None
