"""Settings of a server, independent of any build's option names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

MAX_CONTEXT = 2**28  # tokens; no model is trained on a tenth of it
MAX_DRAFT_TOKENS = 512  # tokens per draft; llama.cpp's longest default is 64


@dataclass(frozen=True)
class NgramSizes:
    """n-gram lengths in tokens: `n` looked up, `m` drafted."""

    n: int
    m: int
    min_hits: int = 1

    @property
    def mod_min(self) -> int:
        """ngram-mod discards shorter drafts; its default of 48 leaves almost none."""
        return max(1, self.m // 4)


@dataclass(frozen=True)
class Speculation:
    """How to draft. `methods`: mainline llama.cpp's --spec-type names; `n_max` = K.
    `cache_type`: of the draft's KV cache, None = llama.cpp's default (f16)."""

    methods: tuple[str, ...]
    draft: Path | None = None
    n_max: int = 3
    n_min: int = 0
    p_min: float = 0.0
    draft_layers: str | None = None
    cache_type: str | None = None
    ngram: NgramSizes | None = None

    @property
    def uses_draft(self) -> bool:
        return any(m.startswith("draft-") for m in self.methods)

    @property
    def uses_ngram(self) -> bool:
        return any(m.startswith("ngram-") for m in self.methods)


@dataclass(frozen=True)
class Settings:
    """One server. `context` in tokens for all slots together, 0 = the model's own.
    `fit_target`: MiB that llama.cpp's --fit leaves free on each GPU, () = its default.
    `cache_ram`: limit of its prompt cache in MiB, None = its default. `scheme`, `prefix`: of
    its URLs. `api_key` is sent with our own requests and never enters argv. `trace`: log timings
    and memory, if the build has a level for that."""

    model: Path
    host: str
    port: int
    context: int = 0
    parallel: int = 1
    speculation: Speculation | None = None
    fit_target: tuple[int, ...] = ()
    cache_ram: int | None = None
    scheme: str = "http"
    prefix: str = ""
    api_key: str | None = None
    trace: bool = False

    @property
    def address(self) -> str:
        """HOST:PORT of the server, as seen from this machine."""
        host = "127.0.0.1" if self.host in ("0.0.0.0", "") else self.host
        host = "[::1]" if host == "::" else f"[{host}]" if ":" in host else host
        return f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """The server's URL, as seen from this machine."""
        return f"{self.scheme}://{self.address}{self.prefix}"
