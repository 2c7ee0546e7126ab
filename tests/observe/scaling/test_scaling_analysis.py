"""Made-up points with answers that can be worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from allranks.observe.scaling.analysis import analyse
from allranks.observe.scaling.conclusions import SHARED, SHORT, VAGUE, overlap_note
from allranks.observe.scaling.measurement import Measurement
from allranks.observe.scaling.scaling_study import Point
from allranks.observe.scaling.size_results import LawFit, fit_law, lost_time
from allranks.observe.scaling.study_results import study_record
from allranks.runs.attempt import Attempt
from scaling_rig import add_failure, add_point, make_study, write_lines


def test_speedup_efficiency_and_cost_of_a_strong_study(tmp_path: Path) -> None:
    study = make_study(tmp_path)
    for size, rate in ((1, 1000), (2, 1800), (4, 2400)):
        add_point(study, size, rate=rate, batch=64, gpus=4 * size, ranks=4 * size)
    found = analyse(study)
    assert found.kind == "strong"
    assert [row.speedup for row in found.rows] == pytest.approx([1, 1.8, 2.4])
    assert [row.efficiency for row in found.rows] == pytest.approx([1, 0.9, 0.6])
    hours = 1_000_000 / 1800 / 3600
    assert found.rows[1].hours == pytest.approx(hours)
    assert found.rows[1].cost == pytest.approx(hours * 8)
    assert found.efficient_up_to == 2
    assert any("Scaling is efficient up to 2 nodes" in text for text in found.conclusions)


def test_the_first_size_need_not_be_one(tmp_path: Path) -> None:
    study = make_study(tmp_path)
    add_point(study, 2, rate=1000)
    add_point(study, 8, rate=3000)
    assert [row.efficiency for row in analyse(study).rows] == pytest.approx([1, 0.75])


def test_a_batch_that_grows_with_the_size_is_a_weak_study(tmp_path: Path) -> None:
    study = make_study(tmp_path, kind="strong")
    for size in (1, 2, 4):
        add_point(study, size, rate=900.0 * size, batch=64 * size)
    found = analyse(study)
    assert found.kind == "weak"
    assert [row.efficiency for row in found.rows] == pytest.approx([1, 1, 1])
    assert "this is weak scaling" in found.problems[0]


def test_a_batch_that_does_neither_is_named_and_nothing_is_compared(tmp_path: Path) -> None:
    study = make_study(tmp_path)
    for size, batch in ((1, 64), (2, 64), (4, 256)):
        add_point(study, size, rate=900.0 * size, batch=batch)
    found = analyse(study)
    assert found.kind == "mixed"
    assert "64 at 1 node, 64 at 2 nodes, 256 at 4 nodes" in found.problems[0]
    assert [row.speedup for row in found.rows] == [None] * 3


def test_repetitions_give_the_median_and_the_spread(tmp_path: Path) -> None:
    study = make_study(tmp_path)
    for repeat, rate in enumerate((1000, 1200, 900), 1):
        add_point(study, 1, rate=rate, repeat=repeat)
        add_point(study, 2, rate=2 * rate, repeat=repeat)
    first, second = analyse(study).rows
    assert (first.rate, first.low, first.high) == pytest.approx((1000, 900, 1200))
    assert second.speedup == pytest.approx(2)
    assert first.spread == pytest.approx(0.15)
    assert any("differ by ± 15 %" in text for text in analyse(study).conclusions)


def test_lost_time_is_what_a_step_takes_beyond_the_ideal(tmp_path: Path) -> None:
    study = make_study(tmp_path)
    base = {"data": 0.1, "forward": 0.3, "backward": 0.5, "communication": 0.0, "optimizer": 0.1}
    add_point(study, 1, rate=1000, batch=100, phases=base)
    # Half of the work takes 50 ms; 30 ms of the 80 are lost: 20 to the network, 10 to the optimizer.
    shares = {"data": 5, "forward": 15, "backward": 25, "communication": 20, "optimizer": 15}
    phases = {name: each / 80 for name, each in shares.items()}
    add_point(study, 2, rate=100 / 0.080, batch=100, phases=phases)
    lost = analyse(study).rows[1].lost
    assert lost["communication"] == pytest.approx(20 / 80)
    assert lost["optimizer"] == pytest.approx(10 / 80)
    assert lost["compute"] == pytest.approx(0, abs=1e-9)
    assert sum(lost.values()) == pytest.approx(30 / 80)


def test_waiting_for_a_slow_rank_is_told_from_communication(tmp_path: Path) -> None:
    study = make_study(tmp_path)
    add_point(study, 1, rate=1000, batch=100, phases={"forward": 1.0, "communication": 0.0})
    phases = {"forward": 0.6, "communication": 0.4}
    add_point(study, 4, rate=3000, batch=400, phases=phases, waits=0.3)
    found = analyse(study)
    assert found.rows[1].lost["stragglers"] == pytest.approx(0.3)
    assert found.rows[1].lost["communication"] == pytest.approx(0.1)
    assert any("waiting for slower ranks" in text for text in found.conclusions)


def test_a_step_of_the_scripts_own_is_called_that(tmp_path: Path) -> None:
    study = make_study(tmp_path)
    add_point(study, 1, rate=1000, phases={"data": 0.1, "other": 0.9})
    add_point(study, 2, rate=1250, phases={"data": 0.1, "other": 0.9})
    lost = analyse(study).rows[1].lost
    assert lost["other"] == 0
    assert lost["step"] == pytest.approx(0.9 * (1 - 1250 / 2000))


def test_nothing_is_said_of_phases_that_were_not_measured() -> None:
    assert lost_time(Measurement(1, "samples", ""), Measurement(1, "samples", ""), 1) == {}


@pytest.mark.parametrize("serial", [0.0, 0.05, 0.4])
@pytest.mark.parametrize(("kind", "law"), [("strong", "Amdahl"), ("weak", "Gustafson")])
def test_a_law_is_found_again_in_its_own_points(kind: str, law: str, serial: float) -> None:
    growths = [1.0, 2.0, 4.0, 8.0]
    fit = fit_law(kind, growths, [LawFit(law, serial).speedup(growth) for growth in growths])
    assert fit is not None
    assert fit.law == law
    assert fit.serial == pytest.approx(serial, abs=1e-9)


def test_two_points_make_no_law_and_faster_than_ideal_is_no_negative_share() -> None:
    assert fit_law("strong", [1, 2], [1, 1.9]) is None
    fit = fit_law("strong", [1, 2, 4], [1, 2.1, 4.2])
    assert fit is not None
    assert fit.serial == 0
    assert fit.limit is None


@pytest.mark.parametrize(
    ("kind", "speedups"),
    [
        ("strong", [1, 1.9, 2.6, 2.0, 1.2]),  # larger is slower
        ("weak", [1, 1.1, 0.9]),
        ("strong", [1, 1.2, 3.6]),  # off by more than a tenth
        ("strong", [1, 2.2, 4.8]),
    ],
)
def test_a_law_that_does_not_hold_is_none(kind: str, speedups: list[float]) -> None:
    assert fit_law(kind, [2.0**n for n in range(len(speedups))], speedups) is None


def test_a_limit_that_was_exceeded_is_none() -> None:
    assert fit_law("strong", [1, 8, 1024], [1, 4.2, 7.6]) is not None
    assert fit_law("strong", [1, 8, 1024], [1, 4.2, 8.9]) is None  # near the curve, above its limit


def test_without_a_law_it_is_said_what_is_seen(tmp_path: Path) -> None:
    study = make_study(tmp_path)
    for size, rate in ((1, 1000), (2, 1900), (4, 2600), (8, 2000)):
        add_point(study, size, rate=rate)
    found = analyse(study)
    told = "8 nodes are slower than 4 nodes: 2.00 against 2.60 times the speed of 1 node."
    assert told in found.conclusions
    assert not any("law" in text for text in found.conclusions)
    assert study_record(study, found)["most_speedup"] is None
    bent = make_study(tmp_path, "bent")
    for size, rate in ((1, 1000), (2, 1200), (4, 3600)):
        add_point(bent, size, rate=rate)
    assert any("does not describe" in text for text in analyse(bent).conclusions)


def test_it_pays_up_to_the_first_size_that_does_not(tmp_path: Path) -> None:
    study = make_study(tmp_path)
    for size, rate in ((1, 1000), (2, 1000), (4, 3000)):
        add_point(study, size, rate=rate)
    found = analyse(study)
    assert found.efficient_up_to == 1
    assert found.conclusions[0].startswith("More than 1 node is not efficient: at 2 nodes")
    told = "At 4 nodes the efficiency is 0.75 again, after 0.50 at 2 nodes"
    assert any(text.startswith(told) for text in found.conclusions)


@pytest.mark.parametrize(
    ("kind", "told"), [("strong", "--strong was requested"), (None, "{share:…}")]
)
def test_who_asked_for_another_kind_is_told_as_it_was(
    kind: str | None, told: str, tmp_path: Path
) -> None:
    study = make_study(tmp_path, kind=kind, values={"args": ["{share:64}"]})
    for size in (1, 2):
        add_point(study, size, rate=900.0 * size, batch=64 * size)
    assert analyse(study).problems[0].startswith(told)


def test_times_of_unknown_work_are_not_compared(tmp_path: Path) -> None:
    study = make_study(tmp_path)
    for size in (1, 2):
        Path(add_point(study, size, rate=1.0).run, "metrics.jsonl").unlink()
    found = analyse(study)
    assert [row.measurement.source for row in found.rows if row.measurement] == ["wall time"] * 2
    assert [row.speedup for row in found.rows] == [None, None]
    assert "--strong" in found.problems[0]
    study.kind = "strong"
    assert analyse(study).rows[0].speedup == 1


@pytest.mark.parametrize(("quick", "efficient"), [((1,), None), ((1, 2, 4), None), ((4,), 2)])
def test_nothing_is_concluded_from_milliseconds(
    quick: tuple[int, ...], efficient: int | None, tmp_path: Path
) -> None:
    study = make_study(tmp_path, steps=120)
    for size in (1, 2, 4):
        rate = 1e6 if size in quick else 100.0 * size  # 90 steps of 64 µs, or of 640 ms and less
        add_point(study, size, rate=rate, phases={"forward": 0.5, "other": 0.5})
    found = analyse(study)
    assert [row.size for row in found.rows if row.unreliable == SHORT] == list(quick)
    assert (found.efficient_up_to, found.fit) == (efficient, None)
    assert len(found.conclusions) == (2 if efficient else 1)
    text = found.conclusions[-1]
    assert text.startswith(f"At {study.axis.count(quick[0])} 5.76 ms were measured, too little")
    assert text.endswith("--steps 300000")


def test_nothing_is_concluded_from_windows_that_differ_widely(tmp_path: Path) -> None:
    study = make_study(tmp_path)
    add_point(study, 1, rate=100)
    file = Path(add_point(study, 2, rate=100).run, "metrics.jsonl")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for line in lines[::2]:
        line["samples_per_second"] /= 4
        line["step_seconds"] *= 4
    write_lines(file, lines)
    found = analyse(study)
    assert found.rows[1].unreliable == VAGUE
    (text,) = found.conclusions
    assert text.startswith("At 2 nodes the speed went up and down, so it is known to ± ")


def test_whole_seconds_are_too_coarse_for_short_runs(tmp_path: Path) -> None:
    study = make_study(tmp_path, kind="strong")
    for size, end in ((1, 40), (2, 5)):
        point = add_point(study, size, rate=1.0)
        Path(point.run, "metrics.jsonl").unlink()
        _lived(point, f"node{size}", 0, end)
    found = analyse(study)
    assert [row.unreliable for row in found.rows] == ["", VAGUE]
    assert any("in whole seconds, so it is known to ± 20 %" in s for s in found.conclusions)


def test_a_machine_that_was_busy_is_told_with_the_results(tmp_path: Path) -> None:
    study = make_study(tmp_path, axis="nprocs", where="local", machine_cpus=2, load=1.9)
    add_point(study, 1, rate=100)
    add_point(study, 2, rate=180)
    found = analyse(study)
    assert any("busy when the study began (load 1.9 on 2 cores)" in s for s in found.conclusions)
    assert found.efficient_up_to == 2


@pytest.mark.parametrize("where", ["local", "slurm"])
def test_advice_for_nodes_is_given_on_nodes_alone(where: str, tmp_path: Path) -> None:
    study = make_study(tmp_path, axis="nprocs", where=where, machine_cpus=8)
    add_point(study, 1, rate=100, phases={"forward": 1.0})
    add_point(study, 2, rate=100, phases={"forward": 1.0})
    text = next(text for text in analyse(study).conclusions if "of a step is lost to" in text)
    assert ("--exclusive" in text) == (where == "slurm")


def test_ranks_that_share_cores_cost_no_more_than_there_are(tmp_path: Path) -> None:
    study = make_study(tmp_path, axis="nprocs", where="local", machine_cpus=2)
    add_point(study, 1, rate=1000)
    add_point(study, 4, rate=1000)
    first, second = analyse(study).rows
    assert second.cost == pytest.approx((first.cost or 0) * 2)


def test_a_failed_size_leaves_the_others_to_be_compared(tmp_path: Path) -> None:
    study = make_study(tmp_path)
    add_failure(study, 1, "rank 0: out of memory")
    add_point(study, 2, rate=1000)
    add_point(study, 4, rate=1500)
    found = analyse(study)
    assert found.rows[0].problems == ("rank 0: out of memory",)
    assert [row.efficiency for row in found.rows[1:]] == pytest.approx([1, 0.75])
    assert found.rows[0].efficiency is None


def test_ranks_that_share_cores_count_for_nothing(tmp_path: Path) -> None:
    study = make_study(tmp_path, axis="nprocs", where="local", machine_cpus=2)
    for size, rate in ((1, 1000), (2, 1900), (4, 3700)):
        add_point(study, size, rate=rate)
    found = analyse(study)
    assert found.rows[2].unreliable == SHARED
    assert found.efficient_up_to == 2
    assert found.fit is None
    assert "2 cores" in found.conclusions[-1]


def _lived(point: Point, host: str, start: int, end: int) -> None:
    """The point ran on that host from one second to another."""
    attempt = Path(point.run, "attempts/1")
    (attempt / "ranks").mkdir()
    (attempt / "ranks/rank-00000.json").write_text(f'{{"rank": 0, "host": "{host}"}}')
    for name, key, second in (("attempt", "start", start), ("end", "end", end)):
        stamp = f'{{"{key}": "2026-01-01T10:00:{second:02}Z", "exit_code": 0}}'
        (attempt / f"{name}.json").write_text(stamp)


def test_points_that_ran_side_by_side_on_a_node_are_named(tmp_path: Path) -> None:
    study = make_study(tmp_path)
    for size in (1, 2):
        _lived(add_point(study, size, rate=1000), "node1", 0, 30)
    assert any("at the same time on node1" in text for text in analyse(study).conclusions)


def test_the_hosts_of_a_point_are_read_once_and_only_where_times_meet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Path] = []

    def hosts_of(attempt: Attempt) -> list[str]:
        read.append(attempt.path)
        return [attempt.path.parent.parent.name]

    monkeypatch.setattr("allranks.observe.scaling.conclusions.hosts_of", hosts_of)
    study = make_study(tmp_path)
    for size in range(1, 5):
        _lived(add_point(study, size, rate=1000), "", 0, 30)
    _lived(add_point(study, 5, rate=1000), "", 40, 50)
    assert overlap_note(study) == overlap_note(study) == ""
    assert len(read) == 4
