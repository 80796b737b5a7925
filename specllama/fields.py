"""Checked values of a TOML file: an error names the field, its value, and what is allowed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specllama.errors import UsageError


@dataclass(frozen=True)
class Fields:
    """A file's values, or those of one of its tables. Every method raises UsageError for an invalid
    value, and for a missing one without `default`."""

    file: Path
    data: Mapping[str, Any]
    table: str = ""

    def check_known(self, known: Sequence[str]) -> None:
        """Raises UsageError for a field that is not one of these."""
        if unknown := sorted(set(self.data) - set(known)):
            hint = f"Known{f' in [{self.table}]' if self.table else ''}: {', '.join(sorted(known))}"
            raise UsageError(f"{self.file}: unknown setting {self._full_name(unknown[0])}", hint)

    def subtable(self, name: str, needed: bool = True) -> Fields:
        """One of its tables; empty if it is missing and not `needed`."""
        value = self._get(name, "a table", None if needed else {})
        if not isinstance(value, dict):
            raise self._error(name, value, "a table")
        return Fields(self.file, value, name)

    def text(self, name: str) -> str:
        value = self._get(name, allowed := "a string", None)
        if not isinstance(value, str):
            raise self._error(name, value, allowed)
        return value

    def boolean(self, name: str) -> bool | None:
        """true or false; None if it is missing."""
        value = self.data.get(name)
        if value is not None and not isinstance(value, bool):
            raise self._error(name, value, "true or false")
        return value

    def number(
        self,
        name: str,
        least: float = -math.inf,
        most: float = math.inf,
        default: float | None = None,
    ) -> float:
        value = self._get(name, allowed := f"a number{_range(least, most)}", default)
        good = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not good or not math.isfinite(value) or not least <= value <= most:
            raise self._error(name, value, allowed)
        return float(value)

    def integer(self, name: str, least: int, most: int, default: int | None = None) -> int:
        value = self._get(name, allowed := f"an integer{_range(least, most)}", default)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise self._error(name, value, allowed)
        return value

    def word_list(self, name: str, known: Sequence[str]) -> tuple[str, ...]:
        """A list of `known` words."""
        value = self._get(name, allowed := f"a list of these: {', '.join(known)}", None)
        words = value if isinstance(value, list) else [value]
        bad = [w for w in words if w not in known]
        if bad or not words or not isinstance(value, list):
            raise self._error(name, bad[0] if bad else value, allowed)
        return tuple(words)

    def _get(self, name: str, allowed: str, default: Any) -> Any:
        if (value := self.data.get(name, default)) is None:
            raise UsageError(f"{self.file}: {self._full_name(name)} is missing (must be {allowed})")
        return value

    def _error(self, name: str, value: Any, allowed: str) -> UsageError:
        return UsageError(
            f"{self.file}: {self._full_name(name)} is {_as_toml(value)}: must be {allowed}"
        )

    def _full_name(self, name: str) -> str:
        return f"{self.table}.{name}" if self.table else name


def _range(least: float, most: float) -> str:
    if math.isfinite(least) and math.isfinite(most):
        return f" from {least} to {most}"
    return f", {least} or more" if math.isfinite(least) else ""


def _as_toml(value: Any) -> str:
    """Roughly as TOML writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "a table"
    text = f'"{value}"' if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
