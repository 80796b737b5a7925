"""Errors about an option's value, in our words in place of typer's and pydantic's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specllama.cli.help_pages import choices
from specllama.cli.spellings import OWN_NAMES


def wrong_value(error: Any, words: Sequence[str]) -> str:
    """`--n-max 0: must be an integer from 1 to 512`, for typer's error about a number or a
    choice; "" for its other errors. `words`: the command line as it was typed."""
    param, context = getattr(error, "param", None), getattr(error, "ctx", None)
    if type(error).__name__ != "BadParameter" or param is None:
        return ""
    allowed = _allowed(param)
    return f"{_name(param, context, words)}{_value(error)}: must be {allowed}" if allowed else ""


def _allowed(param: Any) -> str:
    if values := choices(param):
        return f"one of {', '.join(values)}"
    kind = getattr(getattr(param, "type_descriptor", None), "annotation", None)
    if kind not in (int, float):
        return ""
    number = "an integer" if kind is int else "a number"
    least, most = getattr(param, "min", None), getattr(param, "max", None)
    if least is not None and most is not None:
        return f"{number} from {_bound(least)} to {_bound(most)}"
    if least is not None:
        return f"{number}, {_bound(least)} or more"
    return number if most is None else f"{number}, at most {_bound(most)}"


def _bound(bound: float) -> str:
    return str(int(bound)) if bound == int(bound) else str(bound)


def _name(param: Any, context: Any, words: Sequence[str]) -> str:
    """The option as it was typed, or the environment variable that set it."""
    source = context.get_parameter_source(param.name) if context is not None else None
    if getattr(source, "name", "") == "ENVIRONMENT" and isinstance(param.envvar, str):
        return f"{param.envvar}="
    names = [w.partition("=")[0] for w in words]
    short = [o for o in param.opts if len(o) == 2 and any(n.startswith(o) for n in names)]
    typed = [n for n in names if OWN_NAMES.get(n, n) in param.opts]
    long = [o for o in param.opts if o.startswith("--")]
    return f"{(typed or short or long or param.opts)[-1]} "


def _value(error: Any) -> str:
    """The value: in pydantic's error, or in the message of our own callbacks."""
    errors = getattr(error.__cause__, "errors", None)
    return str(errors()[0]["input"]) if errors else str(error.message)
