"""The questions of the page, and what they answer."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from allranks.errors import RunNotFoundError
from allranks.observe.web.catalogue import Catalogue
from view_rig import grow, make_run
from web_rig import BROKEN, Runs, client_of


@pytest.fixture(scope="module")
def client(runs: Runs) -> TestClient:
    return client_of(runs.folder)


def test_the_list_has_every_run_below_the_folder(client: TestClient, runs: Runs) -> None:
    answer = client.get("/api/runs").json()
    rows = {row["name"]: row for row in answer["runs"]}
    assert set(rows) == {"alive", "done", BROKEN}
    assert rows["alive"]["state"] == "running"
    assert rows["alive"]["eta"] > 0
    assert rows["alive"]["attempts"] == 2
    assert rows["done"]["job_id"] == "4711"
    assert rows["done"]["curve"][0] > rows["done"]["curve"][-1]
    assert rows[BROKEN]["why"] == "rank 2 failed first"
    assert 0 < rows["done"]["goodput"] <= 1


def test_a_run_that_comes_later_is_found(tmp_path: Path) -> None:
    catalogue = Catalogue([str(tmp_path)])
    assert catalogue.runs() == []
    run = make_run(tmp_path, "later", windows=2)
    catalogue._until = float("-inf")  # as some seconds later
    assert [key for key, _ in catalogue.runs()] == [run.id]


def test_two_runs_of_one_name_have_ids_of_their_own(tmp_path: Path) -> None:
    one = make_run(tmp_path / "a", "same", windows=2, end=1.7e9)
    two = make_run(tmp_path / "b", "same", windows=3, end=one.created.timestamp() + 52)  # type: ignore[union-attr]
    two.path.rename(two.path.with_name(one.id))
    catalogue = Catalogue([str(tmp_path)])
    ids = [key for key, _ in catalogue.runs()]
    assert len(set(ids)) == 2
    assert {catalogue.run(key).path.parent.name for key in ids} == {"a", "b"}
    assert ids == [key for key, _ in Catalogue([str(tmp_path / "b"), str(tmp_path / "a")]).runs()]
    two.path.with_name(one.id).rename(tmp_path / "elsewhere")  # no run is there now
    catalogue._until = float("-inf")
    (tmp_path / "elsewhere" / "run.json").unlink()
    assert [key for key, _ in catalogue.runs()] == [one.id]


def test_a_name_that_nothing_has_is_told_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(RunNotFoundError, match="nothing-like-that"):
        Catalogue(["nothing-like-that"], tmp_path)


def test_a_look_has_the_head_of_the_page(client: TestClient, runs: Runs) -> None:
    look = client.get(f"/api/runs/{runs.live.id}").json()
    assert look["state"] == "running"
    assert look["progress"]["step"] == 600
    assert [rank["rank"] for rank in look["ranks"] if rank["straggler"]] == [2]
    assert look["nodes"][0]["gpus"]
    failed = client.get(f"/api/runs/{runs.failed.id}").json()
    assert "OutOfMemoryError" in failed["error"]["traceback"]
    assert failed["error"]["how"] == "exit code 1"


def test_plots_are_thin_and_smooth_on_request(client: TestClient, runs: Runs) -> None:
    plain = client.get(f"/api/runs/{runs.live.id}/plots").json()
    steps, losses = plain["series"]["train_loss"]
    assert (steps[0], steps[-1]) == (10, 600)
    assert len(steps) == len(losses)
    assert plain["smooth"] == {}
    assert plain["chosen"] == ["grad_norm"]
    soft = client.get(f"/api/runs/{runs.live.id}/plots?smooth=0.9&names=lr").json()
    assert "lr" in soft["series"]
    rough = sum(abs(a - b) for a, b in pairwise(losses))
    calm = soft["smooth"]["train_loss"][1]
    assert sum(abs(a - b) for a, b in pairwise(calm)) < rough


def test_heat_maps(client: TestClient, runs: Runs) -> None:
    heat = client.get(f"/api/runs/{runs.live.id}/heat?what=wait").json()
    assert heat["rows"] == [f"rank {rank}" for rank in range(4)]
    assert all(len(row) == len(heat["times"]) for row in heat["values"])
    means = [sum(row) / len(row) for row in heat["values"]]
    assert min(means) == means[2]  # the others wait for the slow one
    wrong = client.get(f"/api/runs/{runs.live.id}/heat?what=nonsense")
    assert wrong.status_code == 400
    assert "gpu_memory" in wrong.json()["error"]


def test_what_did_not_change_is_not_sent_again(tmp_path: Path) -> None:
    run = make_run(tmp_path, "tagged", windows=5, finished=False)
    client = client_of(tmp_path)
    path = f"/api/runs/{run.id}/plots"
    first = client.get(path)
    tag = {"If-None-Match": first.headers["etag"]}
    again = client.get(path, headers=tag)
    assert (again.status_code, again.content) == (304, b"")
    grow(run)
    client = client_of(tmp_path)  # one that has not just looked
    assert client.get(path, headers=tag).status_code == 200


def test_answers_are_packed(client: TestClient, runs: Runs) -> None:
    answer = client.get(f"/api/runs/{runs.live.id}/plots", headers={"Accept-Encoding": "gzip"})
    assert answer.headers["content-encoding"] == "gzip"
    assert int(answer.headers["content-length"]) < len(answer.content) / 2


def test_the_job_without_its_secrets(client: TestClient, runs: Runs) -> None:
    environment = runs.done.last_attempt.path / "environment.txt"
    environment.write_text("RANK=0\nMY_API_KEY=hunter2\nURL=https://me:hunter2@host/\n")
    answer = client.get(f"/api/runs/{runs.done.id}/job")
    assert "hunter2" not in answer.text
    job = answer.json()
    assert job["script"].startswith("#!/bin/bash")
    assert {"name": "nodes", "value": "1", "origin": "command line"} in job["values"]
    assert job["environment"]["RANK"] == "0"


def test_findings(client: TestClient, runs: Runs) -> None:
    remarks = client.get(f"/api/runs/{runs.failed.id}/diagnostics").json()["diagnostics"]
    assert any("CUDA out of memory" in one["message"] for one in remarks)


def test_a_comparison_says_what_differs(client: TestClient, runs: Runs) -> None:
    found = client.get(f"/api/compare?runs={runs.live.id}&runs={runs.done.id}&x=time").json()
    differing = {row["name"]: row["values"] for row in found["differing"]}
    assert differing["nprocs"] == {runs.live.id: "4", runs.done.id: "2"}
    assert found["curves"][runs.done.id]["train_loss"][0][0] == 0  # seconds since its start
    assert {row["name"] for row in found["last"]} >= {"train_loss", "tokens_per_second"}
    assert client.get("/api/compare").status_code == 400
    assert client.get("/api/compare", params={"runs": list("abcdefg")}).status_code == 400


def test_no_line_is_drawn_over_the_wait_between_two_attempts(
    client: TestClient, runs: Runs
) -> None:
    for x, gaps in (("step", 0), ("time", 1)):
        found = client.get("/api/compare", params={"runs": runs.live.id, "x": x}).json()
        places, losses = found["curves"][runs.live.id]["train_loss"]
        assert losses.count(None) == gaps
        assert places == sorted(places)


def test_where_the_time_went_is_told_of_all_steps_once_it_ended(tmp_path: Path) -> None:
    run = make_run(tmp_path, "over", windows=60)
    path = run.path / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    early = [row | {"data_seconds": 9.0} if row["step"] <= 300 else row for row in rows]
    path.write_text("".join(json.dumps(row) + "\n" for row in early))
    look = client_of(tmp_path).get(f"/api/runs/{run.id}").json()
    assert look["phases"]["data"] > 4


def test_a_comparison_goes_on_without_a_run_that_is_gone(client: TestClient, runs: Runs) -> None:
    found = client.get("/api/compare", params={"runs": [runs.done.id, "gone, and never was"]})
    assert [run["id"] for run in found.json()["runs"]] == [runs.done.id]
    assert client.get("/api/compare", params={"runs": ["gone"]}).status_code == 404


def test_the_exposition(client: TestClient, runs: Runs) -> None:
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert answer.text.endswith("# EOF\n")
    assert f'run="{runs.live.id}"' in answer.text


def test_of_several_fits_the_last_is_drawn(tmp_path: Path) -> None:
    """Each begins at step 0; the second saw no validation yet."""
    run = make_run(tmp_path, "twice", windows=30)
    metrics = run.path / "metrics.jsonl"
    first = [json.loads(line) for line in metrics.read_text().splitlines()]
    later = [line | {"time": line["time"] + 1e4} for line in first if line["kind"] == "train"][:8]
    metrics.write_text("".join(json.dumps(line) + "\n" for line in first + later))
    client = client_of(tmp_path)
    found = client.get(f"/api/runs/{run.id}/plots").json()
    steps = [line["step"] for line in later]
    assert found["series"]["train_loss"][0] == steps
    assert found["series"]["val_loss"] == [[], []]
    assert found["phases"]["steps"] == steps
    assert len(client.get("/api/runs").json()["runs"][0]["curve"]) == 8
    by_time = client.get("/api/compare", params={"runs": run.id, "x": "time"}).json()
    assert len(by_time["curves"][run.id]["train_loss"][0]) == 8


def test_a_task_of_an_array_is_looked_at_by_its_number(tmp_path: Path) -> None:
    run = make_run(tmp_path, "array", windows=4, attempts=2, job_id="12")
    about = run.path / "run.json"
    about.write_text(json.dumps(json.loads(about.read_text()) | {"array": "3-4"}))
    for number, task in ((1, "3"), (2, "4")):
        path = run.path / "attempts" / str(number) / "attempt.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"array_task": task}))
    client = client_of(tmp_path)
    looks = [client.get(f"/api/runs/{run.id}?task={task}").json() for task in ("3", "4")]
    assert [look["task"] for look in looks] == ["3", "4"]
    assert looks[0]["tasks"] == ["3", "4"]
    attempts = [look["attempts"] for look in (*looks, client.get(f"/api/runs/{run.id}").json())]
    assert [[one["array_task"] for one in some] for some in attempts] == [["3"], ["4"], ["3", "4"]]
    (run.path / "tasks" / "3").mkdir(parents=True)
    (run.path / "tasks" / "3" / "training.json").write_text('{"seed": 7}')
    assert client_of(tmp_path).get(f"/api/runs/{run.id}/job?task=3").json()["training"] == {
        "seed": "7"
    }
    lines = client.get(f"/api/runs/{run.id}/logs?task=3").json()["lines"]
    assert {line["task"] for line in lines} == {"3"}
    assert client.get("/api/runs").json()["runs"][0]["tasks"] == 2
