"""What is wrong with an option's value, in our words in place of typer's and pydantic's."""

from __future__ import annotations

from enum import Enum
from typing import Any


def wrong_value(error: Any) -> str:
    """`--n-max 0: must be a whole number from 1 to 512`, for typer's error about a value that is
    a number or one of a few; "" for its other errors."""
    param, context = getattr(error, "param", None), getattr(error, "ctx", None)
    if type(error).__name__ != "BadParameter" or param is None:
        return ""
    allowed = _allowed(param)
    return f"{_written(param, context)}{_value(error)}: must be {allowed}" if allowed else ""


def _allowed(param: Any) -> str:
    kind = getattr(getattr(param, "type_descriptor", None), "annotation", None)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return f"one of {', '.join(str(member.value) for member in kind)}"
    if kind not in (int, float):
        return ""
    number = "a whole number" if kind is int else "a number"
    least, most = getattr(param, "min", None), getattr(param, "max", None)
    if least is not None and most is not None:
        return f"{number} from {_plain(least)} to {_plain(most)}"
    if least is not None:
        return f"{number}, {_plain(least)} or more"
    return number if most is None else f"{number}, at most {_plain(most)}"


def _plain(bound: float) -> str:
    return str(int(bound)) if bound == int(bound) else str(bound)


def _written(param: Any, context: Any) -> str:
    """The option as it is written, or the environment's variable that it came from."""
    source = context.get_parameter_source(param.name) if context is not None else None
    if getattr(source, "name", "") == "ENVIRONMENT" and isinstance(param.envvar, str):
        return f"{param.envvar}="
    return f"{next((o for o in param.opts if o.startswith('--')), param.opts[0])} "


def _value(error: Any) -> str:
    """What was given: pydantic keeps it, a callback of ours says it."""
    errors = getattr(error.__cause__, "errors", None)
    return str(errors()[0]["input"]) if errors else str(error.message)
