"""The cost of tokens on a machine billed by the hour, from the measured speed.   (pure)"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from specllama.errors import UsageError
from specllama.tuning.results import Result

_HOURS = {"h": 1.0, "hour": 1.0, "d": 24.0, "day": 24.0, "month": 730.0}
_MANY = 1e6


@dataclass(frozen=True)
class HourlyPrice:
    """The machine's price. `currency`: as the user wrote it, "" = none."""

    per_hour: float
    currency: str = ""


@dataclass(frozen=True)
class TokenCost:
    """Cost of a million tokens, one request at a time, in the price's currency. None = unknown."""

    speculating: float | None
    baseline: float | None


def parse_price(text: str) -> HourlyPrice:
    """`2.50/h`, `$2.50/h`, `60 EUR/day`, `900/month`. Raises UsageError for anything else."""
    m = re.fullmatch(
        r"\s*([^\d\s./,-]{0,4})\s*(\d{1,9}(?:\.\d{1,9})?)\s*([^\d\s./,-]{0,4})\s*(?:/\s*([a-z]+))?\s*",
        text,
    )
    hours = _HOURS.get(m[4] or "h") if m else None
    amount = float(m[2]) if m else math.nan
    if m is None or hours is None or not amount > 0:
        raise UsageError(
            f"--price {text}: must be an amount per hour, such as 2.50/h",
            "/day and /month work too; a currency may come before or after the amount.",
        )
    return HourlyPrice(amount / hours, m[1] or m[3])


def cost_of(known: Result | None, price: HourlyPrice) -> TokenCost:
    """The cost of a million tokens from a stored result."""
    if known is None or not known.tokens_per_second:
        return TokenCost(None, None)
    gain = known.speedup[0] if known.speedup is not None else None
    if known.speculation is not None:
        fast: float | None = known.tokens_per_second
        plain = known.tokens_per_second / gain if gain else None
    else:
        plain = known.tokens_per_second
        fast = plain * gain if gain else None
    return TokenCost(_million(price, fast), _million(price, plain))


def _million(price: HourlyPrice, speed: float | None) -> float | None:
    return price.per_hour / (speed * 3600) * _MANY if speed else None
