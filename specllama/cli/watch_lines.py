"""A watched server as lines and JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specllama.watching.watch import ServerView

POSITIONS = 8  # shown one by one


def view_lines(v: ServerView) -> Iterator[str]:
    """One snapshot, to read."""
    from specllama.watching.watch import UP

    name = f"{v.model} at {v.url}" if v.model else v.url
    yield f"watching {name}{f' ({v.engine})' if v.engine else ''}"
    if v.state != UP:
        yield f"{v.state:<8} {v.reason}"
        return
    if v.setting:
        yield f"setting  {v.setting}, workload {v.tuned.workload if v.tuned else ''}"
    yield from (f"{name:<8} {value}" for name, value, _ in figure_rows(v))
    if v.acceptance:
        yield position_line(v.acceptance)
    yield from (f"note     {m}" for m in v.missing)
    if text := conclusion(v):
        yield f"verdict  {text}"


def position_line(acceptance: Sequence[float]) -> str:
    """The acceptance rate of the first positions and of the last."""
    first, more = acceptance[:POSITIONS], len(acceptance) > POSITIONS
    shares = ", ".join(f"a_{i} {a:.2f}" for i, a in enumerate(first, start=1))
    shares += f", … a_{len(acceptance)} {acceptance[-1]:.2f}" if more else ""
    return f"position {shares}"


def figure_rows(v: ServerView) -> Iterator[tuple[str, str, str]]:
    """(name, value, remark)."""
    now, since = v.now.counts, v.since.counts
    if (speed := v.tokens_per_second) is not None:
        yield "tok/s", f"{speed:.1f}", "while decoding"
    if now.alpha is not None:
        yield "α now", f"{now.alpha:.2f}", f"last minute, {now.drafted or 0:,.0f}"
    if since.alpha is not None:
        yield "α", f"{since.alpha:.2f}", f"since start, {since.drafted or 0:,.0f}"
    elif v.gauges.alpha is not None:
        yield "α", f"{v.gauges.alpha:.2f}", f"from {v.engine}"
    if v.tau is not None:
        yield "τ", f"{v.tau:.2f}", "per verify step"
    speedup = v.now.speedup if v.now.speedup is not None else v.since.speedup
    if speedup is not None:
        yield "speed-up", f"{speedup:.2f}x", "over plain decoding"
    if v.requests is not None:
        yield "requests", f"{v.requests:,}", f"{v.gauges.busy or 0} running"
    elif v.gauges.busy is not None:
        yield "running", f"{v.gauges.busy}", "requests"
    if v.drift is not None and v.tuned is not None and v.tuned.alpha is not None:
        yield "drift", f"{v.drift:+.2f}", f"from α={v.tuned.alpha:.2f} at tuning"
    if v.restarts:
        yield "restarts", f"{v.restarts}", "of the server"


def conclusion(v: ServerView) -> str:
    """The verdict, or what it still needs; "" if nothing was drafted."""
    from specllama.watching.verdict import EVEN, LOW, PAYS, SLOWER, UNKNOWN, VERY_LOW

    kind, k, limits = v.verdict.kind, v.verdict.better, v.limits
    if kind == UNKNOWN:
        return _needs(v)
    text = {
        PAYS: "speculation pays off",
        EVEN: "speculation makes little difference",
        SLOWER: "slower than plain decoding: turn speculation off",
        LOW: f"α under {limits.warn:g}, and the speed-up is unknown: it may not pay off",
        VERY_LOW: (
            f"α under {limits.off:g}, and the speed-up is unknown: turn speculation off, or "
            "measure it with `specllama probe`"
        ),
    }.get(kind, "")
    by_length = v.judged.by_length
    if k is not None and k in by_length:
        text += f"; K={k} would give about {by_length[k]:.2f}x"
    return text


def _needs(v: ServerView) -> str:
    """What is missing for a verdict."""
    from specllama.watching.summary import ENOUGH_DRAFTED, MIN_SAMPLES

    p = v.judged
    if p.counts.alpha is None:
        return ""
    if not p.enough:
        return f"undecided: {p.counts.drafted:,.0f} of at least {ENOUGH_DRAFTED} drafted tokens"
    if p.speedup is not None and p.slower is None:
        return (
            f"undecided: {p.samples} of at least {MIN_SAMPLES} samples of 3 s and 64 tokens or more"
        )
    return ""


def short(v: ServerView) -> str:
    """One line, for output that is not a terminal."""
    from specllama.watching.watch import UP

    if v.state != UP:
        return f"{v.state}: {v.reason}"
    text = ", ".join(f"{name} {value}" for name, value, _ in figure_rows(v))
    return f"{v.model or v.url}: {text or 'no tokens decoded yet'}"


def view_data(v: ServerView) -> dict[str, Any]:
    """The JSON object of one snapshot. Speeds in tok/s."""
    from specllama.watching.figures import summary_data, verdict_data

    tuned = v.tuned
    return {
        "url": v.url,
        "state": v.state,
        "reason": v.reason or None,
        "model": v.model or None,
        "engine": v.engine or None,
        "workload": tuned.workload if tuned is not None else None,
        "speculation": v.setting or None,
        "alpha": v.alpha,
        "tau": v.tau,
        "acceptance_by_position": list(v.acceptance),
        "tokens_per_second": v.tokens_per_second,
        "requests": v.requests,
        "running": v.gauges.busy,
        "last_minute": summary_data(v.now),
        "since_start": summary_data(v.since),
        "tuned": {"alpha": tuned.alpha, "speedup": tuned.speedup} if tuned is not None else None,
        "drift": v.drift,
        "thresholds": {"warn": v.limits.warn, "off": v.limits.off},
        **verdict_data(v.verdict),
        "restarts": v.restarts,
        "missing": list(v.missing),
    }
