"""τ from a constant acceptance, and back; the longest draft worth considering. Pure."""

from __future__ import annotations

# Draft length (K) to consider where neither a file nor a measured cost curve sets a limit.
LONGEST_K = 8


def constant_tau(p: float, k: int) -> float:
    """Tokens per verify step (τ) when each of k drafted tokens is accepted with probability p
    given the ones before: (1 − p^(k+1)) / (1 − p) (Leviathan et al. 2023, eq. 1)."""
    return float(k + 1) if p >= 1 else (1 - p ** (k + 1)) / (1 - p)


def constant_acceptance(tau: float, k: int) -> float:
    """The p whose constant_tau(p, k) is `tau`, within [0, 1]."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if constant_tau(middle, k) < tau else (low, middle)
    return (low + high) / 2
