"""Every llama-server of this machine: what it can do, what is known to be wrong, does it start."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from specllama.doctor.findings import EngineReport, StartResult
from specllama.engine.capabilities import (
    FACTS,
    MAINLINE,
    Capabilities,
    Tristate,
    ask,
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

# Rows of FACTS that are faults of a build, in a user's words.
_FAULTS = {
    "mtp_cannot_start": "no model starts with its MTP head",
    "slots_read_wrong_rows": "drafts worse with more than one slot",
}


def examine_engine(engine: Engine, used: bool, tried: bool) -> EngineReport:
    """One engine. `used`: serve takes it; `tried`: it is to be started. Raises nothing that has
    a cause in it."""
    try:
        caps = read_capabilities(engine)
    except SpecllamaError as e:
        caps = Capabilities(None, "", "unknown", (), (), problem=e.message)
    listed = "" if caps.problem else _devices(engine)
    return EngineReport(
        name=engine.label,
        why=engine.why,
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
        return ask(engine, "--list-devices", LIST_TIMEOUT)[0]
    except SpecllamaError:
        return ""


def backends(listed: str) -> Iterator[str]:
    """What it computes with, by the output of --list-devices. Pure. That a backend is compiled
    in and finds no device is not said there."""
    loaded = _LOADED.findall(listed)
    names = (re.sub(r"\d+$", "", d.name) for d in parse_devices(listed))
    known = [n for n in (*names, *loaded) if n != "CPU"]
    yield from dict.fromkeys(_FAMILIES.get(n, n) for n in known)
    yield "CPU"


def faults(caps: Capabilities) -> Iterator[str]:
    """What is known of this build and limits speculation. Pure."""
    for name, said in _FAULTS.items():
        if caps.fact(name) is Tristate.YES:
            yield f"{said} ({FACTS[name].source})"
    if "draft-eagle3" in caps.spec_types and caps.fact("eagle3_drafts") is Tristate.NO:
        yield f"draft-eagle3 is listed but drafts nothing ({FACTS['eagle3_drafts'].source})"
    if caps.flavour == MAINLINE and caps.options and not caps.spec_types:
        yield "no --spec-type: nothing but small models can draft"


def _start(engine: Engine) -> StartResult:
    """Serves the tiny pair and looks whether it drafts. Its log is not kept."""
    named = EMBEDDED if engine.embedded else engine.argv[0]
    try:
        with tempfile.TemporaryDirectory(prefix="specllama-", ignore_cleanup_errors=True) as folder:
            return _served(named, Path(folder) / "doctor.log")
    except LaunchFailed as e:
        return StartResult(False, False, e.exit.message, e.exit.hint)
    except SpecllamaError as e:
        return StartResult(False, False, e.message, e.hint)
    except OSError as e:
        return StartResult(False, False, f"{e.filename or 'a file'}: {e.strerror or e}")


def _served(named: str, log: Path) -> StartResult:
    settings = Settings(demo_model("target.gguf"), host="127.0.0.1", port=0, context=1024)
    spec_options = SpeculationOptions("code", draft=demo_model("draft.gguf"))
    plan = prepare(settings, spec_options, ("-t", "1"), named)
    said: list[str] = []
    running = launch(plan, log, _Quiet(said))
    try:
        seen = check_engagement(running)
    finally:
        running.stop()
    if not seen.engaged:
        why = "; ".join(dict.fromkeys([*said, seen.reason]))
        return StartResult(True, False, f"it serves, but drafts nothing: {why}")
    if seen.only_costs:  # of a pair that is known to agree: the build drafts wrongly
        return StartResult(True, False, f"it drafts, but {seen.only_costs}")
    return StartResult(True, True, f"{seen.drafted} tokens drafted, {seen.accepted} accepted")


class _Quiet:
    """Keeps what a launch says; the spinner is ours."""

    def __init__(self, said: list[str]) -> None:
        self._said = said

    def say(self, text: str) -> None:
        self._said.append(text)

    def busy(self, text: str) -> AbstractContextManager[None]:
        return nullcontext()
