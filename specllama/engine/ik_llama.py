"""ik_llama.cpp's dialect of the speculation options (8337e4cd3, August 2026).

One `--spec-type TYPE:key=value,…` per stage; a draft model is still `-md`. It
rejects -mtp, --draft-*, --spec-ngram-* on the command line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from specllama.engine.settings import Speculation

if TYPE_CHECKING:
    from specllama.engine.capabilities import Capabilities

_TYPES = {
    "draft-simple": "draft",
    "draft-mtp": "mtp",
    "draft-dflash": "dflash",
    "draft-dspark": "dspark",
}


def unsupported(caps: Capabilities, method: str) -> str:
    """Why ik_llama.cpp cannot run `method`; "" when it can."""
    name = _TYPES.get(method, method)
    return "" if name in caps.spec_types else f"ik_llama.cpp has no equivalent of {method}"


def flags(caps: Capabilities, spec: Speculation) -> list[list[str]]:
    """One --spec-type per method, and the draft with the options this build has for it."""
    out = stages(spec)
    if spec.draft is not None:
        out.append(["-md", str(spec.draft)])
        if spec.draft_layers is not None and caps.find("-ngld"):  # CPU builds lack it
            out.append(["-ngld", spec.draft_layers])
    if spec.cache_type is not None:
        out += [[name, spec.cache_type] for name in ("-ctkd", "-ctvd") if caps.find(name)]
    return out


def stages(spec: Speculation) -> list[list[str]]:
    """The --spec-type options, n-gram stages first (they cost nothing)."""
    out: list[list[str]] = []
    for method in sorted(spec.methods, key=lambda m: not m.startswith("ngram-")):
        keys: dict[str, float] = {}
        if method.startswith("draft-"):
            keys = {"n_max": spec.n_max, "n_min": spec.n_min, "p_min": spec.p_min}
        elif spec.ngram:
            keys = {"ngram_size_n": spec.ngram.n, "ngram_size_m": spec.ngram.m}
            if method == "ngram-map-k4v":  # the only type that reads it
                keys["ngram_min_hits"] = spec.ngram.min_hits
        joined = ",".join(f"{k}={v:g}" for k, v in keys.items())
        name = _TYPES.get(method, method)
        out.append(["--spec-type", f"{name}:{joined}" if joined else name])
    return out
