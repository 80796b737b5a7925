"""Which of a server's models to use: a loaded text model. Pure.

A router, a swapping proxy or a desktop program lists the models it can load, and loads any that
is requested. specllama never loads one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from specllama.tuning.errors import TuningError

# Endpoints that list loaded models: llama-swap, Ollama, LM Studio.
LOADED_LISTS = ("/running", "/api/ps", "/api/v0/models")
_ENGINES = {"llamacpp", "vllm", "sglang", "tensorrt_llm"}  # all models they list are loaded
# A guess, used for ranking only.
_NO_TEXT = re.compile(r"embed|rerank|\bbge\b|whisper|\btts\b", re.IGNORECASE)
_NO_TEXT_OPTIONS = {"--embedding", "--embeddings", "--rerank", "--reranking"}
_MAX_LISTED = 5


@dataclass(frozen=True)
class ListedModel:
    """One model of /v1/models. `loaded`, `writes` (text rather than vectors): None = unknown.
    `routed`: llama.cpp's router lists it, which needs the model's name in every request."""

    name: str
    aliases: tuple[str, ...] = ()
    loaded: bool | None = None
    writes: bool | None = None
    routed: bool = False


def listed_models(response: Any) -> tuple[ListedModel, ...]:
    """The models of a /v1/models response; () for any other response."""
    data = response.get("data") if isinstance(response, dict) else None
    if not isinstance(data, list):
        return ()
    return tuple(_model(m) for m in data if isinstance(m, dict) and isinstance(m.get("id"), str))


def loaded_elsewhere(path: str, response: Any) -> Mapping[str, bool | None] | None:
    """Loaded model → whether it writes text (None = unknown), from the response of llama-swap
    (/running), Ollama (/api/ps) or LM Studio (/api/v0/models). None for any other response."""
    if not isinstance(response, dict):
        return None
    field = {"/running": "running", "/api/ps": "models", "/api/v0/models": "data"}[path]
    entries = response.get(field)
    if not isinstance(entries, list):
        return None
    return dict(_loaded(path, [e for e in entries if isinstance(e, dict)]))


def _loaded(path: str, entries: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, bool | None]]:
    for entry in entries:
        name = entry.get("id") if path == "/api/v0/models" else entry.get("model")
        ready = entry.get("state", "loaded") in ("loaded", "ready")
        if isinstance(name, str) and ready:
            kind = entry.get("type")
            yield name, kind != "embeddings" if isinstance(kind, str) else None


def with_loaded(
    models: Sequence[ListedModel], loaded: Mapping[str, bool | None]
) -> tuple[ListedModel, ...]:
    """The models with their load state."""
    return tuple(
        replace(m, loaded=m.name in loaded, writes=loaded.get(m.name, m.writes)) for m in models
    )


def model_to_ask(url: str, models: Sequence[ListedModel], name: str | None) -> ListedModel:
    """The model to use: `name`, else the first loaded text model.

    Raises TuningError if none is loaded, or it is unknown which is.
    """
    if name is not None:
        return _named(url, models, name)
    ready = [m for m in models if m.loaded and m.writes is not False]
    if ready:
        return min(ready, key=lambda m: bool(_NO_TEXT.search(m.name)))
    unknown = [m for m in models if m.loaded is None]
    if len(unknown) == 1 and len(models) == 1:
        return unknown[0]
    if unknown:
        raise TuningError(
            f"{url} lists {len(models)} models and does not say which are loaded",
            f"Select one with --model: {_names(models)}.",
        )
    if any(m.loaded for m in models):
        raise TuningError(f"{url}: the loaded models do not generate text ({_names(models)})")
    raise TuningError(
        f"{url} has no model loaded (it lists {_names(models)})",
        "Load one there first: specllama does not load models on other servers.",
    )


def _named(url: str, models: Sequence[ListedModel], name: str) -> ListedModel:
    found = next((m for m in models if name in (m.name, *m.aliases)), None)
    if found is None:
        raise TuningError(f"{url} lists no model {name}", f"It lists {_names(models)}.")
    if found.loaded is False:
        raise TuningError(
            f"{name} is not loaded at {url}",
            "Load it there first: specllama does not load models on other servers.",
        )
    return found


def _model(data: Mapping[str, Any]) -> ListedModel:
    name = str(data["id"])
    aliases = data.get("aliases")
    state = data.get("status")
    value = state.get("value") if isinstance(state, dict) else None
    engine = data.get("owned_by") in _ENGINES
    loaded = value == "loaded" if isinstance(value, str) else True if engine else None
    return ListedModel(
        name=name,
        aliases=tuple(str(a) for a in aliases) if isinstance(aliases, list) else (),
        loaded=loaded,
        writes=False if _embeds(state) else None,
        routed=isinstance(value, str),
    )


def _embeds(state: Any) -> bool:
    """Whether the router starts the model as an embedder."""
    args = state.get("args") if isinstance(state, dict) else None
    words: Collection[Any] = args if isinstance(args, list) else ()
    return any(w in _NO_TEXT_OPTIONS for w in words if isinstance(w, str))


def _names(models: Sequence[ListedModel]) -> str:
    more = len(models) - _MAX_LISTED
    names = ", ".join(m.name for m in models[:_MAX_LISTED])
    return f"{names} and {more} more" if more > 0 else names
