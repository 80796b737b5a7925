"""When one machine is not enough: llama.cpp's own way over several, and the engines for many
users."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from specllama.errors import UsageError

if TYPE_CHECKING:
    from specllama.planning.plan import Plan

_MANY = 8  # requests at once: from here on engines that batch them are worth their trouble
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.%\w]+\]|[^\s:,\[\]]+):(\d{1,5})")


def rpc_arguments(addresses: str | None) -> tuple[str, ...]:
    """llama-server's arguments for `--rpc HOST:PORT[,…]`. Raises UsageError for what is none."""
    if addresses is None:
        return ()
    for word in addresses.split(","):
        m = _ADDRESS.fullmatch(word)
        if m is None or not 0 < int(m[2]) < 2**16:
            raise UsageError(
                f"--rpc: {word.strip() or 'nothing'} is not an address",
                "Write HOST:PORT, several by comma; each is a ggml-rpc-server.",
            )
    return ("--rpc", addresses)


def advice(plan: Plan) -> tuple[str, ...]:
    """What to know of several machines, one line each."""
    return (*_larger(plan), *_many(plan))


def _many(plan: Plan) -> tuple[str, ...]:
    if plan.settings.parallel < _MANY:
        return ()
    from specllama.formats.engine_config import concurrency

    return (
        f"many     requests at once ({plan.settings.parallel}): vLLM and SGLang batch them, --format "
        "vllm-kubernetes (or -compose) --nodes N --gpus N",
        f"         speculation gains less the more there are: {concurrency()}",
    )


def _larger(plan: Plan) -> tuple[str, ...]:
    from specllama.memory.decide import TOO_BIG

    if plan.user.values("--rpc"):
        return (
            "rpc      start `ggml-rpc-server -H ADDRESS -p PORT` of the same build on each machine "
            "before the server; what they send is not encrypted: in a private network only",
        )
    if plan.budget is None or plan.budget.chosen.verdict.kind != TOO_BIG:
        return ()
    return (
        "larger   than this machine: run llama.cpp's ggml-rpc-server on others, and give plan "
        "`--rpc HOST:PORT,HOST:PORT`: their devices count then",
        "         or, with GPUs there and for many users, vLLM or SGLang: --format vllm-kubernetes "
        "(or -compose) --nodes N --gpus N",
    )
