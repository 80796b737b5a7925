"""Reads a running server's counters or, if it has none, its slots. Sends nothing to its model, and
reads no prompts or completions.

`/metrics` neither wakes a sleeping server (llama-server --sleep-idle-seconds) nor keeps it awake;
`/slots` does both (server-queue.cpp, server-context.cpp, b11434). So slots are read only if that
is allowed, or there is nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import httpx

from specllama.errors import SpecllamaError, UsageError
from specllama.watching.address import client, get, refused
from specllama.watching.counters import NOTHING, Gauges, Slot, Snapshot
from specllama.watching.engines import ENGINES, LLAMA_CPP
from specllama.watching.errors import WatchingError
from specllama.watching.prometheus_text import parse_snapshot
from specllama.watching.served_models import listed_models

_TIMEOUT_S = 5.0
_MAX_LISTED = 5
_AWAKE = ("loaded", "sleeping")  # a router's models that /metrics?model= does not wake


class ServerUnreachable(WatchingError):
    """The server does not respond now; it may later."""


class RouterIdle(WatchingError):
    """A router without a loaded model; watching never loads one."""


@dataclass(frozen=True)
class _Endpoint:
    """What to read: the path of the metrics ("" = slots only), and a router's model."""

    path: str
    model: str = ""


class CounterReader:
    """Reads one server. `model`: one of those it serves; `slots`: read them too, which
    keeps a server awake; `own`: a server we started. Raises UsageError for an invalid URL."""

    def __init__(
        self,
        url: str,
        api_key: str | None = None,
        model: str = "",
        slots: bool = False,
        own: bool = False,
    ) -> None:
        self.url, self._http = client(url, api_key, _TIMEOUT_S, own)
        self._model, self._slots = model, slots
        self._where: _Endpoint | None = None
        self._router: bool | None = None

    def close(self) -> None:
        self._http.close()

    def read(self) -> Snapshot:
        """A snapshot. Raises ServerUnreachable if the server does not respond, RouterIdle for a
        router without a loaded model, WatchingError if the server cannot be watched."""
        model = self._loaded()
        if self._where is None or self._where.model != model:
            self._where = self._find(model)
        found = self._metrics(self._where) if self._where.path else None
        if found is None and self._where.path:  # another server may be there now
            self._where = self._find(model)
            found = self._metrics(self._where) if self._where.path else None
        if found is not None and not self._slots:
            return found
        slots = self._read_slots(model)
        if found is not None:
            return replace(found, slots=slots or ())
        if slots is None:
            raise WatchingError(
                f"{self.url} has neither known metrics nor slots",
                "Start llama-server with --metrics, SGLang with --enable-metrics.",
            )
        missing = ("no /metrics: acceptance is unknown (start the server with --metrics)",)
        return Snapshot(LLAMA_CPP, time.monotonic(), NOTHING, _busy(slots), slots, missing=missing)

    def idle(self) -> bool:
        """Whether the server is known to be idle. Never raises."""
        try:
            return self.read().idle
        except SpecllamaError:
            return False

    @property
    def model(self) -> str:
        """The router's model that is read, else the requested one."""
        return self._where.model if self._where and self._where.model else self._model

    def _find(self, model: str) -> _Endpoint:
        for path in dict.fromkeys(n.path for n in ENGINES.values()):
            if self._metrics(_Endpoint(path, model)) is not None:
                return _Endpoint(path, model)
        return _Endpoint("", model)

    def _metrics(self, where: _Endpoint) -> Snapshot | None:
        response = self._get(where.path, where.model)
        if response.status_code != 200:
            return None
        found = parse_snapshot(response.text, time.monotonic(), self._model)
        if found is None:
            return None
        started = response.headers.get("Process-Start-Time-Unix", "")
        return replace(found, started=_number(started), missing=_missing(found))

    def _read_slots(self, model: str) -> tuple[Slot, ...] | None:
        response = self._get("/slots", model)
        if response.status_code != 200:
            return None
        try:
            data = response.json()
        except (ValueError, RecursionError):
            return None
        return _slots(data) if isinstance(data, list) else None

    def _loaded(self) -> str:
        """A router's loaded model, "" for any other server. Raises RouterIdle if none is loaded,
        or not the requested one."""
        if self._router is False:
            return ""
        models = self._models()
        if models is not None:
            self._router = bool(models)
            if not models and self._model:
                self._check_model()
        if not models:
            return ""
        candidates = [m for m in models if self._model in ("", m)]
        if not candidates:
            raise self._no_model(sorted(models))
        for name in candidates:
            if models[name] in _AWAKE:
                return name
        state = f"{self._model} is {models[self._model]}" if self._model else "no model is loaded"
        raise RouterIdle(f"{self.url} is a router: {state}, and watching does not load models")

    def _check_model(self) -> None:
        """Raises WatchingError if the server, not a router, lists only other models than the
        requested one."""
        response = self._get("/v1/models")
        try:
            models = listed_models(response.json()) if response.status_code == 200 else ()
        except (ValueError, RecursionError):
            return
        names = {n for m in models for n in (m.name, *m.aliases)}
        if names and self._model not in {*names, *(n.rpartition("/")[2] for n in names)}:
            self._router = None  # another server may be there later
            raise self._no_model([m.name for m in models])

    def _no_model(self, names: Sequence[str]) -> WatchingError:
        known = ", ".join(names[:_MAX_LISTED]) + (" …" if len(names) > _MAX_LISTED else "")
        return WatchingError(f"{self.url} has no model {self._model}", f"Models: {known}")

    def _models(self) -> Mapping[str, str] | None:
        """A router's models with their status; {} for any other server, None if unknown for now
        (a proxy's 502)."""
        response = self._get("/models")
        if response.status_code >= 500:
            return None
        try:
            data = response.json()["data"] if response.status_code == 200 else []
            entries = [m for m in data if isinstance(m, dict) and isinstance(m.get("status"), dict)]
            return {str(m["id"]): str(m["status"].get("value", "")) for m in entries}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return {}

    def _get(self, path: str, model: str = "") -> httpx.Response:
        # autoload=false: if the model was just unloaded, the router would load it again
        query = {"model": model, "autoload": "false"} if model else None
        try:
            response = get(self._http, path, query, _TIMEOUT_S)
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as e:  # ValueError: IDNA
            raise ServerUnreachable(
                f"no response from {self.url} ({str(e) or type(e).__name__})",
                "Is the server running, and is the address correct?",
            ) from None
        if response.status_code in (401, 403):
            raise UsageError(*refused(self.url, self._http))
        if response.status_code == 503:  # llama-server while it loads its model
            raise ServerUnreachable(f"{self.url} is loading its model")
        return response


def _missing(found: Snapshot) -> tuple[str, ...]:
    counts, gauges = found.counts, found.gauges
    if counts.drafted is None and gauges.alpha is None and gauges.tau is None:
        if found.engine == LLAMA_CPP:
            since = "llama.cpp does since b10289"
            return (f"this build does not count drafted tokens ({since}): α is unknown",)
        return (f"{found.engine} counts no drafted tokens: speculation is off",)
    return ()


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _slots(data: Sequence[Any]) -> tuple[Slot, ...]:
    return tuple(_slot(i, s) for i, s in enumerate(data) if isinstance(s, dict))


def _slot(number: int, data: Mapping[str, Any]) -> Slot:
    """0 tokens if a build has no `n_decoded` in next_token (an object before about b6000, a list
    since)."""
    speculative = data.get("speculative")
    token = data.get("next_token")
    token = token[0] if isinstance(token, list) and token else token
    decoded = token.get("n_decoded") if isinstance(token, dict) else data.get("n_decoded")
    cached, task = data.get("n_prompt_tokens"), data.get("id_task")
    return Slot(
        id=number,
        busy=data.get("is_processing") is True,
        decoded=decoded if isinstance(decoded, int) else 0,
        task=task if isinstance(task, int) else None,
        speculative=speculative if isinstance(speculative, bool) else None,
        cached=cached if isinstance(cached, int) else 0,
    )


def _busy(slots: Sequence[Slot]) -> Gauges:
    return Gauges(busy=sum(s.busy for s in slots))
