"""Made-up points with answers that can be worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from allranks.scaling.analysis import analyse
from allranks.scaling.laws import Fit, fit_law
from allranks.scaling.losses import lost_time
from allranks.scaling.measure import Measure
from scaling_rig import add_failure, add_point, make_study


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
    assert found.pays == 2
    assert any("Up to 2 nodes it pays" in text for text in found.sentences)


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
    assert any("differ by ± 15 %" in text for text in analyse(study).sentences)


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
    assert any("waiting for slower ranks" in text for text in found.sentences)


def test_a_step_of_the_scripts_own_is_called_that(tmp_path: Path) -> None:
    study = make_study(tmp_path)
    add_point(study, 1, rate=1000, phases={"data": 0.1, "other": 0.9})
    add_point(study, 2, rate=1250, phases={"data": 0.1, "other": 0.9})
    lost = analyse(study).rows[1].lost
    assert lost["other"] == 0
    assert lost["step"] == pytest.approx(0.9 * (1 - 1250 / 2000))


def test_nothing_is_said_of_phases_that_were_not_measured() -> None:
    assert lost_time(Measure(1, "samples", ""), Measure(1, "samples", ""), 1) == {}


@pytest.mark.parametrize("serial", [0.0, 0.05, 0.4])
@pytest.mark.parametrize(("kind", "law"), [("strong", "Amdahl"), ("weak", "Gustafson")])
def test_a_law_is_found_again_in_its_own_points(kind: str, law: str, serial: float) -> None:
    growths = [1.0, 2.0, 4.0, 8.0]
    fit = fit_law(kind, growths, [Fit(law, serial).speedup(growth) for growth in growths])
    assert fit is not None
    assert fit.law == law
    assert fit.serial == pytest.approx(serial, abs=1e-9)


def test_two_points_make_no_law_and_faster_than_ideal_is_no_negative_share() -> None:
    assert fit_law("strong", [1, 2], [1, 1.9]) is None
    fit = fit_law("strong", [1, 2, 4], [1, 2.2, 4.8])
    assert fit is not None
    assert fit.serial == 0
    assert fit.limit is None


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
    assert found.rows[2].shared
    assert found.pays == 2
    assert found.fit is None
    assert "2 cores" in found.sentences[-1]


def test_points_that_ran_side_by_side_on_a_node_are_named(tmp_path: Path) -> None:
    study = make_study(tmp_path)
    for size in (1, 2):
        point = add_point(study, size, rate=1000)
        ranks = Path(point.run, "attempts/1/ranks")
        ranks.mkdir()
        (ranks / "rank-00000.json").write_text('{"rank": 0, "host": "node1"}')
        for name, key, time in (("attempt", "start", "00"), ("end", "end", "30")):
            stamp = f'{{"{key}": "2026-01-01T10:00:{time}Z", "exit_code": 0}}'
            Path(point.run, "attempts/1", f"{name}.json").write_text(stamp)
    assert any("at the same time on node1" in text for text in analyse(study).sentences)
