"""No secret reaches a run folder."""

from __future__ import annotations

import pytest

from allranks.core.redaction import REDACTED, redact_environment, redact_text, redact_words


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
        "ALLRANKS_LAUNCH_ID": "12-ab",
        "SSH_AUTH_SOCK": "/tmp/s",
        "GIT_URL": "git@github.com:o/r.git",
        "EMPTY_TOKEN": "",
    }
    assert redact_environment(plain) == dict(sorted(plain.items()))


@pytest.mark.parametrize(
    ("typed", "kept"),
    [
        ("--password hunter2 --lr 0.1", f"--password {REDACTED} --lr 0.1"),
        ("--password=hunter2 x.csv", f"--password={REDACTED} x.csv"),
        ("--db.pass hunter2", f"--db.pass {REDACTED}"),
        ("-api-key hunter2", f"-api-key {REDACTED}"),
        ("--hf_token hunter2 hunter", f"--hf_token {REDACTED} hunter"),
        ("--x=my_key train.py", "--x=my_key train.py"),
        ("--password --verbose", "--password --verbose"),
        ("--lr 0.1 --password", "--lr 0.1 --password"),
        ("--env WANDB_API_KEY=hunter2", f"--env WANDB_API_KEY={REDACTED}"),
        ("--env=WANDB_API_KEY=hunter2", f"--env=WANDB_API_KEY={REDACTED}"),
        ("--password=", "--password="),
        ("--data=https://me:pw@h/?token=x", f"--data=https://{REDACTED}@h/?token={REDACTED}"),
        ("https://me:pw@h/?token=x", f"https://{REDACTED}@h/?token={REDACTED}"),
    ],
)
def test_no_secret_of_a_command_line(typed: str, kept: str) -> None:
    assert redact_words(typed.split(" ")) == kept.split(" ")


@pytest.mark.parametrize(
    "option",
    [
        "--authtoken", "--hftoken", "--creds", "--cred", "--secrets", "--dbpass", "--passcode",
        "--auth-header", "--wandbkey", "--token-a", "--license", "--token", "--login.cookie", "-key",
    ],
)  # fmt: skip
def test_options_that_speak_of_secrets(option: str) -> None:
    assert redact_words([f"{option}=hunter2", "x"]) == [f"{option}={REDACTED}", "x"]
    assert redact_words([option, "hunter2", "x"]) == [option, REDACTED, "x"]


@pytest.mark.parametrize(
    "option",
    [
        "--tokenizer", "--tokenizer-path", "--max-tokens", "--max_new_tokens", "--tokens-per-sample",
        "--key-value-heads", "--pad-token", "--eos_token_id", "--model.mask-token", "--sort-key",
        "--no-password", "--no_auth", "token",
    ],
)  # fmt: skip
def test_what_one_needs_to_run_it_again_stays(option: str) -> None:
    assert redact_words([option, "word"]) == [option, "word"]
    if option.startswith("-"):
        assert redact_words([f"{option}=word", "x"]) == [f"{option}=word", "x"]
