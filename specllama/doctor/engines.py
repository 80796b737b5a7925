"""Every llama-server on this machine: its capabilities, its known bugs, and a test start."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from specllama.doctor.findings import EngineReport, StartResult
from specllama.engine.build_facts import FACTS
from specllama.engine.capabilities import (
    MAINLINE,
    Capabilities,
    Tristate,
    engine_output,
    read_capabilities,
)
from specllama.engine.locate import EMBEDDED, Engine
from specllama.engine.settings import Settings
from specllama.errors import SpecllamaError
from specllama.memory.devices import LIST_TIMEOUT, parse_devices
from specllama.planning.prepare import prepare
from specllama.planning.spec_options import SpeculationOptions
from specllama.resources import demo_model
from specllama.serving.launch import LaunchFailed, launch
from specllama.serving.serve import check_engagement

_LOADED = re.compile(r"load_backend: loaded (\w+) backend")
_FAMILIES = {"MTL": "Metal"}

_BUGS = ("mtp_cannot_start", "slots_read_wrong_rows")  # rows of FACTS


def examine_engine(engine: Engine, used: bool, tried: bool) -> EngineReport:
    """One engine. `used`: serve uses it; `tried`: start it. Errors of the engine are part of the
    report."""
    try:
        caps = read_capabilities(engine)
    except SpecllamaError as e:
        caps = Capabilities(None, "", "unknown", (), (), problem=e.message)
    listed = "" if caps.problem else _devices(engine)
    return EngineReport(
        name=engine.label,
        reason=engine.reason,
        used=used,
        build=caps.build,
        label=f"{caps.label} ({caps.commit})" if caps.commit else caps.label,
        flavour=caps.flavour,
        spec_types=tuple(t for t in caps.spec_types if t != "none"),
        backends=tuple(backends(listed)),
        gpus=tuple(d.name for d in parse_devices(listed)),
        problem=caps.problem,
        faults=tuple(faults(caps)),
        start=_start(engine) if tried and not caps.problem else None,
    )


def _devices(engine: Engine) -> str:
    try:
        return engine_output(engine, "--list-devices", LIST_TIMEOUT)[0]
    except SpecllamaError:
        return ""


def backends(listed: str) -> Iterator[str]:
    """The backends, from the output of --list-devices. Pure. A backend without a device is not
    listed there."""
    loaded = _LOADED.findall(listed)
    names = (re.sub(r"\d+$", "", d.name) for d in parse_devices(listed))
    known = [n for n in (*names, *loaded) if n != "CPU"]
    yield from dict.fromkeys(_FAMILIES.get(n, n) for n in known)
    yield "CPU"


def faults(caps: Capabilities) -> Iterator[str]:
    """Known bugs and limits of this build that affect speculation. Pure."""
    for name in _BUGS:
        if caps.fact(name) is Tristate.YES:
            yield f"{FACTS[name].title} ({FACTS[name].source})"
    if "draft-eagle3" in caps.spec_types and caps.fact("eagle3_drafts") is Tristate.NO:
        yield f"draft-eagle3 is listed but does not draft ({FACTS['eagle3_drafts'].source})"
    if caps.flavour == MAINLINE and caps.options and not caps.spec_types:
        yield "no --spec-type: only draft models are supported"


def _start(engine: Engine) -> StartResult:
    """Serves the tiny test models and checks that it drafts. The log is deleted."""
    name = EMBEDDED if engine.embedded else engine.argv[0]
    try:
        with tempfile.TemporaryDirectory(prefix="specllama-", ignore_cleanup_errors=True) as folder:
            return _test_start(name, Path(folder) / "doctor.log")
    except LaunchFailed as e:
        return StartResult(False, False, e.exit.message, e.exit.hint)
    except SpecllamaError as e:
        return StartResult(False, False, e.message, e.hint)
    except OSError as e:
        return StartResult(False, False, f"{e.filename or 'a file'}: {e.strerror or e}")


def _test_start(name: str, log: Path) -> StartResult:
    settings = Settings(demo_model("target.gguf"), host="127.0.0.1", port=0, context=1024)
    spec_options = SpeculationOptions("code", draft=demo_model("draft.gguf"))
    plan = prepare(settings, spec_options, ("-t", "1"), name)
    messages: list[str] = []
    running = launch(plan, log, _MessageCollector(messages))
    try:
        result = check_engagement(running)
    finally:
        running.stop()
    if not result.engaged:
        reason = "; ".join(dict.fromkeys([*messages, result.reason]))
        return StartResult(True, False, f"it serves, but drafts nothing: {reason}")
    if result.only_costs:  # the pair is known to agree: a bug of the build
        return StartResult(True, False, f"it drafts, but {result.only_costs}")
    return StartResult(True, True, f"{result.drafted} tokens drafted, {result.accepted} accepted")


class _MessageCollector:
    """Collects the messages of a launch; the spinner belongs to the doctor."""

    def __init__(self, messages: list[str]) -> None:
        self._messages = messages

    def say(self, text: str) -> None:
        self._messages.append(text)

    def busy(self, text: str) -> AbstractContextManager[None]:
        return nullcontext()
