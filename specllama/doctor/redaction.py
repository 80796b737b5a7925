"""Removes user names, machine names and keys from the report. Pure, except `this_machine`."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.I)
_MIN_SECRET = 6  # characters: a shorter one is a word or a number
_KNOWN = {"localhost", "huggingface.co", "github.com", "pypi.org"}
# Values that reveal nothing private: numbers, sizes, switches.
_PLAIN = re.compile(
    r"[\d.,+-]{1,16}|on|off|true|false|yes|no|auto|all|none|[a-z]?[fq]\d\d?(_\w)?", re.I
)

_RULES = (
    # --api-key X, --hf-token=X; API_KEY=X
    (
        re.compile(
            r"(--?[\w-]*(?:key|token|secret|password)[\w-]*)([=\s]+)('[^']*'|\"[^\"]*\"|[^\s,;)]+)",
            re.I,
        ),
        r"\1\2…",
    ),
    # api_key: X, "HF_TOKEN": "X"
    (
        re.compile(
            r"(\b\w*(?:_key|_token|_?secret|password)[\"']?\s*:\s*)('[^']*'|\"[^\"]*\"|[^\s,;}]+)",
            re.I,
        ),
        r"\1…",
    ),
    (re.compile(r"(\w*(?:KEY|TOKEN|SECRET|PASSWORD)\w*=)[^\s,;)]+"), r"\1…"),
    (re.compile(r"\b(?:hf_|sk-|ghp_|Bearer )[\w.-]{6,}"), "…"),
    (re.compile(r"(\w+://)[^/\s@]+@"), r"\1…@"),
)
_URL = re.compile(r"(\w+://(?:…@)?)(\[[^\]\s]*\]|[^/\s:,;)'\"]+)")
_WITH_PORT = re.compile(r"(?<![\w./\\@-])([A-Za-z][\w.-]*)(?=:\d{4,5}\b)")
_IPV4 = re.compile(
    r"(?<![\w.])(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(?:25[0-5]|2[0-4]\d|1?\d?\d)(?![\w.]\w)"
)
_IPV6 = re.compile(
    r"(?<![\w:])(?:(?:[0-9a-f]{1,4}:){7}[0-9a-f]{1,4}|(?:[0-9a-f]{1,4}:)+(?::[0-9a-f]{1,4})+)(?![\w:])",
    re.I,
)

_OTHER_HOMES = re.compile(r"(?<![\w.])((?:/home|/Users|[A-Za-z]:\\Users)[/\\])[^/\\\s:;,'\"]+")
_SHARES = re.compile(r"(?<![:\w/\\])(//|\\\\)[\w.-]+(?=[/\\])")

T = TypeVar("T")


@dataclass(frozen=True)
class Identity:
    """The user and machine. `secrets`: texts that must not appear anywhere."""

    homes: tuple[str, ...] = ()
    user: str = ""
    hosts: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()


def this_machine() -> Identity:
    """The current user and machine. Never raises."""
    homes: list[str] = []
    try:
        home = Path.home()
        homes = [str(home), str(home.resolve())]
    except (RuntimeError, OSError):  # a user without an entry and without HOME
        pass
    name = socket.gethostname()
    hosts = tuple(dict.fromkeys(h for h in (name, name.split(".")[0]) if len(h) > 1))
    return Identity(tuple(dict.fromkeys(homes)), _user(), hosts, _secrets(os.environ))


def _user() -> str:
    import getpass

    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return ""


def _secrets(environ: Mapping[str, str]) -> tuple[str, ...]:
    values = (v for k, v in environ.items() if _SECRET_NAME.search(k))
    found = {v for v in values if len(v) >= _MIN_SECRET and not os.path.exists(v)}
    return tuple(sorted(found, key=len, reverse=True))


def shown_value(name: str, value: str) -> str:
    """What to show of an environment variable."""
    if not value:
        return "empty"
    plain = not _SECRET_NAME.search(name) and _PLAIN.fullmatch(value)
    return value if plain else "set"


def redact(text: str, who: Identity) -> str:
    """`text` without private parts."""
    for secret in who.secrets:
        text = text.replace(secret, "…")
    for rule, by in _RULES:
        text = rule.sub(by, text)
    for home in who.homes:
        if len(home.rstrip("/\\")) > 2:  # not "/" and not "C:\"
            text = re.sub(
                rf"(?<![\w.]){re.escape(home.rstrip('/' + chr(92)))}(?=[/\\]|[^\w.-]|\.?$)",
                "~",
                text,
            )
    text = _OTHER_HOMES.sub(r"\1<user>", text)
    text = _SHARES.sub(r"\1<host>", text)
    text = _URL.sub(lambda m: m[0] if _harmless(m[2]) else f"{m[1]}<host>", text)
    text = _IPV6.sub("<address>", text)
    text = _WITH_PORT.sub(lambda m: m[0] if _harmless(m[1]) else "<host>", text)
    text = _IPV4.sub(lambda m: m[0] if _harmless(m[0]) else "<address>", text)
    for host in who.hosts:
        if host != "localhost":
            text = re.sub(rf"(?<![\w-]){re.escape(host)}(?![\w-])", "<host>", text, flags=re.I)
    if len(who.user) > 1 and who.user != "root":
        text = re.sub(rf"(?<=[/\\]){re.escape(who.user)}(?=[/\\@]|[^\w.-]|$)", "<user>", text)
        text = re.sub(rf"\b{re.escape(who.user)}(?=@)", "<user>", text)
    return text


def _harmless(host: str) -> bool:
    host = host.strip("[]").lower()
    return host in _KNOWN or host == "::1" or host.startswith(("127.", "0.0.0.0", "<"))


def redacted(value: T, who: Identity) -> T:
    """A value of findings.py with every text in it redacted."""
    return _cleaned(value, who)  # type: ignore[no-any-return]


def _cleaned(value: Any, who: Identity) -> Any:
    if isinstance(value, str):
        return redact(value, who)
    if isinstance(value, tuple):
        return tuple(_cleaned(v, who) for v in value)
    if isinstance(value, Mapping):
        return {redact(k, who): _cleaned(v, who) for k, v in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return replace(
            value, **{f.name: _cleaned(getattr(value, f.name), who) for f in fields(value)}
        )
    return value
