"""Renders a help text in llama.cpp's layout from tests/data/llama-server-options.json.

The data holds names, hints and defaults of eleven builds; the filler stands where
llama.cpp's own wording is. Layout: common/arg.cpp, common_arg::to_string. "ik_llama" is
ik_llama.cpp's, from tests/data/ik-llama-options.json, in its own layout.
"""

from __future__ import annotations

import json
import textwrap
from functools import cache
from pathlib import Path
from typing import Any

from specllama.engine.capabilities import Capabilities, describe

_DATA = Path(__file__).parent / "data" / "llama-server-options.json"
_IK_DATA = _DATA.with_name("ik-llama-options.json")
_FILLER = "some words about what this option is good for and which values it takes, wrapped at 70"
_LEVELS = (" - 3: info", " - 4: trace (more info)", " - 5: debug")
MAINLINE = ("p0.3.9 p0.3.16 p0.3.19 p0.3.22 b9113 b9246 b9464 b9611 b10289 b10878 b11434").split()


@cache
def data() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(_DATA.read_text())
    return loaded


@cache
def ik_data() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(_IK_DATA.read_text())
    return loaded


def options(build: str) -> list[tuple[tuple[str, ...], str, bool]]:
    """(names, hint, removed) of every option. The data has no hint for -m, whose source
    computes it; every build prints FNAME."""
    if build == "ik_llama":
        return [_ik_read(o) for o in ik_data()["options"]]
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
    if build == "ik_llama":
        return _ik_help()
    defaults = data()[build]["defaults"]
    lines = ["----- common params -----", ""]
    envs = [o.get("env") for o in data()[build]["options"]]
    for (names, hint, removed), env in zip(options(build), envs, strict=True):
        default = next((defaults[n] for n in names if n in defaults), None)
        body = _LEVELS if "-lv" in names and _has_levels(build) else ()
        lines += _option(list(names), hint, removed, default, env)
        lines += (" " * 40 + line for line in body)
    return "\n".join(lines) + "\n"


def _has_levels(build: str) -> bool:
    """From PR 23278 on; the trees in the data that are older list others."""
    return build.startswith("b") and int(build[1:]) >= 9246


def version(build: str) -> str:
    """--version as that build prints it; the sdist trees have no number, nor has ik_llama."""
    if not build.startswith("b"):
        return "version: 0 (unknown)\nbuilt with cc for x86_64-linux-gnu\n"
    number = int(build[1:])
    if number <= 10380:
        return f"version: {number} (b0df4c0cf)\nbuilt with cc for x86_64-linux-gnu\n"
    return f"version: 0.6.0-dev (build {number}, commit 037f2f344)\nbuilt with GNU 12\n"


def _ik_read(option: dict[str, Any]) -> tuple[tuple[str, ...], str, bool]:
    """The data keeps the second name of `-crs N, --cache-ram-similarity N` in the hint."""
    hint, *more = option["hint"].split(", --")
    return (*option["names"], *(f"--{m.split()[0]}" for m in more)), hint, False


def _ik_help() -> str:
    """Layout: ik_llama.cpp, common/common.cpp, gpt_params_print_usage: `"  %-32s"` for the head,
    and a line of its own for one of more than 30."""
    lines = ["usage: ./llama-server [options]", "", "general:", ""]
    for o in ik_data()["options"]:
        first, *others = o["names"]
        head = f"{first}, ".ljust(7) + ", ".join(others) if others else first
        head = f"{' ' * (o['indent'] - 2)}{head} {o['hint']}".rstrip()
        text = _FILLER if o["default"] is None else f"{_FILLER}\n(default: {o['default']})"
        if first == "--host":
            lines += ["", "server:", ""]
        own = len(head) > 30
        lines += [f"  {head:32}"] if own else []
        first_line, *rest = text.split("\n")
        lines.append(" " * 34 + first_line if own else f"  {head:32}{first_line}")
        lines += [" " * 34 + line for line in rest]
    return "\n".join(lines) + "\n"


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
