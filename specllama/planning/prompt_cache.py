"""llama-server's prompt cache (--cache-ram): up to 8 GiB of RAM that fill up while it serves
(tools/server/server-context.cpp, b11434), limited to what the plan leaves free."""

from __future__ import annotations

import re
from dataclasses import replace

from specllama.engine.capabilities import Capabilities
from specllama.engine.launch_options import LaunchOptions
from specllama.engine.settings import Settings
from specllama.memory.devices import MIB
from specllama.memory.estimate import needed
from specllama.planning.budget import Budget, PromptCache

_OPTION = "--cache-ram"
_SHARE = 0.5  # of the RAM that is left
_STEP = 64  # MiB


def limit_prompt_cache(
    b: Budget, settings: Settings, user: LaunchOptions, caps: Capabilities
) -> tuple[PromptCache | None, Settings]:
    """The cache, and settings that limit it if little RAM is left; None if this build has none. A
    size set by the user is never changed."""
    option = caps.find(_OPTION)
    if option is None:
        return None, settings
    user_value = user.value(_OPTION)
    text = user_value if user_value is not None else option.default or ""
    if not re.fullmatch(r"-?\d{1,9}", text):
        return None, settings
    size = int(text)
    if user_value is not None or size == 0:
        return PromptCache(None if size < 0 else size * MIB), settings
    left = _left(b) // MIB
    if 0 <= size <= left:
        return PromptCache(size * MIB), settings
    size = int(left * _SHARE) // _STEP * _STEP
    message = f"prompt cache limited to {size:,} MiB ({_OPTION}): only {left:,} MiB of RAM are left"
    return PromptCache(size * MIB, message), replace(settings, cache_ram=size)


def _left(b: Budget) -> int:
    """Bytes of RAM that the plan leaves free, less its margin."""
    machine = b.request.machine
    shared = (n for d, n in needed(b.lines).items() if (x := machine.device(d)) and x.shared)
    return max(0, machine.ram.usable - sum(shared))
