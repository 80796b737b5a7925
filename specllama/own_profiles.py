"""A profile made from the user's own prompts: two files in the user's folder, meant to be edited."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import median, quantiles

from specllama.errors import SpecllamaError, UsageError
from specllama.prompts import (
    MAX_PROMPTS,
    PromptRecord,
    as_record,
    as_text,
    file_lines,
    read_records,
)
from specllama.resources import profiles_dir
from specllama.storage import strict_json, write_atomically
from specllama.workloads import Workload, load_workload, names, user_profiles_dir

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")
# Windows device names, with any extension: such a file could not be copied there.
_WINDOWS_DEVICES = re.compile(r"con|prn|aux|nul|(com|lpt)[0-9]")
_TEXTS, _LINES = (".txt", ".md"), ".jsonl"
_MAX_BYTES = 4 * 2**20  # of a file that is one prompt
_CHARS_PER_TOKEN = 4  # approximately
_MIN_TOKENS, _MAX_TOKENS = 24, 512  # tokens worth measuring


@dataclass(frozen=True)
class ProfileValue:
    """A value of a new profile, and where it comes from."""

    value: float
    source: str


@dataclass(frozen=True)
class NewProfile:
    """A new profile. `sizes`: characters of each prompt; `overrides`: there is a built-in one of that
    name."""

    file: Path
    prompts: Path
    sizes: tuple[int, ...]
    temperature: ProfileValue
    max_tokens: ProfileValue
    overrides: bool = False


def create_profile(name: str, source: Path | None, like: str | None = None) -> NewProfile:
    """Writes the profile `name`: the prompts of `source` (a file as for --prompts, or a folder of
    such files and of texts, one prompt each), or those of the profile `like`. The settings are
    those of `like`, overridden by the records; `like` None = the built-in profile of that name,
    which the new one overrides, else chat. Overriding needs one of the two.

    Raises UsageError for an invalid or existing name and for a source without prompts;
    SpecllamaError if the files cannot be written.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} is not a valid profile name",
            "Use up to 40 lowercase letters, digits, - and _, starting with a letter or digit.",
        )
    if _WINDOWS_DEVICES.fullmatch(name):
        raise UsageError(
            f"{name!r} cannot be a profile name: Windows reserves it for a device",
            "Choose another name.",
        )
    built_in = (profiles_dir() / f"{name}.toml").is_file()
    own = (
        user_profiles_dir() / f"{name}.toml",
        user_profiles_dir() / "prompts" / f"{name}{_LINES}",
    )
    if exists := next((file for file in own if os.path.lexists(file)), None):
        raise UsageError(
            f"profile {name} already exists: {exists}", "Edit or delete it, or choose another name."
        )
    if built_in and source is None and like is None:
        raise UsageError(
            f"profile {name} already exists (built-in)",
            "Choose another name; --from FILE overrides it with your prompts.",
        )
    like = like or (name if built_in else "chat")
    if unknown := {part.strip() for part in like.split(",")} - set(names()):
        raise UsageError(
            f"--like {like}: no profile called {min(unknown)!r}", f"Profiles: {', '.join(names())}."
        )
    like_profile = load_workload(like)
    records = (
        _read(source) if source is not None else [PromptRecord(p) for p in like_profile.prompts]
    )
    profile = NewProfile(
        *own,
        tuple(len(as_text(a.prompt)) for a in records),
        _temperature(records, like_profile, source is not None),
        _max_tokens(records, like_profile, source is not None),
        overrides=built_in,
    )
    try:  # the prompts first: a profile exists once its settings do
        write_atomically(
            profile.prompts, "".join(f"{strict_json(as_record(a.prompt))}\n" for a in records)
        )
        write_atomically(profile.file, _settings(like_profile, profile))
    except OSError as e:
        raise SpecllamaError(
            f"{e.filename or profile.file}: cannot be written ({e.strerror or e})",
            "Profiles are stored next to the config file; `specllama doctor` shows where.",
        ) from None
    return profile


def _read(source: Path) -> Sequence[PromptRecord]:
    if not os.path.isdir(source):  # which never raises
        return read_records(source, "--from")
    found = list(islice(_in_folder(source), MAX_PROMPTS))
    if not found:
        raise UsageError(
            f"--from {source}: no prompts found",
            f"In a folder, each {' or '.join(_TEXTS)} file is one prompt; {_LINES} files have one per line.",
        )
    return found


def _in_folder(folder: Path) -> Iterator[PromptRecord]:
    for file in sorted(p for p in folder.iterdir() if p.is_file() and p.name[0] != "."):
        if file.suffix.lower() == _LINES:
            yield from read_records(file, "--from")
        elif file.suffix.lower() in _TEXTS:
            if file.stat().st_size > _MAX_BYTES:
                raise UsageError(
                    f"--from {file}: too large for a prompt (over {_MAX_BYTES >> 20} MiB)"
                )
            text = "\n".join(line for _, line in file_lines(file, "--from")).strip("\n")
            if text.strip():
                yield PromptRecord(text)


def _temperature(
    records: Sequence[PromptRecord], like_profile: Workload, from_records: bool
) -> ProfileValue:
    temperatures = [a.temperature for a in records if a.temperature is not None]
    if temperatures:
        return ProfileValue(
            median(temperatures), f"the median of {_count(len(temperatures), 'record')}"
        )
    return ProfileValue(
        like_profile.sampling.get("temperature", 0.8),
        f"from {like_profile.name}{': no record sets one' if from_records else ''}",
    )


def _max_tokens(
    records: Sequence[PromptRecord], like_profile: Workload, from_records: bool
) -> ProfileValue:
    """The response length that three out of four do not exceed."""
    known = [len(a.response) / _CHARS_PER_TOKEN if a.response else a.max_tokens for a in records]
    lengths = [x for x in known if x]
    if not lengths:
        return ProfileValue(
            like_profile.max_tokens,
            f"from {like_profile.name}{': no record has a response' if from_records else ''}",
        )
    most = quantiles(lengths, n=4, method="inclusive")[2] if len(lengths) > 1 else lengths[0]
    tokens = round(min(_MAX_TOKENS, max(_MIN_TOKENS, most)))
    return ProfileValue(tokens, f"from the responses of {_count(len(lengths), 'record')}")


def _count(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def _settings(like_profile: Workload, profile: NewProfile) -> str:
    """The TOML, in the style of the shipped ones."""
    sampling = {**like_profile.sampling, "temperature": profile.temperature.value}
    switch = sampling.pop("chat_template_kwargs", None)
    lines = [
        f"# Initial settings from {like_profile.name}; measured results take precedence.",
        'title = "Your own prompts"',
        "# in the order they are tried",
        f"methods = {json.dumps(like_profile.methods)}",
        f"max_tokens = {profile.max_tokens.value:.0f} # max tokens of a measured response",
    ]
    if switch is not None:
        lines.append(f"thinking = {json.dumps(switch['enable_thinking'])}")
    lines += ["", "[sampling]", *(f"{k} = {v}" for k, v in sampling.items())]
    n = like_profile.ngram
    lines += ["", "[ngram] # tokens looked up, tokens drafted", f"n = {n.n}", f"m = {n.m}"]
    lines += [f"min_hits = {n.min_hits}"]
    lines += ["", "[draft] # tokens per draft, minimum probability of a drafted token"]
    lines += [f"n_max = {like_profile.n_max}", f"p_min = {like_profile.p_min}"]
    return "\n".join(lines) + "\n"
