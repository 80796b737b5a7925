"""The output of probe --url."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from specllama.cli.tuning_lines import interval_data, interval_text
from specllama.cli.watch_lines import position_line

if TYPE_CHECKING:
    from specllama.tuning.confidence import Interval
    from specllama.watching.attach import ServerMeasurement


def attached_lines(url: str, a: ServerMeasurement, gain: Interval | None) -> Iterator[str]:
    """One server's measurement."""
    yield f"server   {url}: {a.engine}, {a.model}"
    yield f"speed    {a.tokens_per_second:.1f} tok/s, first token after {a.first_ms:.0f} ms"
    if a.alpha is not None or a.tau is not None:
        alpha = f"α={a.alpha:.2f}" if a.alpha is not None else "α unknown"
        tau = f", τ={a.tau:.2f} tokens per verify step" if a.tau is not None else ""
        of = " (these responses only)" if a.by_response else ""
        yield f"accepted {alpha}{tau}{of}"
    if a.acceptance:
        yield position_line(a.acceptance)
    for text in a.missing:
        yield f"note     {text}"
    if gain is not None:
        yield f"speed-up {interval_text(gain)} compared with the baseline"


def attached_data(url: str, a: ServerMeasurement, gain: Interval | None) -> dict[str, Any]:
    return {
        "url": url,
        "engine": a.engine,
        "model": a.model,
        "alpha": a.alpha,
        "tau": a.tau,
        "acceptance_by_position": list(a.acceptance),
        "tokens_per_second": a.tokens_per_second,
        "first_token_ms": a.first_ms,
        "of_these_responses_alone": a.by_response,
        "responses": len(a.ms_per_token),
        "missing": list(a.missing),
        "speedup": interval_data(gain),
    }
