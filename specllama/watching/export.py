"""Exports the figures of a watched server to Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from specllama.errors import UsageError
from specllama.watching.watch import UP, ServerView

if TYPE_CHECKING:
    from prometheus_client import Metric

PREFIX = "specllama"
# name, help; by model, and for acceptance by position
GAUGES = {
    "up": "1 if the server responds, 0 if it is unreachable or has no model loaded",
    "acceptance_rate": "Acceptance rate (alpha) over the last minute, else since the server started",
    "acceptance_rate_since_start": "Acceptance rate (alpha) since the server started",
    "tokens_per_step": "Mean tokens per verify step (tau)",
    "tokens_per_second": "Decoding speed of one request",
    "speedup": "Speed-up over plain decoding on real requests",
    "chance_slower": "Probability that speculation is slower than plain decoding",
    "drift": "Acceptance rate minus the acceptance rate measured while tuning",
    "requests_running": "Requests in progress",
    "drafted_tokens": "Drafted tokens since the server started",
    "accepted_tokens": "Accepted draft tokens since the server started",
    "generated_tokens": "Tokens generated since the server started",
    "restarts": "Observed server restarts",
}
BY_POSITION = "acceptance_by_position"


class Exporter:
    """Serves them at /metrics. Raises UsageError if the port cannot be used."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        from prometheus_client import CollectorRegistry, start_http_server

        self._view: ServerView | None = None
        registry = CollectorRegistry()
        registry.register(self)
        try:
            self._server, _ = start_http_server(port, addr=host, registry=registry)
        except OSError as e:
            raise UsageError(
                f"--prometheus {port}: cannot listen on this port ({e.strerror})",
                "Choose another port.",
            ) from None

    def show(self, v: ServerView) -> None:
        """Sets the figures to export."""
        self._view = v

    def collect(self) -> Iterator[Metric]:
        """Called by prometheus-client. Unknown figures have no sample."""
        from prometheus_client.core import GaugeMetricFamily

        if (v := self._view) is None:
            return
        for name, value in values(v).items():
            gauge = GaugeMetricFamily(f"{PREFIX}_{name}", GAUGES[name], labels=("model", "url"))
            if value is not None:
                gauge.add_metric((v.model, v.url), value)
            yield gauge
        text = "Share of verify steps that accepted all draft tokens up to this position"
        names = ("model", "url", "position")
        positions = GaugeMetricFamily(f"{PREFIX}_{BY_POSITION}", text, labels=names)
        for i, a in enumerate(v.acceptance, start=1):
            positions.add_metric((v.model, v.url, str(i)), a)
        yield positions

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def values(v: ServerView) -> dict[str, float | None]:
    """Values by name; None if unknown."""
    counts = v.since.counts
    return {
        "up": float(v.state == UP),
        "acceptance_rate": v.alpha,
        "acceptance_rate_since_start": counts.alpha,
        "tokens_per_step": v.tau,
        "tokens_per_second": v.tokens_per_second,
        "speedup": v.now.speedup if v.now.speedup is not None else v.since.speedup,
        "chance_slower": v.since.slower,
        "drift": v.drift,
        "requests_running": v.gauges.busy,
        "drafted_tokens": counts.drafted,
        "accepted_tokens": counts.accepted,
        "generated_tokens": counts.tokens,
        "restarts": float(v.restarts),
    }
