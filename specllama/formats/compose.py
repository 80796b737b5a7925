"""A compose file (the Compose Specification), for docker and podman."""

from __future__ import annotations

from typing import Any

from specllama.formats import server
from specllama.formats.base import Decision, WrittenFiles, commented, yaml_text
from specllama.formats.containers import PORT, Container, container, published


def write(decision: Decision) -> WrittenFiles:
    """One service."""
    c = container(decision)
    settings = decision.plan.settings
    host = published(settings.host)
    address = f"{settings.scheme}://localhost:{PORT}{settings.prefix}"
    service: dict[str, Any] = {
        "image": c.image,
        "command": [_literal(a) for a in c.args],
        **({"environment": {"LLAMA_API_KEY": "${LLAMA_API_KEY:?set it}"}} if c.key else {}),
        "ports": [f"{host}:{settings.port}:{PORT}"],
        "volumes": [
            {"type": "bind", "source": _literal(here), "target": inside, "read_only": True}
            for here, inside in c.folders.items()
        ],
        "restart": "unless-stopped",
        "stop_grace_period": "30s",
        "healthcheck": {
            "test": ["CMD", "curl", "-fsSk", _literal(f"{address}/health")],
            "interval": "10s",
            "timeout": "5s",
            "retries": 3,
            "start_period": f"{server.loading_s(decision)}s",
        },
        **_gpu(c),
    }
    key = ("set LLAMA_API_KEY in the environment or in a .env file: compose passes it on",)
    notes = ("docker compose -f FILE up", *(key if c.key else ()), *c.notes)
    text = commented((*decision.comments, *notes)) + yaml_text(
        {"services": {decision.name: service}}
    )
    return WrittenFiles(text, notes)


def _literal(text: str) -> str:
    """Escaped: $ begins a variable in compose files."""
    return text.replace("$", "$$")


def _gpu(c: Container) -> dict[str, Any]:
    if c.vendor == "nvidia":
        device = {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
        return {"deploy": {"resources": {"reservations": {"devices": [device]}}}}
    if c.vendor == "amd":
        return {"devices": ["/dev/kfd", "/dev/dri"], "group_add": ["video", "render"]}
    return {"devices": ["/dev/dri"], "group_add": ["video", "render"]} if c.vendor else {}
