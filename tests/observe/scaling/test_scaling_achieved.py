"""What is read of a run: by its metrics, by a metric of the user's, by its wall time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from allranks.errors import AllranksError, UsageError
from allranks.observe.scaling.measurement import (
    Measurement,
    check_metric,
    measure_run,
    without_warm_up,
)
from allranks.runs.run_folder import Run
from scaling_rig import add_point, make_study, write_lines


def _run(tmp_path: Path, lines: list[str] = []) -> Run:  # noqa: B006
    run = Run.create(tmp_path, "train", scheduler="local", cwd=tmp_path, command=[])
    attempt = run.new_attempt()
    ranks = attempt.path / "ranks"
    ranks.mkdir()
    stamped = "".join(f"2026-01-01T10:00:00.000000Z o {line}\n" for line in lines)
    (ranks / "rank-00000.log").write_text(stamped)
    about = {"rank": 0, "start": "2026-01-01T10:00:00.000000Z"}
    (ranks / "rank-00000.json").write_text(json.dumps(about))
    end = {"exit_code": 0, "end": "2026-01-01T10:00:08.000000Z"}
    (attempt.path / "end.json").write_text(json.dumps(end))
    return run


def _read(run: Run, metric: str | None = None, weak: bool = False, ranks: int = 2) -> Measurement:
    return measure_run(run, metric=metric, weak=weak, ranks=ranks)


def test_the_first_fifth_is_left_out_and_always_the_first() -> None:
    assert list(without_warm_up([1, 2, 3, 4, 5, 6, 7, 8, 9, 10])) == [3, 4, 5, 6, 7, 8, 9, 10]
    assert list(without_warm_up([1, 2])) == [2]
    assert list(without_warm_up([1])) == [1]


def test_windows_after_the_warm_up(tmp_path: Path) -> None:
    study = make_study(tmp_path)
    point = add_point(study, 2, rate=1000, batch=50, phases={"forward": 0.7, "data": 0.3})
    found = _read(Run.open(point.run))
    assert found.rate == pytest.approx(1000)
    assert found.batch == 50
    assert found.step_seconds == pytest.approx(0.05)
    assert found.phases == pytest.approx({"forward": 0.035, "data": 0.015})
    assert found.source == "metrics.jsonl"


def test_windows_of_different_lengths_weigh_as_long_as_they_are(tmp_path: Path) -> None:
    run = _run(tmp_path)
    rows = [(10, 1.0), (100, 300.0), (110, 100.0)]  # 90 steps at 300/s, 10 at 100/s
    write_lines(
        run.path / "metrics.jsonl",
        [
            {"time": n, "step": step, "kind": "train", "samples_per_second": rate}
            for n, (step, rate) in enumerate(rows)
        ],
    )
    assert _read(run).rate == pytest.approx(100 / (90 / 300 + 10 / 100))


def test_a_batch_that_is_not_full_counts_for_what_it_holds(tmp_path: Path) -> None:
    run = _run(tmp_path)
    rows = [(10, 64, 0.1), (20, 64, 0.1), (30, 16, 0.08)]  # step, samples of a batch, its seconds
    write_lines(
        run.path / "metrics.jsonl",
        [
            {"step": step, "kind": "train", "samples_per_second": n / t, "step_seconds": t}
            for step, n, t in rows
        ],
    )
    found = _read(run)
    assert found.rate == pytest.approx((64 + 16) / (0.1 + 0.08))
    assert found.seconds == pytest.approx(10 * (0.1 + 0.08))


def test_phases_are_read_where_all_of_them_were_measured(tmp_path: Path) -> None:
    run = _run(tmp_path)
    line = {"kind": "train", "samples_per_second": 100.0, "step_seconds": 1.0}
    part, whole = {"other_seconds": 1.0}, {"other_seconds": 0.2, "forward_seconds": 0.8}
    rows = [line | {"step": n, "time": n} | (whole if n % 2 else part) for n in range(1, 11)]
    write_lines(run.path / "metrics.jsonl", rows)
    assert _read(run).phases == pytest.approx({"forward": 0.8, "other": 0.2})


def test_a_torn_line_and_a_line_without_a_speed_are_passed_over(tmp_path: Path) -> None:
    study = make_study(tmp_path)
    point = add_point(study, 2, rate=1000)
    file = Path(point.run, "metrics.jsonl")
    bad = '{"time": 1, "step": 5, "kind": "train", "samples_per_second": null}\n'
    file.write_text(file.read_text() + bad + '{"time": 2, "step": 6, "ki')
    assert _read(Run.open(point.run)).rate == pytest.approx(1000)


def test_a_metric_is_the_mean_after_the_first_fifth(tmp_path: Path) -> None:
    run = _run(tmp_path, ["hello", *[f"step {n}: {n * 10} img/s" for n in range(1, 11)]])
    found = _read(run, r"(?P<images>[\d.]+) img/s")
    assert found.rate == pytest.approx(sum(range(30, 101, 10)) / 8)
    assert found.unit == "images"


def test_seconds_of_a_step_grow_into_a_speed(tmp_path: Path) -> None:
    run = _run(tmp_path, ["took 0.5 s"] * 5)
    pattern = r"took (?P<seconds>[\d.]+) s"
    assert _read(run, pattern).rate == pytest.approx(2)
    assert _read(run, pattern, weak=True, ranks=4).rate == pytest.approx(8)


def test_a_metric_that_nobody_printed_is_told(tmp_path: Path) -> None:
    run = _run(tmp_path, ["hello"])
    with pytest.raises(AllranksError, match="no line of rank 0 matches"):
        _read(run, r"([\d.]+) img/s")
    with pytest.raises(AllranksError, match="'hello' is no number"):
        _read(run, "(hello)")


def test_wall_time_is_for_strong_scaling_alone(tmp_path: Path) -> None:
    run = _run(tmp_path)
    found = _read(run)
    assert (found.source, found.unit) == ("wall time", "runs")
    assert 1 / found.rate == pytest.approx(8)
    with pytest.raises(AllranksError, match="--metric"):
        _read(run, weak=True)


@pytest.mark.parametrize("pattern", ["([", "speed", "(a)(b)"])
def test_an_expression_is_checked_before_it_is_needed(pattern: str) -> None:
    with pytest.raises(UsageError, match="--metric"):
        check_metric(pattern)


def test_gpu_use_is_of_the_gpus_that_the_ranks_have(tmp_path: Path) -> None:
    study = make_study(tmp_path)
    point = add_point(study, 1, rate=1000, ranks=2)
    gpus = [{"gpu": n, "name": "H200", "uuid": f"GPU-{n}"} for n in range(8)]
    head = {"kind": "node", "time": 999.0, "node": 0, "host": "node1", "gpus": gpus}
    uses = [{"gpu": n, "use": 0.9 if n in (4, 5) else 0.0} for n in range(8)]
    samples = [{"kind": "sample", "time": 1000.5 + n, "gpus": uses} for n in range(11)]
    attempt = Path(point.run, "attempts/1")
    write_lines(attempt / "nodes/node-00000.jsonl", [head, *samples])
    for rank in range(2):
        about = {"rank": rank, "local_rank": rank, "node_rank": 0, "devices": "4,5"}
        write_lines(attempt / f"ranks/rank-0000{rank}.json", [about])
    assert _read(Run.open(point.run)).gpu_use == pytest.approx(0.9)


def test_gpu_use_is_of_the_time_that_is_measured(tmp_path: Path) -> None:
    study = make_study(tmp_path)
    point = add_point(study, 1, rate=1000)  # one window a second, the first 3 of 12 left out
    gpu = {"gpu": 0, "name": "H200", "uuid": "GPU-1"}
    head = {"kind": "node", "time": 999.0, "node": 0, "host": "node1", "gpus": [gpu]}
    samples = [
        {"kind": "sample", "time": 1000.5 + n, "gpus": [{"gpu": 0, "use": 0.1 if n < 3 else 0.9}]}
        for n in range(11)
    ]
    write_lines(Path(point.run, "attempts/1/nodes/node-00000.jsonl"), [head, *samples])
    assert _read(Run.open(point.run)).gpu_use == pytest.approx(0.9)
