"""What the server's log says of where time went: drafting by method, decoding in all.

llama.cpp prints after each finished request, at verbosity 4, totals since the start for each
method (common/speculative.cpp, common_speculative_print_stats) and the request's own times.
It is the only way to tell the methods of a combination apart.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_METHOD = re.compile(
    r"statistics +([\w-]+): .*#gen tokens = *(\d+), #acc tokens = *(\d+).*"
    r"dur\(b,g,a\) = *([\d.]+), *([\d.]+), *([\d.]+) ms"
)
_EVAL = re.compile(r"[^t] eval time = *([\d.]+) ms / *(\d+) tokens")


@dataclass(frozen=True)
class MethodTime:
    """One method's totals: ms spent drafting (and on its bookkeeping), tokens."""

    ms: float
    drafted: int
    accepted: int


@dataclass(frozen=True)
class TimeSplit:
    """Over all requests of a server. `decode_ms` holds drafting and verifying."""

    decode_ms: float
    methods: dict[str, MethodTime]

    @property
    def draft_share(self) -> float | None:
        """Share of decoding time spent drafting; None when the log does not tell."""
        if self.decode_ms <= 0 or not self.methods:
            return None
        return min(1.0, sum(m.ms for m in self.methods.values()) / self.decode_ms)


def time_split(log: str) -> TimeSplit:
    """Reads a server's log. What is not there is 0 or empty."""
    methods = {
        name: MethodTime(float(b) + float(g) + float(a), int(drafted), int(accepted))
        for name, drafted, accepted, b, g, a in _METHOD.findall(log)
    }
    return TimeSplit(sum(float(ms) for ms, _ in _EVAL.findall(log)), methods)
