"""What was found, as data. Every text in it is made private before anybody sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class StartResult:
    """A real start with the packaged tiny pair. `drafted`: whether it speculated; `said`: what
    came of it, or why it did not start; `advice`: what to do then."""

    started: bool
    drafted: bool
    said: str
    advice: str = ""


@dataclass(frozen=True)
class EngineReport:
    """One llama-server. `used`: the one that serve takes; `problem`: why nothing is known of it;
    `faults`: what is known to be wrong with this build; `start` None = not tried."""

    name: str
    why: str
    used: bool
    build: int | None
    label: str
    flavour: str
    spec_types: tuple[str, ...]
    backends: tuple[str, ...]
    gpus: tuple[str, ...]
    problem: str
    faults: tuple[str, ...]
    start: StartResult | None


@dataclass(frozen=True)
class DeviceReport:
    """Bytes. `others`: who else uses it."""

    name: str
    label: str
    total: int
    free: int
    software: bool = False
    others: str = ""


@dataclass(frozen=True)
class FolderReport:
    """A folder of ours. `unwritable`: why nothing can be written there, "" = it can; `holds`:
    what lies there; `free`: bytes left on its disk; `exposed`: files that others can read and
    should not."""

    what: str
    path: str
    exists: bool
    unwritable: str
    holds: Mapping[str, int]
    bytes: int = 0
    free: int | None = None
    exposed: int = 0


@dataclass(frozen=True)
class ModelFolder:
    """Where models are looked for. `named`: in the config file."""

    path: str
    exists: bool
    models: int
    named: bool = False


@dataclass(frozen=True)
class UserSettings:
    """What the user set. `config`: the file, `config_problem`: what is wrong in it; `profiles`:
    their own, with what is wrong ("" = nothing); `variables`: with their values where those say
    nothing of anybody."""

    config: str
    config_exists: bool
    config_problem: str
    llama_config: tuple[str, ...]
    profiles: Mapping[str, str]
    variables: Mapping[str, str]


@dataclass(frozen=True)
class Problem:
    """`serious`: serve will not work, or not as it should."""

    what: str
    advice: str
    serious: bool = True


@dataclass(frozen=True)
class DoctorReport:
    """Everything. `failed`: parts that could not be looked at. `nvidia`: GPUs by the driver."""

    versions: Mapping[str, str]
    system: Mapping[str, str]
    engines: tuple[EngineReport, ...]
    wrong_engines: tuple[Problem, ...]
    devices: tuple[DeviceReport, ...]
    device_note: str
    nvidia: tuple[str, ...]
    folders: tuple[FolderReport, ...]
    models: tuple[ModelFolder, ...]
    settings: UserSettings | None
    failed: tuple[Problem, ...] = ()
    problems: tuple[Problem, ...] = ()

    @property
    def works(self) -> bool:
        return not any(p.serious for p in self.problems)
