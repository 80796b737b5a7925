"""The report as data. Every text in it is redacted before it is shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class StartResult:
    """A test start with the packaged tiny models. `drafted`: whether it speculated; `message`: the
    result, or why it did not start; `advice`: what to do then."""

    started: bool
    drafted: bool
    message: str
    advice: str = ""


@dataclass(frozen=True)
class EngineReport:
    """One llama-server. `used`: serve uses it; `problem`: why nothing is known about it;
    `faults`: known bugs of this build; `start`: None = not tried."""

    name: str
    reason: str
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
    """Sizes in bytes. `others`: other processes that use it."""

    name: str
    label: str
    total: int
    free: int
    software: bool = False
    others: str = ""


@dataclass(frozen=True)
class FolderReport:
    """A folder of specllama. `unwritable`: why it cannot be written, "" = it can; `holds`: counts
    of its contents; `free`: bytes free on its disk; `exposed`: number of files that other users
    can read but should not."""

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
    """A folder that is searched for models. `named`: set in the config file."""

    path: str
    exists: bool
    models: int
    named: bool = False


@dataclass(frozen=True)
class UserSettings:
    """The user's settings. `config`: the file, `config_problem`: an error in it; `profiles`: the
    user's own, with an error in each ("" = none); `variables`: environment variables, with values
    that reveal nothing private."""

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
    """Everything. `failed`: checks that could not run. `nvidia`: GPUs reported by the driver."""

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
