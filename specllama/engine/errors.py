"""The engine package's exception."""

import errno
import socket

from specllama.errors import SpecllamaError, UsageError


class EngineError(SpecllamaError):
    """No usable llama-server, or one that failed. exit_code 1: a run that failed."""


class PortUnusable(EngineError):
    """A port that cannot be bound."""

    def __init__(self, port: int, message: str, hint: str) -> None:
        super().__init__(message, hint)
        self.port = port


def cannot_listen(
    host: str, port: int, e: OSError | OverflowError | UnicodeError
) -> SpecllamaError:
    """The error for a failed bind: the host is not an address of this machine (UsageError), or the
    port cannot be used (PortUnusable)."""
    reason = getattr(e, "strerror", None) or e
    unknown = isinstance(e, socket.gaierror | UnicodeError)
    if unknown or getattr(e, "errno", None) == errno.EADDRNOTAVAIL:
        return UsageError(
            f"--host {host} is not an address of this machine ({reason})",
            "Use 127.0.0.1, or 0.0.0.0 for all of its addresses.",
        )
    return PortUnusable(
        port,
        f"port {port} on {host} cannot be used ({reason})",
        "Use another --port, or --port 0 for a free one.",
    )
