"""vLLM and SGLang in containers, on one machine or several: compose files and Kubernetes manifests.

vLLM's image starts `vllm serve` (docker/Dockerfile of 0.33.0), so it needs only arguments;
SGLang's has no entrypoint. On several machines Kubernetes needs the LeaderWorkerSet controller: see
vLLM's docs/deployment/frameworks/lws.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from specllama.formats import kubernetes, server, sglang, vllm
from specllama.formats.base import Decision, WrittenFiles, commented, yaml_text
from specllama.formats.containers import published
from specllama.formats.engine_config import UNENCRYPTED, record

_CACHE = "/root/.cache/huggingface"
_RENDEZVOUS = 20000
# The download and the loading come before the first response.
_PERIOD_S, _DOWNLOADING_S = 10, 1800


@dataclass(frozen=True)
class ClusterEngine:
    """One engine as a container. `args` without address; `rank`: its arguments for machine {n}, with
    the first one at {first}; `other`: more arguments for all but the first."""

    name: str
    port: int
    key: str
    args: tuple[str, ...]
    rank: tuple[str, ...]
    other: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def image(self) -> str:
        return str(record(self.name)["image"])

    def server_args(self, host: str, port: int, key: str = "") -> list[str]:
        """All arguments of a server at this address. `key`: how the API key is written."""
        words = [*self.args, "--host", host, "--port", str(port)]
        return [*words, "--api-key", key] if key and self.name == "sglang" else words

    def rank_args(self, number: str, first: str) -> list[str]:
        """The arguments with a machine's rank."""
        return [w.format(n=number, first=first, port=_RENDEZVOUS) for w in self.rank]


def vllm_compose(decision: Decision) -> WrittenFiles:
    """vLLM by compose."""
    return _compose(decision, _vllm(decision))


def sglang_compose(decision: Decision) -> WrittenFiles:
    """SGLang by compose."""
    return _compose(decision, _sglang(decision))


def vllm_kubernetes(decision: Decision) -> WrittenFiles:
    """vLLM in Kubernetes."""
    return _kubernetes(decision, _vllm(decision))


def sglang_kubernetes(decision: Decision) -> WrittenFiles:
    """SGLang in Kubernetes."""
    return _kubernetes(decision, _sglang(decision))


def _vllm(decision: Decision) -> ClusterEngine:
    config, notes = vllm.configured(decision)
    model = str(config.pop("model"))
    rank = ("--node-rank", "{n}", "--master-addr", "{first}")
    args = (model, *_flags(config))
    return ClusterEngine("vllm", 8000, "VLLM_API_KEY", args, rank, ("--headless",), notes)


def _sglang(decision: Decision) -> ClusterEngine:
    config, notes = sglang.configured(decision)
    rank = ("--node-rank", "{n}", "--dist-init-addr", "{first}:{port}")
    args = ("sglang", "serve", *_flags(config))
    return ClusterEngine("sglang", 30000, "SGLANG_API_KEY", args, rank, (), notes)


def _flags(config: Mapping[str, Any]) -> list[str]:
    """A configuration as arguments, without the address."""
    out: list[str] = []
    for key, value in config.items():
        if key in ("host", "port"):
            continue
        text = json.dumps(value, separators=(",", ":")) if isinstance(value, dict) else str(value)
        out += [f"--{key}"] if value is True else [f"--{key}", text]
    return out


def _compose(decision: Decision, e: ClusterEngine) -> WrittenFiles:
    """One service; for several machines two, of which each machine runs one, by profile."""
    nodes, settings = decision.deployment.nodes, decision.plan.settings
    key = "${" + e.key + ":?set it}" if settings.api_key else ""
    one = _service(decision, e, key)
    if nodes == 1:
        inside = {
            "command": e.server_args("0.0.0.0", e.port, key),
            "ports": [_published(decision, e)],
        }
        services = {decision.name: {**one, **inside}}
        notes: tuple[str, ...] = ("docker compose -f FILE up",)
    else:
        first = "${FIRST:?the first machine's address}"
        outside = {**one, "network_mode": "host"}
        serves = e.server_args(settings.host, settings.port, key)
        others = [*e.rank_args("${NODE_RANK:-1}", first), *e.other]
        services = {
            "first": {
                **outside,
                "profiles": ["first"],
                "command": serves + e.rank_args("0", first),
            },
            "other": {**outside, "profiles": ["other"], "command": serves + others},
        }
        services["other"].pop("healthcheck")
        notes = (
            "on the first machine: FIRST=ADDRESS docker compose -f FILE --profile first up",
            f"on the others: FIRST=ADDRESS NODE_RANK=N docker compose -f FILE --profile other up, "
            f"N = 1 to {nodes - 1}",
            UNENCRYPTED,
        )
    notes = (*notes, *e.notes)
    text = commented((*decision.comments, *notes)) + yaml_text({"services": services})
    return WrittenFiles(text, notes)


def _service(decision: Decision, e: ClusterEngine, key: str) -> dict[str, Any]:
    """The common part of a service."""
    gpus = decision.deployment.gpus
    device = {"driver": "nvidia", "count": gpus, "capabilities": ["gpu"]}
    settings = decision.plan.settings  # on several machines it uses the host's network
    here = f"localhost:{e.port}" if decision.deployment.nodes == 1 else settings.address
    ask = f"import urllib.request as r; r.urlopen('http://{here}/health')"
    return {
        "image": e.image,
        "environment": {"HF_TOKEN": "${HF_TOKEN:-}", **({e.key: key} if key else {})},
        "volumes": [f"${{HF_HOME:-~/.cache/huggingface}}:{_CACHE}"],
        "ipc": "host",
        "restart": "unless-stopped",
        "healthcheck": {
            "test": ["CMD", "python3", "-c", ask],
            "interval": "10s",
            "timeout": "5s",
            "retries": 3,
            "start_period": f"{_DOWNLOADING_S + server.loading_s(decision)}s",
        },
        "deploy": {"resources": {"reservations": {"devices": [device]}}},
    }


def _published(decision: Decision, e: ClusterEngine) -> str:
    settings = decision.plan.settings
    host = published(settings.host)
    return f"{host}:{settings.port}:{e.port}"


def _kubernetes(decision: Decision, e: ClusterEngine) -> WrittenFiles:
    """A Deployment on one machine, a LeaderWorkerSet on several, and the Service."""
    name, nodes = decision.name, decision.deployment.nodes
    labels = {"app.kubernetes.io/name": name}
    serves = e.server_args(
        "0.0.0.0", e.port, f"$({e.key})" if decision.plan.settings.api_key else ""
    )
    notes = [
        "kubectl apply -f FILE",
        f"kubectl create secret generic {name} --from-literal=hf-token=…"
        + (" --from-literal=api-key=…" if decision.plan.settings.api_key else ""),
        "the PersistentVolumeClaim `huggingface` stores the downloads"
        + (" (ReadWriteMany: all pods use it)" if nodes > 1 else ""),
    ]
    if nodes == 1:
        head: dict[str, Any] = {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": name, "labels": labels},
            "spec": {
                "replicas": 1,
                "strategy": {"type": "Recreate"},  # a second pod would wait for the GPUs
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": _pod(decision, e, serves)},
            },
        }
    else:
        place = e.rank_args("$(LWS_WORKER_INDEX)", "$(LWS_LEADER_ADDRESS)")
        worker = _pod(decision, e, [*serves, *place, *e.other], answers=False)
        leader = _pod(decision, e, serves + place)
        head = {
            "apiVersion": "leaderworkerset.x-k8s.io/v1",
            "kind": "LeaderWorkerSet",
            "metadata": {"name": name, "labels": labels},
            "spec": {
                "replicas": 1,
                "leaderWorkerTemplate": {
                    "size": nodes,
                    "restartPolicy": "RecreateGroupOnPodRestart",
                    "leaderTemplate": {"metadata": {"labels": labels}, "spec": leader},
                    "workerTemplate": {"spec": worker},
                },
            },
        }
        notes.append("the cluster needs the LeaderWorkerSet controller (lws.sigs.k8s.io)")
    notes += e.notes
    docs = (head, kubernetes.service(name))
    text = commented((*decision.comments, *notes)) + "---\n".join(yaml_text(d) for d in docs)
    return WrittenFiles(text, tuple(notes))


def _pod(
    decision: Decision, e: ClusterEngine, words: list[str], answers: bool = True
) -> dict[str, Any]:
    """One machine's pod. `answers`: it is the one that clients connect to."""
    health: dict[str, Any] = {
        "httpGet": {"path": "/health", "port": "http"},
        "periodSeconds": _PERIOD_S,
    }
    wait = (_DOWNLOADING_S + server.loading_s(decision)) // _PERIOD_S
    probes = {
        "ports": [{"name": "http", "containerPort": e.port}],
        "startupProbe": {**health, "failureThreshold": wait},
        "readinessProbe": health,
        "livenessProbe": {**health, "failureThreshold": 6},
    }
    env = [_secret("HF_TOKEN", decision.name, "hf-token", optional=True)]
    if decision.plan.settings.api_key:
        env.append(_secret(e.key, decision.name, "api-key"))
    start = {"args": words} if e.name == "vllm" else {"command": words}
    inside = {
        "name": e.name,
        "image": e.image,
        **start,
        "env": env,
        **(probes if answers else {}),
        "resources": {"limits": {"nvidia.com/gpu": str(decision.deployment.gpus)}},
        "volumeMounts": [
            {"name": "huggingface", "mountPath": _CACHE},
            {"name": "shm", "mountPath": "/dev/shm"},
        ],
    }
    return {
        "containers": [inside],
        "volumes": [
            {"name": "huggingface", "persistentVolumeClaim": {"claimName": "huggingface"}},
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}},
        ],
    }


def _secret(variable: str, name: str, key: str, optional: bool = False) -> dict[str, Any]:
    ref = {"name": name, "key": key, **({"optional": True} if optional else {})}
    return {"name": variable, "valueFrom": {"secretKeyRef": ref}}
