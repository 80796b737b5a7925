"""The figures of a watched server for Prometheus, under names of our own."""

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
    "up": "Whether the server answers (1) or is lost or not loaded (0)",
    "acceptance_rate": "Accepted drafted tokens as a share of all, last minute, else since start",
    "acceptance_rate_since_start": "The same since the server started",
    "tokens_per_step": "Tokens that a verify step brings (tau)",
    "tokens_per_second": "Decoding speed of one request",
    "speedup": "How many times faster than plain decoding, on real requests",
    "chance_slower": "Chance that it is slower than plain decoding",
    "drift": "Acceptance rate less what it was when it was tuned",
    "requests_running": "Requests that are being answered",
    "drafted_tokens": "Drafted tokens since the server started",
    "accepted_tokens": "Accepted ones of them",
    "generated_tokens": "Tokens generated since the server started",
    "restarts": "Restarts of the server that were seen",
}
BY_POSITION = "acceptance_by_position"


class Exporter:
    """Serves them at /metrics. Raises UsageError where the port is taken."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        from prometheus_client import CollectorRegistry, start_http_server

        self._view: ServerView | None = None
        registry = CollectorRegistry()
        registry.register(self)
        try:
            self._server, _ = start_http_server(port, addr=host, registry=registry)
        except OSError as e:
            raise UsageError(
                f"--prometheus {port}: cannot listen there ({e.strerror})", "Give another port."
            ) from None

    def show(self, v: ServerView) -> None:
        """What is scraped from now on, as a whole."""
        self._view = v

    def collect(self) -> Iterator[Metric]:
        """What prometheus-client asks a collector for. A figure that is not known has no sample."""
        from prometheus_client.core import GaugeMetricFamily

        if (v := self._view) is None:
            return
        for name, value in values(v).items():
            gauge = GaugeMetricFamily(f"{PREFIX}_{name}", GAUGES[name], labels=("model", "url"))
            if value is not None:
                gauge.add_metric((v.model, v.url), value)
            yield gauge
        said = "Share of verify steps that accepted all up to this position"
        names = ("model", "url", "position")
        positions = GaugeMetricFamily(f"{PREFIX}_{BY_POSITION}", said, labels=names)
        for i, a in enumerate(v.acceptance, start=1):
            positions.add_metric((v.model, v.url, str(i)), a)
        yield positions

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def values(v: ServerView) -> dict[str, float | None]:
    """By name; None where it is not known."""
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
