"""llama-server from a wheel: `python -m specllama.engine.embedded <llama-server's argv>`.

Runs xllamacpp's server (llama.cpp's own, compiled into a Python module) as a child
process that looks like llama-server from outside: --help, --version, --list-devices,
signals and exit codes. It reads only the command line and LLAMA_API_KEY.
"""

from __future__ import annotations

import importlib.metadata
import signal
import sys
import textwrap
import threading
from collections.abc import Sequence
from types import FrameType
from typing import Any

from specllama.engine.embedded_options import UNSUPPORTED, apply_environment, supported_options
from specllama.engine.embedded_values import BadValue, EmbeddedOption

_TRACE = ", 3: info, 4: trace, 5: debug"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the server until SIGINT or SIGTERM. Returns the exit code: 0, or 1 for an error."""
    args = list(sys.argv[1:] if argv is None else argv)
    if {"-h", "--help", "--usage"} & set(args):
        print(help_text())
        return 0
    if "--version" in args:
        print(version_text(), file=sys.stderr)
        return 0
    if "--list-devices" in args:
        print(devices_text())
        return 0
    try:
        import xllamacpp

        params = xllamacpp.CommonParams()
        pairs = parse(args, supported_options(params))
    except BadValue as e:
        print(f"error: {e}", file=sys.stderr)
        return 1
    return serve(params, pairs)


def parse(args: Sequence[str], known: Sequence[EmbeddedOption]) -> list[tuple[EmbeddedOption, str]]:
    """(option, value) for each argument, in order. Raises BadValue for an unknown argument."""
    by_name = {name: option for option in known for name in option.all_names}
    out: list[tuple[EmbeddedOption, str]] = []
    rest = iter(args)
    for name in rest:
        option = by_name.get(name)
        if option is None:
            why = "unknown to the embedded engine"
            if name in UNSUPPORTED.split(", "):
                why = "not supported by the embedded engine"
            raise BadValue(f"invalid argument: {name} ({why})")
        if not option.hint:
            out.append((option, "0" if name in option.negative else ""))
            continue
        value = next(rest, None)
        if value is None:
            raise BadValue(f"expected value for argument {name}")
        out.append((option, value))
    if not any(option.names[0] == "-m" for option, _ in out):
        raise BadValue("no model given: -m FNAME")
    return out


def serve(params: Any, pairs: Sequence[tuple[EmbeddedOption, str]]) -> int:
    import xllamacpp

    # xllamacpp holds the GIL while it loads, so Python handlers could not run:
    # until the model is loaded, signals have their default action.
    _on_signals(signal.SIG_DFL)
    if hasattr(params, "hostnames"):  # older versions have a single hostname, 127.0.0.1
        params.hostnames = ["127.0.0.1"]
    params.port = 8080
    apply_environment(params)
    try:
        for option, value in pairs:
            try:
                option.apply(params, value)
            except (ValueError, RuntimeError, OverflowError) as e:
                raise BadValue(f"error while handling argument {option.names[-1]}: {e}") from None
    except BadValue as e:
        print(f"error: {e}", file=sys.stderr)
        return 1
    stop = threading.Event()

    def on_signal(_signum: int, _frame: FrameType | None) -> None:
        _on_signals(signal.SIG_DFL)  # a second one kills it, as in llama-server
        stop.set()

    try:
        server: Any = xllamacpp.Server(params)
    except RuntimeError as e:
        print(f"error: {e}", file=sys.stderr)
        return 1
    _on_signals(on_signal)
    while not stop.wait(0.5):  # a bare wait() cannot be interrupted on Windows
        pass
    del server  # stops the loop, joins the threads
    return 0


def _on_signals(handler: Any) -> None:
    for s in (signal.SIGINT, signal.SIGTERM):
        signal.signal(s, handler)


def version_text() -> str:
    """`--version` in llama.cpp's format. The wheel's last version part is the build
    (2026.10.11549 = b11549); its own BUILD_INFO says 0."""
    wheel = importlib.metadata.version("xllamacpp")
    return f"version: {wheel} (build {_build()}, commit xllamacpp)"


def _build() -> int:
    """The build from the version; 0 if it has none."""
    parts = importlib.metadata.version("xllamacpp").split(".")
    return int(parts[2]) if len(parts) > 2 and parts[2].isdigit() else 0


def help_text() -> str:
    """`--help` in llama.cpp's layout: the options mapped here that the library supports."""
    import xllamacpp

    lines = ["----- options of the embedded engine -----", ""]
    for option in supported_options(xllamacpp.CommonParams()):
        first, *others = option.all_names
        text = f"{option.help}{_TRACE if '-lv' in option.names and _build() >= 9181 else ''}"
        head = f"{first}, ".ljust(7) + ", ".join(others) if others else first
        head = f"{head} {option.hint}".rstrip()
        if len(head) > 37:
            lines += [head, " " * 40 + text]
        else:
            lines.append(head.ljust(40) + text)
    lines += [
        "",
        "not supported by the embedded engine:",
        *textwrap.wrap(f"  {UNSUPPORTED}", 78, subsequent_indent="  "),
    ]
    return "\n".join(lines)


def devices_text() -> str:
    """`--list-devices` in llama.cpp's layout: all devices but the CPU, sizes in MiB."""
    import xllamacpp

    cpu = xllamacpp.ggml_backend_dev_type.GGML_BACKEND_DEVICE_TYPE_CPU
    lines = ["Available devices:"]
    for d in xllamacpp.get_device_info():
        if d["type"] != cpu:
            total, free = d["memory_total"] // 2**20, d["memory_free"] // 2**20
            lines.append(f"  {d['name']}: {d['description']} ({total} MiB, {free} MiB free)")
    return "\n".join(lines if len(lines) > 1 else [*lines, "  (none)"])


if __name__ == "__main__":
    sys.exit(main())
