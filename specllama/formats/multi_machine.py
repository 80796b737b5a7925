"""When one machine is not enough: llama.cpp over RPC, or an engine for many users."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from specllama.errors import UsageError

if TYPE_CHECKING:
    from specllama.planning.plan import Plan

_MANY = 8  # concurrent requests from which a batching engine is worth the effort
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.%\w]+\]|[^\s:,\[\]]+):(\d{1,5})")


def rpc_arguments(addresses: str | None) -> tuple[str, ...]:
    """llama-server's arguments for `--rpc HOST:PORT[,…]`. Raises UsageError for an invalid address."""
    if addresses is None:
        return ()
    for word in addresses.split(","):
        m = _ADDRESS.fullmatch(word)
        if m is None or not 0 < int(m[2]) < 2**16:
            raise UsageError(
                f"--rpc {word.strip() or addresses}: invalid address",
                "Use HOST:PORT of a ggml-rpc-server; separate several by commas.",
            )
    return ("--rpc", addresses)


def advice(plan: Plan) -> tuple[str, ...]:
    """Advice on several machines, one line each."""
    return (*_larger(plan), *_many(plan))


def _many(plan: Plan) -> tuple[str, ...]:
    if plan.settings.parallel < _MANY:
        return ()
    from specllama.formats.engine_config import concurrency

    return (
        f"many     concurrent requests ({plan.settings.parallel}): vLLM and SGLang batch them: --format "
        "vllm-kubernetes (or -compose) --nodes N --gpus N",
        f"         the more requests, the smaller the speed-up: {concurrency()}",
    )


def _larger(plan: Plan) -> tuple[str, ...]:
    from specllama.memory.decide import TOO_BIG

    if plan.user.values("--rpc"):
        return (
            "rpc      start `ggml-rpc-server -H ADDRESS -p PORT` of the same build on each machine "
            "before the server; traffic is not encrypted: use a private network only",
        )
    if plan.budget is None or plan.budget.chosen.verdict.kind != TOO_BIG:
        return ()
    return (
        "larger   than this machine: run llama.cpp's ggml-rpc-server on other machines and add "
        "`--rpc HOST:PORT,HOST:PORT`, so that their devices are used too",
        "         or, for many users and on machines with GPUs, vLLM or SGLang: --format "
        "vllm-kubernetes (or -compose) --nodes N --gpus N",
    )
