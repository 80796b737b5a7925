"""The commands: one small module per command, rendering, errors → exit codes."""

from __future__ import annotations

# the C module behind signal: importing signal itself imports enum, which takes some ms
import _signal  # type: ignore[import-not-found]
import sys


def main() -> None:
    """The `specllama` command. Exits 0, 1 (a run failed), 2 (usage, input), 3 (--strict), or
    128 + a signal's number."""
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)  # no traceback from an import in progress
    from specllama.cli.app import run
    from specllama.stop import Stopped, ignore_from_now, stop_on_signals

    try:
        with stop_on_signals():
            code = run(sys.argv[1:])
            ignore_from_now()
    except Stopped as e:
        code = e.exit_code
    sys.exit(code)
