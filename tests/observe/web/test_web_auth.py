"""Who may look, by which ways, and what every answer carries."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.testclient import TestClient

from allranks.errors import UsageError
from allranks.observe.web.auth import load_token
from allranks.observe.web.catalogue import Catalogue
from allranks.observe.web.web_server import make_app
from web_rig import TOKEN, Runs

BEARER = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def client(runs: Runs) -> TestClient:
    app = make_app(Catalogue([str(runs.folder)]), TOKEN)
    return TestClient(app, base_url="http://127.0.0.1:8265", follow_redirects=False)


@pytest.mark.parametrize(
    "path", ["/", "/api/runs", "/metrics", "/static/js/main.js", "/static/nothing", "/elsewhere"]
)
def test_without_a_token_nothing_is_shown(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 401
    assert "allranks web" in answer.text
    assert "<" not in answer.text


def test_the_first_visit_puts_the_token_into_a_cookie_and_out_of_the_address(
    client: TestClient,
) -> None:
    answer = client.get(f"/?token={TOKEN}&x=1")
    assert answer.status_code == 303
    assert answer.headers["location"] == "/?x=1"
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert client.get("/").status_code == 200
    assert client.get("/api/runs").status_code == 200


def test_a_wrong_token_gets_no_cookie(client: TestClient) -> None:
    for wrong in ("", "no", TOKEN[:-1], TOKEN + "x", "ü"):
        answer = client.get("/", params={"token": wrong})
        assert answer.status_code == 401
        assert "set-cookie" not in answer.headers
        assert (
            client.get(
                "/api/runs", headers={"Authorization": f"Bearer {wrong}".encode()}
            ).status_code
            == 401
        )


def test_the_token_never_leads_to_another_host(client: TestClient) -> None:
    answer = client.get(f"http://127.0.0.1:8265//evil.example/?token={TOKEN}")
    assert answer.headers["location"].startswith("/evil.example")


def test_programs_use_a_bearer(client: TestClient) -> None:
    assert client.get("/api/runs", headers=BEARER).status_code == 200
    assert client.get("/api/runs", headers={"Authorization": TOKEN}).status_code == 401
    assert client.get("/api/runs", headers={"Authorization": f"Basic {TOKEN}"}).status_code == 401


def test_two_servers_do_not_share_a_cookie(client: TestClient, runs: Runs) -> None:
    client.get(f"/?token={TOKEN}")
    other = TestClient(
        make_app(Catalogue([str(runs.folder)]), "another"), base_url="http://127.0.0.1:1"
    )
    other.cookies.update(client.cookies)
    assert other.get("/api/runs").status_code == 401


def test_a_cookie_is_good_for_one_start_also_of_a_kept_token(
    client: TestClient, runs: Runs
) -> None:
    """Cookies are sent to every port: the next to listen on ours must not learn the token."""
    cookie = client.get(f"/?token={TOKEN}").headers["set-cookie"]
    assert TOKEN not in cookie
    assert client.get("/api/runs").status_code == 200
    again = TestClient(
        make_app(Catalogue([str(runs.folder)]), TOKEN), base_url="http://127.0.0.1:1"
    )
    again.cookies.update(client.cookies)
    assert again.get("/api/runs").status_code == 401
    value = next(iter(client.cookies.values()))
    assert again.get("/api/runs", headers={"Authorization": f"Bearer {value}"}).status_code == 401


@pytest.mark.parametrize(
    "host", ["127.0.0.1:8265", "localhost:1", "LOCALHOST", "[::1]:8265", "127.0.0.2"]
)
def test_names_of_this_machine_are_answered(client: TestClient, host: str) -> None:
    assert client.get("/api/runs", headers=BEARER | {"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8265", "127.0.0.1.evil.example", "10.0.0.1", "", "[::2]"]
)
def test_other_names_are_refused_even_with_the_token(client: TestClient, host: str) -> None:
    answer = client.get("/api/runs", headers=BEARER | {"Host": host})
    assert answer.status_code == 400


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_can_be_changed(client: TestClient, method: str) -> None:
    answer = client.request(method, "/api/runs", headers=BEARER)
    assert answer.status_code == 405
    assert answer.headers["allow"] == "GET, HEAD"


@pytest.mark.parametrize("path", ["/", "/api/runs", "/api/nothing", "/static/css/base.css"])
def test_every_answer_is_fenced_in(client: TestClient, path: str) -> None:
    for headers in ({}, BEARER):
        found = client.get(path, headers=headers).headers
        policy = found["content-security-policy"]
        assert "default-src 'self'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert found["x-content-type-options"] == "nosniff"
        assert found["referrer-policy"] == "no-referrer"
        assert found["cache-control"] in ("no-store", "no-cache")


def test_a_link_from_another_page_comes_in_by_itself(client: TestClient) -> None:
    """A strict cookie is not sent along: a page that asks again is answered in place of a refusal."""
    from_afar = client.get("/", headers={"Sec-Fetch-Site": "cross-site"})
    assert from_afar.status_code == 200
    assert 'http-equiv="refresh"' in from_afar.text
    assert client.get("/", headers={"Sec-Fetch-Site": "same-origin"}).status_code == 401
    assert client.get("/api/runs", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 401


def test_a_kept_token_stays_and_is_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "token"
    token = load_token(path)
    assert load_token(path) == token
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o644)
    with pytest.raises(UsageError, match="chmod 600"):
        load_token(path)


@pytest.mark.parametrize("text", ["", "short", "with a blank in the middle", "x" * 20 + "\nsecond"])
def test_what_is_no_token_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "token"
    path.touch(0o600)
    path.write_text(text)
    with pytest.raises(UsageError, match="holds no token"):
        load_token(path)


def test_a_token_file_without_a_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be made"):
        load_token(tmp_path / "nowhere" / "token")
