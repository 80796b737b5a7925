"""Workload profiles: what a user does with the model, as data.

`NAME.toml` has the settings, `prompts/NAME.txt` the prompts, separated by lines of `=====`, or
`prompts/NAME.jsonl`, one per line as for --prompts. The shipped ones are in `profiles/`; a user's
own, in the folder `profiles` next to the config file, take precedence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from specllama import config
from specllama.config import read_toml
from specllama.engine.client import Prompt
from specllama.engine.settings import MAX_DRAFT_TOKENS, NgramSizes
from specllama.errors import UsageError
from specllama.fields import Fields
from specllama.prompts import read_prompts
from specllama.resources import profiles_dir

METHODS = (
    "draft-mtp draft-simple draft-eagle3 draft-dflash draft-dspark "
    "ngram-simple ngram-map-k ngram-map-k4v ngram-mod ngram-cache"
).split()
_KEYS = ("title", "methods", "sampling", "ngram", "draft", "thinking", "max_tokens", "acceptance")
_OLD_KEY = "answer"  # for max_tokens, in profiles made by 0.1.0
WARN_UNDER, OFF_UNDER = 0.5, 0.4
DEFAULT_TOKENS = 192  # tokens; a longer response shows nothing new
MAX_TOKENS = 100_000  # tokens; more is a typo
MAX_NGRAM = 1024  # tokens: llama.cpp's own limit for its sizes


@dataclass(frozen=True)
class Workload:
    """One profile, or a mix of several. `methods` in the order they are tried; `sampling`: the
    request fields besides the prompt; `n_max` tokens per draft; `max_tokens`: the maximum tokens of a
    measured response; `warn_under`, `off_under`: α of real requests below which there is a
    warning, and below which the draft is better off. `mixed`: what a mix takes from the first."""

    name: str
    title: str
    methods: tuple[str, ...]
    sampling: Mapping[str, Any]
    ngram: NgramSizes
    n_max: int
    p_min: float
    prompts: tuple[Prompt, ...]
    max_tokens: int = DEFAULT_TOKENS
    mixed: str = ""
    warn_under: float = WARN_UNDER
    off_under: float = OFF_UNDER


def user_profiles_dir() -> Path:
    """The folder of the user's own profiles; it may not exist."""
    return config.path().parent / "profiles"


def names() -> list[str]:
    """All profiles, including the user's own."""
    return sorted(
        {p.stem for folder in (profiles_dir(), user_profiles_dir()) for p in folder.glob("*.toml")}
    )


def profile_file(name: str) -> Path:
    """The settings file of a profile. Raises UsageError if there is none of that name."""
    if name in (known := names()):
        own = user_profiles_dir() / f"{name}.toml"
        return own if own.is_file() else profiles_dir() / f"{name}.toml"
    raise UsageError(f"no workload called {name!r}", f"Workloads: {', '.join(known)}")


def load_workload(name: str) -> Workload:
    """The profile `name`, or a mix of several separated by commas. Raises UsageError for a missing
    or invalid one."""
    parts = list(dict.fromkeys(p.strip() for p in name.split(",")))
    if len(parts) > 1 and "" in parts:
        side = "before" if name.lstrip().startswith(",") else "after"
        raise UsageError(f"--workload {name}: the name {side} the comma is empty")
    return mix([_load(p) for p in parts]) if len(parts) > 1 else _load(parts[0])


def mix(each: Sequence[Workload]) -> Workload:
    """One workload of several: their prompts alternate. A server has one set of settings and a search
    one temperature: those of the first. Methods that only the others use are tried last."""
    first = each[0]
    turns = zip_longest(*(w.prompts for w in each))
    prompts = tuple(p for turn in turns for p in turn if p is not None)
    temperature = first.sampling.get("temperature")
    sampling = f"temperature {temperature:g}" if temperature is not None else "temperature"
    return Workload(
        name=",".join(w.name for w in each),
        title="; ".join(w.title for w in each),
        methods=tuple(dict.fromkeys(m for w in each for m in w.methods)),
        sampling=first.sampling,
        ngram=first.ngram,
        n_max=first.n_max,
        p_min=first.p_min,
        prompts=prompts,
        max_tokens=max(w.max_tokens for w in each),
        warn_under=first.warn_under,
        off_under=first.off_under,
        mixed=f"prompts alternate; starts with {first.name}'s {sampling}, K={first.n_max} and n-gram "
        f"sizes {first.ngram.n} and {first.ngram.m}",
    )


def _load(name: str) -> Workload:
    file = profile_file(name)
    fields = Fields(file, read_toml(file))
    fields.check_known((*_KEYS, _OLD_KEY))
    prompts = _prompts(file.parent / "prompts", name)
    if not prompts:
        raise UsageError(f"{file}: no prompts in {file.parent / 'prompts' / name}.txt")
    ngram, draft = fields.subtable("ngram"), fields.subtable("draft")
    ngram.check_known(("n", "m", "min_hits"))
    draft.check_known(("n_max", "p_min"))
    acceptance = fields.subtable("acceptance", needed=False)
    acceptance.check_known(("warn", "off"))
    warn = acceptance.number("warn", 0, 1, default=WARN_UNDER)
    return Workload(
        name=name,
        title=fields.text("title"),
        methods=fields.word_list("methods", METHODS),
        sampling=_sampling(fields),
        ngram=NgramSizes(
            ngram.integer("n", 1, MAX_NGRAM),
            ngram.integer("m", 1, MAX_NGRAM),
            ngram.integer("min_hits", 1, MAX_NGRAM, default=1),
        ),
        n_max=draft.integer("n_max", 1, MAX_DRAFT_TOKENS),
        p_min=draft.number("p_min", 0, 1),
        prompts=prompts,
        max_tokens=fields.integer(
            _OLD_KEY if _OLD_KEY in fields.data else "max_tokens", 1, MAX_TOKENS, DEFAULT_TOKENS
        ),
        warn_under=warn,
        off_under=acceptance.number("off", 0, warn, default=min(warn, OFF_UNDER)),
    )


def _sampling(fields: Fields) -> dict[str, Any]:
    """The request fields besides the prompt."""
    given = fields.subtable("sampling")
    sampling: dict[str, Any] = {name: given.number(name) for name in given.data}
    if "temperature" in sampling:
        given.number("temperature", 0, 2)
    if (thinking := fields.boolean("thinking")) is not None:
        sampling["chat_template_kwargs"] = {"enable_thinking": thinking}
    return sampling


def _prompts(folder: Path, name: str) -> tuple[Prompt, ...]:
    # the second folder: a built-in profile of which only the settings were changed
    folders = (folder, profiles_dir() / "prompts")
    files = [f / f"{name}{end}" for f in folders for end in (".jsonl", ".txt")]
    file = next((f for f in files if f.is_file()), files[1])
    if file.suffix == ".jsonl":
        return read_prompts(file, "prompts in")
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, ValueError) as e:
        reason = getattr(e, "strerror", None) or "not UTF-8 text"
        raise UsageError(f"{file}: cannot be read ({reason})") from None
    return tuple(p.strip("\n") for p in text.split("\n=====\n") if p.strip())
