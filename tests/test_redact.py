"""No secret reaches a run folder."""

from __future__ import annotations

import pytest

from allranks.redact import REDACTED, redact_environment, redact_text


@pytest.mark.parametrize(
    "name",
    [
        "WANDB_API_KEY",
        "HF_TOKEN",
        "AWS_SECRET_ACCESS_KEY",
        "PGPASSWORD",
        "MYSQL_PWD",
        "GOOGLE_CREDENTIALS",
        "NPM_AUTH",
        "session_cookie",
        "X_SIGNATURE",
        "SENTRY_DSN",
        "SLURM_JWT_TOKEN",
    ],
)
def test_names_that_speak_of_secrets(name: str) -> None:
    assert redact_environment({name: "v4lue"}) == {name: REDACTED}


@pytest.mark.parametrize(
    "value",
    [
        "ghp_" + "a1" * 18,
        "hf_" + "aB" * 17,
        "sk-proj-" + "x" * 40,
        "AKIAABCDEFGHIJKLMNOP",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJ1c2VyIn0.c2lnbmF0dXJl",
        "0123456789abcdef" * 2 + "01234567",
        "xoxb-123456789012-abcdef",
        "Bearer abcdefghijklmnop",
        "-----BEGIN RSA PRIVATE KEY-----\nMII\n",
    ],
)
def test_values_that_look_like_secrets(value: str) -> None:
    assert value not in redact_environment({"EXTRA": f"--x {value}"})["EXTRA"]


def test_addresses_lose_their_password() -> None:
    assert redact_text("https://me:pw@host/x?a=1") == f"https://{REDACTED}@host/x?a=1"
    assert redact_text("redis://:pw@h:1") == f"redis://{REDACTED}@h:1"
    assert "abc" not in redact_text("https://h/b?X-Amz-Signature=abc&y=1")


def test_the_rest_stays_readable() -> None:
    plain = {
        "PATH": "/usr/bin:/bin",
        "PWD": "/home/me",
        "MASTER_PORT": "29500",
        "TOKENIZERS_PARALLELISM": "1",
        "SLURM_JOB_NODELIST": "n[1-4]",
        "ALLRANKS_SESSION": "12-ab",
        "SSH_AUTH_SOCK": "/tmp/s",
        "GIT_URL": "git@github.com:o/r.git",
        "EMPTY_TOKEN": "",
    }
    assert redact_environment(plain) == dict(sorted(plain.items()))
