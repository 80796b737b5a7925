"""Renders a help text in llama.cpp's layout from tests/data/llama-server-options.json.

The data holds names, hints and defaults of eleven builds; the filler stands where
llama.cpp's own wording is. Layout: common/arg.cpp, common_arg::to_string.
"""

from __future__ import annotations

import json
import textwrap
from functools import cache
from pathlib import Path
from typing import Any

from specllama.engine.capabilities import Capabilities, describe

_DATA = Path(__file__).parent / "data" / "llama-server-options.json"
_FILLER = "some words about what this option is good for and which values it takes, wrapped at 70"
_LEVELS = (" - 3: info", " - 4: trace (more info)", " - 5: debug")
MAINLINE = ("p0.3.9 p0.3.16 p0.3.19 p0.3.22 b9113 b9246 b9464 b9611 b10289 b10878 b11434").split()


@cache
def data() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(_DATA.read_text())
    return loaded


def options(build: str) -> list[tuple[tuple[str, ...], str, bool]]:
    """(names, hint, removed) of every option. The data has no hint for -m, whose source
    computes it; every build prints FNAME."""
    return [
        (
            tuple(o["names"]),
            "FNAME" if "-m" in o["names"] else o.get("hint", ""),
            bool(o.get("removed")),
        )
        for o in data()[build]["options"]
    ]


def render(build: str) -> str:
    """The whole --help text of `build`."""
    defaults = data()[build]["defaults"]
    lines = ["----- common params -----", ""]
    envs = [o.get("env") for o in data()[build]["options"]]
    for (names, hint, removed), env in zip(options(build), envs, strict=True):
        default = next((defaults[n] for n in names if n in defaults), None)
        body = _LEVELS if "-lv" in names and _has_levels(build) else ()
        lines += _option(list(names), hint, removed, default, env)
        lines += (" " * 40 + line for line in body)
    if build == "ik_llama":  # its data lists the speculative options only
        lines += _option(["-m", "--model"], "FNAME", False, None, None)
        for more, hint in (
            (["-c", "--ctx-size"], "N"),
            (["--host"], "HOST"),
            (["--port"], "PORT"),
        ):
            lines += _option(more, hint, False, None, None)
    return "\n".join(lines) + "\n"


def _has_levels(build: str) -> bool:
    """From PR 23278 on; the trees in the data that are older list others."""
    return build.startswith("b") and int(build[1:]) >= 9246


def version(build: str) -> str:
    """--version as that build prints it; the sdist trees have no number."""
    if not build.startswith("b"):
        return "version: 0 (unknown)\nbuilt with cc for x86_64-linux-gnu\n"
    number = int(build[1:])
    if number <= 10380:
        return f"version: {number} (b0df4c0cf)\nbuilt with cc for x86_64-linux-gnu\n"
    return f"version: 0.6.0-dev (build {number}, commit 037f2f344)\nbuilt with GNU 12\n"


def capabilities(build: str) -> Capabilities:
    return describe(version(build), render(build))


def _option(
    names: list[str], hint: str, removed: bool, default: object, env: str | None
) -> list[str]:
    head = names[0]
    if len(names) > 1:
        head = f"{names[0]}, ".ljust(7) + ", ".join(names[1:])
    if hint:
        head += f" {hint}"
    if removed:
        text = "the argument has been removed. use --something-else"
    else:
        text = _FILLER if default is None else f"{_FILLER} (default: {default})"
    body = textwrap.wrap(text, 70)
    if env:
        body.append(f"(env: {env})")
    if len(head) > 37:
        return [head, *(" " * 40 + line for line in body)]
    return [head.ljust(40) + body[0], *(" " * 40 + line for line in body[1:])]
