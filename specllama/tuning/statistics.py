"""What the server's log says of where time went: drafting by method, decoding in all.

llama.cpp prints after each finished request (from b9181 at verbosity 4) totals since the start
for each method (common/speculative.cpp, common_speculative_print_stats) and the request's own
times. It is the only way to tell the methods of a combination apart.
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
    """Reads a server's log, or the end of one: what lies between the first totals of a method
    in it and the last. What is not there is 0 or empty."""
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
