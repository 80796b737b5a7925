"""Time per phase from the server's log: drafting by method, decoding in total.

llama.cpp prints after each finished request (from b9181 at verbosity 4) totals since the start
for each method (common/speculative.cpp, common_speculative_print_stats) and the request's own
times. This is the only way to separate the methods of a combination.
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
    """Totals of one method: ms spent drafting (with its bookkeeping), tokens."""

    ms: float
    drafted: int
    accepted: int


@dataclass(frozen=True)
class TimeSplit:
    """Over all requests of a server. `decode_ms` includes drafting and verification."""

    decode_ms: float
    methods: dict[str, MethodTime]

    @property
    def draft_share(self) -> float | None:
        """Share of decoding time spent drafting; None if the log does not show it."""
        if self.decode_ms <= 0 or not self.methods:
            return None
        return min(1.0, sum(m.ms for m in self.methods.values()) / self.decode_ms)


def time_split(log: str) -> TimeSplit:
    """Reads a server's log, or the end of one: the difference between a method's first and last
    totals. Missing values are 0 or empty."""
    first: dict[str, MethodTime] = {}
    last: dict[str, MethodTime] = {}
    decode = 0.0
    for line in log.splitlines():
        if m := _METHOD.search(line):
            name, drafted, accepted, *times = m.groups()
            found = MethodTime(sum(map(float, times)), int(drafted), int(accepted))
            first.setdefault(name, found)
            last[name] = found
        elif first and (m := _EVAL.search(line)):
            decode += float(m[1])
    methods = {
        name: MethodTime(
            last[name].ms - old.ms,
            last[name].drafted - old.drafted,
            last[name].accepted - old.accepted,
        )
        for name, old in first.items()
    }
    return TimeSplit(decode, methods)
