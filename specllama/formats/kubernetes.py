"""A Kubernetes manifest: a Deployment and its Service (checked against 1.37)."""

from __future__ import annotations

from typing import Any

from specllama.formats import server
from specllama.formats.base import Decision, WrittenFiles, commented, yaml_text
from specllama.formats.containers import PORT, Container, container

# Vendor → resource name of its device plugin. Others have no standard one.
_GPUS = {"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu", "intel": "gpu.intel.com/i915"}
_PERIOD_S = 10


def write(decision: Decision) -> WrittenFiles:
    """One pod, its models on a volume of the cluster."""
    c = container(decision)
    name = decision.name
    secret = f"{name}-api-key"
    where = [f"{here} to {inside}" for here, inside in c.folders.items()]
    notes = (
        "kubectl apply -f FILE",
        f"copy {', '.join(where)} on the PersistentVolumeClaim `models`",
        *(
            (f"kubectl create secret generic {secret} --from-literal=api-key=…",)
            if c.key
            else ("no API key: every pod in the cluster can use it",)
        ),
        *c.notes,
    )
    docs = (_deployment(decision, c, secret), service(name))
    text = commented((*decision.comments, *notes)) + "---\n".join(yaml_text(d) for d in docs)
    return WrittenFiles(text, notes)


def _deployment(decision: Decision, c: Container, secret: str) -> dict[str, Any]:
    name, labels = decision.name, {"app.kubernetes.io/name": decision.name}
    ref = {"name": secret, "key": "api-key"}
    settings = decision.plan.settings
    get = {"path": f"{settings.prefix}/health", "port": "http", "scheme": settings.scheme.upper()}
    health: dict[str, Any] = {"httpGet": get, "periodSeconds": _PERIOD_S}
    gpu = _GPUS.get(c.vendor)
    inside: dict[str, Any] = {
        "name": "llama-server",
        "image": c.image,
        "args": [_literal(a) for a in c.args],
        **(
            {"env": [{"name": "LLAMA_API_KEY", "valueFrom": {"secretKeyRef": ref}}]}
            if c.key
            else {}
        ),
        "ports": [{"name": "http", "containerPort": PORT}],
        **({"resources": {"limits": {gpu: "1"}}} if gpu else {}),
        # /health is 503 while the model loads
        "startupProbe": {**health, "failureThreshold": server.loading_s(decision) // _PERIOD_S},
        "readinessProbe": health,
        "livenessProbe": {**health, "failureThreshold": 6},
        "volumeMounts": [{"name": "models", "mountPath": "/models", "readOnly": True}],
    }
    claim = {"claimName": "models", "readOnly": True}
    pod: dict[str, Any] = {
        "terminationGracePeriodSeconds": 30,
        "containers": [inside],
        "volumes": [{"name": "models", "persistentVolumeClaim": claim}],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "replicas": 1,
            "strategy": {"type": "Recreate"},  # a second pod would wait for the GPU
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


def service(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {
            "selector": {"app.kubernetes.io/name": name},
            "ports": [{"name": "http", "port": 80, "targetPort": "http"}],
        },
    }


def _literal(text: str) -> str:
    """Escaped: $(NAME) is a variable in Kubernetes, $$ is $."""
    return text.replace("$", "$$")
