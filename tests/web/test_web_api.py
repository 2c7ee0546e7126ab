"""The questions of the page: what they answer, and where they do not lead."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from allranks.errors import RunNotFoundError
from allranks.web.app import make_app
from allranks.web.catalogue import Catalogue
from allranks.web.following import States
from allranks.web.slurm_queue import Queue
from command_rig import until
from monitor_rig import grow, make_run
from web_rig import BROKEN, TOKEN, Runs

BEARER = {"Authorization": f"Bearer {TOKEN}"}


def client_of(*places: Path) -> TestClient:
    app = make_app(Catalogue([str(place) for place in places]), TOKEN)
    return TestClient(app, base_url="http://localhost", headers=BEARER)


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
    remarks = client.get(f"/api/runs/{runs.failed.id}/remarks").json()["remarks"]
    assert any("CUDA out of memory" in one["message"] for one in remarks)


def test_a_comparison_says_what_differs(client: TestClient, runs: Runs) -> None:
    ids = f"{runs.live.id},{runs.done.id}"
    found = client.get(f"/api/compare?runs={ids}&x=time").json()
    differing = {row["name"]: row["values"] for row in found["differing"]}
    assert differing["nprocs"] == {runs.live.id: "4", runs.done.id: "2"}
    assert found["curves"][runs.done.id]["train_loss"][0][0] == 0  # seconds since its start
    assert {row["name"] for row in found["last"]} >= {"train_loss", "tokens_per_second"}
    assert client.get("/api/compare").status_code == 400
    assert client.get(f"/api/compare?runs={','.join('abcdefg')}").status_code == 400


def test_the_exposition(client: TestClient, runs: Runs) -> None:
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert answer.text.endswith("# EOF\n")
    assert f'run="{runs.live.id}"' in answer.text


def test_a_path_is_never_taken_from_the_address(
    client: TestClient, runs: Runs, tmp_path: Path
) -> None:
    outside = make_run(tmp_path, "outside", windows=2)
    for name in (
        "..%2f..%2fetc", str(outside.path).replace("/", "%2f"), "%2e%2e", f"../{outside.id}", outside.id,
    ):  # fmt: skip
        assert client.get(f"/api/runs/{name}").status_code == 404, name
    for path in (
        "/static/../app.py",
        "/static/%2e%2e/app.py",
        "/static/..%2fauth.py",
        "/static//etc/passwd",
    ):
        assert client.get(path).status_code == 404, path


def test_links_in_someone_elses_run_show_nothing_of_mine(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("my private words\n")
    run = make_run(tmp_path / "runs", "theirs", windows=2)
    ranks = run.path / "attempts" / "1" / "ranks"
    (ranks / "rank-00000.log").unlink()
    (ranks / "rank-00000.log").symlink_to(secret)
    (run.path / "slurm-1.out").symlink_to(secret)
    (run.path / "job.sh").unlink()
    (run.path / "job.sh").symlink_to(secret)
    client = client_of(tmp_path / "runs")
    for path in ("logs", "logs?stream=slurm", "logs?q=private", "job", ""):
        answer = client.get(f"/api/runs/{run.id}/{path}".rstrip("/"))
        assert "private words" not in answer.text, path


def test_a_folder_that_may_only_be_read(tmp_path: Path) -> None:
    run = make_run(tmp_path, "theirs", windows=3)
    before = {path: path.stat().st_mtime_ns for path in run.path.rglob("*")}
    for path in [run.path, *run.path.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    client = client_of(tmp_path)
    for path in ("", "/plots", "/heat?what=gpu", "/logs", "/job", "/remarks"):
        assert client.get(f"/api/runs/{run.id}{path}").status_code == 200, path
    assert before == {path: path.stat().st_mtime_ns for path in run.path.rglob("*")}
    for path in [run.path, *run.path.rglob("*")]:
        path.chmod(0o755)


def test_a_run_without_anything_is_no_error(tmp_path: Path) -> None:
    bare = tmp_path / "bare-20260101-000000"
    bare.mkdir()
    (bare / "run.json").write_text(json.dumps({"name": "bare", "scheduler": "local"}))
    client = client_of(tmp_path)
    for path in ("", "/plots", "/logs", "/logs?q=x", "/logs?errors=1", "/job", "/remarks"):
        assert client.get(f"/api/runs/{bare.name}{path}").status_code == 200, path
    assert client.get("/api/runs").json()["runs"][0]["step"] is None


def test_slurm_that_does_not_answer_holds_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A squeue that hangs: once the page was shown, it goes on with what it knows."""
    make_run(tmp_path / "runs", "asked", windows=2, finished=False, job_id="12")
    slow = tmp_path / "bin" / "squeue"
    slow.parent.mkdir()
    slow.write_text("#!/bin/sh\nexit 1\n")
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{slow.parent}:/usr/bin:/bin")
    states = States()
    runs = [run for _, run in Catalogue([str(tmp_path / "runs")]).runs()]
    first = states.of(runs)
    slow.write_text('#!/bin/sh\necho asked >>"$0.log"\nexec sleep 15\n')
    states._known = {path: (float("-inf"), known) for path, (_, known) in states._known.items()}
    assert states.of(runs) == first  # the test's time limit would tell of one that waits
    until(lambda: Path(f"{slow}.log").exists())
    assert states.of(runs) == first


def test_without_slurm_there_is_no_queue(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    queue = Queue()
    assert queue.jobs(set()) is None
    queue._ask()
    assert queue.jobs(set()) is None
