"""Settings → the argv and environment of llama-server, in this build's spelling.

Nothing is emitted that the build does not list. `--spec-type` is passed once, comma
joined: it defaults to none, and from b9464 `-md` alone silently does not speculate
(llama.cpp PR 23988).
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from specllama.engine import ik_llama
from specllama.engine.build_facts import SPEC_TYPE_SINCE
from specllama.engine.capabilities import IK_LLAMA, Capabilities, Tristate
from specllama.engine.embedded_options import API_KEY_ENV
from specllama.engine.launch_options import LaunchOptions
from specllama.engine.locate import Engine
from specllama.engine.settings import Settings, Speculation

_NGRAM_SIZED = ("ngram-simple", "ngram-map-k", "ngram-map-k4v")
# Options that set n-gram sizes.
NGRAM_SIZE_OPTIONS = (
    *(f"--spec-{m}-size-{x}" for m in _NGRAM_SIZED for x in "nm"),
    "--spec-ngram-size-n",
    "--spec-ngram-size-m",
    "--spec-ngram-mod-n-match",
    "--spec-ngram-mod-n-min",
    "--spec-ngram-mod-n-max",
)


@dataclass(frozen=True)
class LaunchCommand:
    """The command to run. `changes`: where the user's arguments replaced ours. `dropped`: variables
    hidden from the child, each with its reason. Secrets are in `env` only."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(repr=False)
    changes: tuple[str, ...]
    dropped: tuple[str, ...]

    def display(self) -> str:
        """The command as shell text, without secrets."""
        return shlex.join(self.argv)


def build(
    engine: Engine, caps: Capabilities, settings: Settings, user: LaunchOptions
) -> LaunchCommand:
    """The command for these settings, with the user's own arguments merged in last."""
    argv = list(engine.argv)
    changes: list[str] = []
    for flag in map(_with_absolute_path, _flags(caps, settings)):
        theirs = user.replacing(caps, flag[0])
        if theirs is None:
            argv += flag
            continue
        if list(theirs) != flag:
            changes.append(f"{' '.join(flag)} → {' '.join(theirs)}")
    if (unused := _unused_draft(settings.speculation, user)) is not None:
        changes.append(f"-md {unused} stays: llama-server may load it, but drafts nothing with it")
    argv += user.argv  # variables come first, so that arguments win
    dropped = tuple(f"{n} ({why})" if why else n for n, why in user.ignored.items())
    env = {k: v for k, v in os.environ.items() if not k.startswith("LLAMA_ARG_")}
    if settings.api_key:
        env[API_KEY_ENV] = settings.api_key
    env.update(user.secrets)
    return LaunchCommand(tuple(argv), env, tuple(changes), dropped)


def _unused_draft(spec: Speculation | None, user: LaunchOptions) -> str | None:
    """The draft that the user set and that no method uses."""
    uses_none = spec is None or spec.draft is None
    return user.value("-md") if uses_none and user.value("--spec-type") is None else None


def unsupported_reason(caps: Capabilities, method: str) -> str:
    """Why this build cannot run `method`; "" when it can."""
    if caps.flavour == IK_LLAMA:
        return ik_llama.unsupported(caps, method)
    if method == "draft-simple":
        if "draft-simple" in caps.spec_types or "draft" in caps.spec_types:
            return ""
        # Before --spec-type knew drafts, -md alone meant a draft model.
        return "" if caps.find("-md") else f"{caps.label} has no -md option"
    if method == "draft-eagle3" and caps.fact("eagle3_drafts") is Tristate.NO:
        return f"{caps.label} lists draft-eagle3 but cannot run it; it needs build ≥ b9611"
    if method == "draft-mtp" and caps.fact("mtp_cannot_start") is Tristate.YES:
        return f"{caps.label} cannot start MTP models (bug of b10741–b10748); use another build"
    if method in caps.spec_types:
        return ""
    since = SPEC_TYPE_SINCE.get(method)
    needs = f"; it needs build ≥ b{since}" if since else ""
    return f"{caps.label} does not support --spec-type {method}{needs}"


def _flags(caps: Capabilities, s: Settings) -> list[list[str]]:
    flags: list[list[str]] = [["-m", str(s.model)]]
    if s.speculation is not None:
        if caps.flavour == IK_LLAMA:
            flags += ik_llama.flags(caps, s.speculation)
        else:
            flags += _speculation(caps, s.speculation)
    flags.append(["-np", str(s.parallel)])
    # Builds with -kvu but without its negative turned `-np 1` into 4 slots unless
    # -kvu was given (llama.cpp issue 17300).
    if s.parallel == 1 and caps.find("-kvu") and not caps.find("--no-kv-unified"):
        flags.append(["-kvu"])
    flags.append(["-c", str(s.context)])
    flags += [["--host", s.host], ["--port", str(s.port)]]
    flags += [[name] for name in ("--metrics", "--slots") if caps.find(name)]
    # Without a negative it is off by default, and templates that are not built in are rejected.
    if caps.find("--jinja") and not caps.find("--no-jinja"):
        flags.append(["--jinja"])
    if s.fit_target and caps.find("--fit-target"):
        flags.append(["--fit-target", ",".join(map(str, _fit_target(caps, s.fit_target)))])
    if s.cache_ram is not None and caps.find("--cache-ram"):
        flags.append(["--cache-ram", str(s.cache_ram)])
    if s.trace and caps.traces:
        flags.append(["-lv", "4"])
    return flags


def _with_absolute_path(flag: list[str]) -> list[str]:
    """So that the command works in any folder; a file still on the Hub keeps its name."""
    if flag[0] in ("-m", "-md") and (path := Path(flag[1])).exists():
        return [flag[0], str(path.absolute())]
    return flag


def _fit_target(caps: Capabilities, sizes: Sequence[int]) -> Sequence[int]:
    """One number per GPU if the build accepts a list (llama.cpp PR 18679), else the largest."""
    option = caps.find("--fit-target")
    return sizes if option is not None and "," in option.hint else (max(sizes),)


def _speculation(caps: Capabilities, spec: Speculation) -> list[list[str]]:
    types = [t for m in spec.methods if (t := _type_name(caps, m))]
    flags: list[list[str]] = [["--spec-type", ",".join(types)]] if types else []
    if spec.draft is not None:
        flags.append(["-md", str(spec.draft)])
        if spec.draft_layers is not None:
            flags.append(["-ngld", spec.draft_layers])
    if spec.cache_type is not None:
        flags += [[name, spec.cache_type] for name in ("-ctkd", "-ctvd") if caps.find(name)]
    n_max = spec.n_max
    old_ngram = not caps.find("--spec-ngram-simple-size-n")
    if old_ngram and spec.ngram and caps.find("--draft-max") and spec.uses_ngram:
        # p0.3.19 also caps n-gram drafts by --draft-max (server-context.cpp).
        n_max = max(n_max, spec.ngram.m)
    if spec.uses_draft or n_max != spec.n_max:
        flags += _one(caps, n_max, "--spec-draft-n-max", "--draft-max")
    if spec.uses_draft:
        flags += _one(caps, spec.n_min, "--spec-draft-n-min", "--draft-min")
        flags += _one(caps, spec.p_min, "--spec-draft-p-min", "--draft-p-min")
    for method in spec.methods:
        flags += ngram_flags(caps, spec, method)
    return flags


def _type_name(caps: Capabilities, method: str) -> str | None:
    """The method's --spec-type name in this build; None if `-md` alone selects it."""
    if method != "draft-simple" or method in caps.spec_types:
        return method
    return "draft" if "draft" in caps.spec_types else None


def size_options(caps: Capabilities, spec: Speculation) -> list[list[str]]:
    """The options that set the n-gram sizes of `spec`, for use after --."""
    if caps.flavour == IK_LLAMA:  # sizes are part of --spec-type there
        return ik_llama.stages(spec) if spec.uses_ngram and spec.ngram else []
    return [flag for method in spec.methods for flag in ngram_flags(caps, spec, method)]


def ngram_flags(caps: Capabilities, spec: Speculation, method: str) -> list[list[str]]:
    """The n-gram sizes of one of the methods, as this build spells them."""
    sizes = spec.ngram
    if sizes is None or not method.startswith("ngram-"):
        return []
    if method in _NGRAM_SIZED:
        flags = _one(caps, sizes.n, f"--spec-{method}-size-n", "--spec-ngram-size-n")
        flags += _one(caps, sizes.m, f"--spec-{method}-size-m", "--spec-ngram-size-m")
        if method == "ngram-map-k4v":  # the only type that reads it (ngram-map.cpp)
            flags += _one(
                caps, sizes.min_hits, f"--spec-{method}-min-hits", "--spec-ngram-min-hits"
            )
        return flags
    if method == "ngram-mod":
        flags = _one(caps, sizes.n, "--spec-ngram-mod-n-match", "--spec-ngram-size-n")
        flags += _one(caps, sizes.mod_min, "--spec-ngram-mod-n-min")
        flags += _one(caps, sizes.m, "--spec-ngram-mod-n-max")
        return flags
    return []


def _one(caps: Capabilities, value: float, *names: str) -> list[list[str]]:
    name = caps.spelling(*names)
    return [[name, f"{value:g}"]] if name else []


def check_methods(caps: Capabilities, methods: Iterable[str]) -> str:
    """Why this build cannot run these methods together; "" when it can."""
    chosen: Sequence[str] = tuple(methods)
    for method in chosen:
        if reason := unsupported_reason(caps, method):
            return reason
    drafts = [m for m in chosen if m.startswith("draft-")]
    if len(drafts) > 1:
        return f"{' and '.join(drafts)} share one draft context; choose one"
    ngrams = [m for m in chosen if m.startswith("ngram-")]
    if len(ngrams) > 1 and caps.flavour != IK_LLAMA and "draft-simple" not in caps.spec_types:
        return f"{caps.label} supports only one n-gram type at a time"
    return ""
