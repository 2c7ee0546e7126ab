"""Remove secrets from environments, command lines and texts, before they are written to a run folder.

A run folder gets copied, zipped and mailed. Names that speak of secrets lose their value, addresses
lose their password, and a value that looks like a known kind of token goes whatever its name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

REDACTED = "[redacted]"

_NAME = re.compile(
    r"KEY|TOKEN|SECRET|PASS|PWD|CRED|AUTH|COOKIE|SIGNATURE|BEARER|PRIVATE|WEBHOOK|LICEN[CS]E|DSN|"
    r"SAS_|CONNECTION_?STRING",
    re.IGNORECASE,
)
_SECRET_NAME = re.compile(
    r"(?:^|_)(?:API_?KEY|ACCESS_?KEY|KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|COOKIE)(?:$|_ID$)",
    re.IGNORECASE,
)
# Options that speak of no secret though their name sounds so, and that one needs to run it again.
_PLAIN_OPTION = re.compile(
    r"^_+NO_|TOKENS$|TOKENS_PER_|TOKENIZER|KEY_VALUE|SORT_KEY|"
    r"(?:PAD|EOS|BOS|UNK|SEP|MASK|CLS)_TOKEN(?:_ID)?$",
    re.IGNORECASE,
)
# Names that match above by accident and that one needs to understand a failed run.
_HARMLESS = frozenset(
    {"PWD", "OLDPWD", "SSH_AUTH_SOCK", "XAUTHORITY", "TOKENIZERS_PARALLELISM", "KEYBOARD"}
)
_USERINFO = re.compile(r"(?P<scheme>[a-zA-Z][a-zA-Z0-9+.-]*://)[^/\s@'\"]+@")
_QUERY = re.compile(
    r"(?i)([?&;](?:[\w-]*(?:sig|signature|token|key|secret|password|credential)[\w-]*)=)[^&;\s]+"
)
_VALUES = re.compile(
    r"""
      gh[pousr]_[A-Za-z0-9]{16,} | github_pat_\w{20,} | glpat-[\w-]{16,}      # GitHub, GitLab
    | hf_[A-Za-z0-9]{16,}                                                     # Hugging Face
    | sk-[\w-]{16,} | xox[abposr]-[\w-]{10,}                                  # OpenAI-like, Slack
    | A(?:KIA|SIA)[A-Z0-9]{12,} | AIza[\w-]{30,} | ya29\.[\w-]{20,}           # AWS, Google
    | npm_[A-Za-z0-9]{20,} | pypi-[\w-]{20,} | dckr_pat_[\w-]{16,}            # registries
    | eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*                                         # JWT (munge, Slurm)
    | -----BEGIN[ ][A-Z ]*PRIVATE[ ]KEY-----[\s\S]*
    | (?i:bearer|basic)\s+[A-Za-z0-9+/._=-]{12,}
    | (?<![0-9a-zA-Z])[0-9a-f]{40}(?![0-9a-zA-Z])                             # W&B keys, SHA-1
    """,
    re.VERBOSE,
)
# The agent's own names: a session id is no secret and a sweep needs to be explainable.
_OURS = re.compile(r"ALLRANKS_(?!.*(KEY|TOKEN|SECRET|PASS))")


def redact_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return a copy with every secret replaced by ``[redacted]``, sorted by name."""
    return {name: _redact(name, value) for name, value in sorted(environment.items())}


def holds_secret(name: str, value: str) -> bool:
    """Return whether a variable must not be written into a job script.

    Stricter than the redaction of a dump, where one word too many does no harm: a script without a
    variable that it needs does not run.
    """
    return bool(value) and bool(_SECRET_NAME.search(name) or _USERINFO.search(value))


def redact_words(words: Iterable[str]) -> list[str]:
    """Return a command line without its secrets.

    The value of an option (``--password x``, ``--password=x``) or of ``NAME=value`` by its name, the rest
    by look.
    """
    found: list[str] = []
    is_secret = False
    for word in words:
        found.append(REDACTED if is_secret and word[:1] != "-" else _redact_word(word))
        is_secret = "=" not in word and _speaks_of_secret(word)
    return found


def _redact_word(word: str) -> str:
    name, equals, value = word.partition("=")
    if not equals or ":" in name:  # an address, say
        return redact_text(word)
    if not name.startswith("-"):
        return f"{name}={_redact(name, value)}"
    secret = value and _speaks_of_secret(name)
    return f"{name}={REDACTED if secret else _redact_word(value)}"


def _speaks_of_secret(option: str) -> bool:
    name = re.sub(r"[-.]", "_", option)
    return option[:1] == "-" and bool(_NAME.search(name)) and not _PLAIN_OPTION.search(name)


def redact_text(text: str) -> str:
    """Return text without passwords in URLs and known kinds of tokens."""
    text = _USERINFO.sub(rf"\g<scheme>{REDACTED}@", text)
    text = _QUERY.sub(rf"\g<1>{REDACTED}", text)
    return _VALUES.sub(REDACTED, text)


def _redact(name: str, value: str) -> str:
    if value and name not in _HARMLESS and not _OURS.match(name) and _NAME.search(name):
        return REDACTED
    return redact_text(value)
