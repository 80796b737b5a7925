"""Problems in the report, and what to do about them. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from specllama.doctor.findings import DoctorReport, EngineReport, FolderReport, Problem
from specllama.engine.locate import NOT_FOUND

_LOW_DISK = 500 * 2**20
_VARIABLES = {
    "config": "XDG_CONFIG_HOME",
    "cache": "XDG_CACHE_HOME",
    "logs": "XDG_STATE_HOME",
}


def problems(r: DoctorReport) -> tuple[Problem, ...]:
    """Serious ones first."""
    broken = r.settings.config_problem if r.settings is not None else ""
    found = [*r.failed, *(p for p in r.wrong_engines if p.what != broken)]
    found += [*_engines(r), *_devices(r), *_folders(r), *_models(r), *_settings(r)]
    return tuple(sorted(dict.fromkeys(found), key=lambda p: not p.serious))


def _engines(r: DoctorReport) -> Iterator[Problem]:
    if not r.engines and not r.wrong_engines:
        yield Problem(*NOT_FOUND)
    for e in r.engines:
        if e.problem:
            another = "Set another with --llama-server, or use `--llama-server embedded`."
            named = e.name in e.problem
            problem = e.problem if named else f"{e.name} cannot be used: {e.problem}"
            yield Problem(problem, another, e.used)
        elif e.start is not None and not e.start.started:
            problem = f"{e.name} failed the test start: {e.start.message}"
            yield Problem(problem, e.start.advice or "`specllama --debug demo` shows more.", e.used)
        elif e.start is not None and not e.start.drafted:
            yield Problem(f"{e.name}: {e.start.message}", _newer(e), e.used)
        for fault in e.faults:
            yield Problem(f"{e.name} ({e.label}): {fault}", _newer(e), serious=False)


def _newer(e: EngineReport) -> str:
    update = "`pip install -U xllamacpp`" if e.name.startswith("embedded") else "a newer llama.cpp"
    return f"Use {update}, or another engine with --llama-server."


def _devices(r: DoctorReport) -> Iterator[Problem]:
    used = next((e for e in r.engines if e.used), None)
    if used is not None and r.nvidia and not used.gpus and not used.problem:
        other = next((e for e in r.engines if e.gpus), None)
        name = f"--llama-server {other.name}" if other else "a build with CUDA or Vulkan"
        yield Problem(f"{used.name} does not use the GPU ({', '.join(r.nvidia)})", f"Use {name}.")
    if r.device_note and used is not None and not used.problem:
        yield Problem(
            f"devices are unknown: {r.device_note}", "Set their memory with --vram SIZE.", False
        )
    for d in r.devices:
        if d.software:
            yield Problem(
                f"{d.name} is a CPU that reports itself as a GPU ({d.label})",
                "Unset GGML_VK_VISIBLE_DEVICES, or use `-- -dev none`.",
                serious=False,
            )


def _folders(r: DoctorReport) -> Iterator[Problem]:
    for f in r.folders:
        if f.unwritable:
            yield _unwritable(f)
        elif f.free is not None and f.free < _LOW_DISK:
            yield Problem(
                f"only {f.free // 2**20} MiB free on the disk of {f.path}",
                "Free some space: logs take up to 500 MB.",
                serious=False,
            )
        if f.exposed:
            yield Problem(
                f"other users can read {f.exposed} logs in {f.path}, which can contain prompts",
                f"Run `chmod 600 {f.path}/*`.",
                serious=False,
            )


def _unwritable(f: FolderReport) -> Problem:
    consequence = {
        "config": "profiles cannot be created",
        "cache": "results are not saved",
        "logs": "serve needs --log FILE, probe and demo cannot start a server",
    }[f.what]
    return Problem(
        f"the {f.what} folder {f.path} cannot be written ({f.unwritable}): {consequence}",
        f"Fix its permissions (chown, chmod), or set {_VARIABLES[f.what]} to another folder (Linux).",
        serious=f.what == "logs",
    )


def _models(r: DoctorReport) -> Iterator[Problem]:
    for m in r.models:
        if m.named and not m.exists:
            yield Problem(
                f"{m.path}, set by model_dirs in the config file, is not a folder",
                "Correct it there.",
                serious=False,
            )
    if r.models and not any(m.models for m in r.models):
        yield Problem(
            "no GGUF files in the standard folders",
            "Give serve a model's path, add its folder to model_dirs, or try `specllama demo`.",
            serious=False,
        )


def _settings(r: DoctorReport) -> Iterator[Problem]:
    if r.settings is None:
        return
    if r.settings.config_problem:
        yield Problem(r.settings.config_problem, "Correct the config file, or delete it.")
    for name, why in r.settings.profiles.items():
        if why:
            advice = "Correct it, or delete it."
            yield Problem(f"the profile {name} is invalid: {why}", advice, serious=False)
