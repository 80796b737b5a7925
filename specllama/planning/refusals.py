"""Options that would make the server exit, rejected before it is launched; and what the user's
options mean for speculation."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator

from specllama.engine.launch_options import LaunchOptions
from specllama.engine.settings import Settings, Speculation
from specllama.errors import UsageError
from specllama.gguf import GgufError, ModelInfo, file_of_kind, read_model
from specllama.planning.choose import Choice
from specllama.planning.files import lora_files, named_files

MAX_SLOTS = 256  # src/llama-cparams.h, LLAMA_MAX_SEQ (b11434)
# Drafts that use the target's embedding, output or KV cache.
_BORROWING = {"draft-mtp", "draft-eagle3", "draft-dflash", "draft-dspark"}
_BATCH = 2048  # llama.cpp's default of -b
# With one of these the server answers embeddings only: nothing is generated.
_EMBEDDING = ("--embedding", "--embeddings", "--reranking", "--rerank")


def check_launch(settings: Settings, user: LaunchOptions) -> None:
    """Raises UsageError for options that llama-server would not start with."""
    for what, host in (("--host", settings.host), ("--host after --", user.value("--host"))):
        if host is not None and not host.strip():
            raise UsageError(
                f"{what} is empty", "Set an address, such as 127.0.0.1 for this machine only."
            )
    if settings.parallel > MAX_SLOTS:
        raise UsageError(
            f"--parallel {settings.parallel}: llama.cpp supports at most {MAX_SLOTS} slots"
        )
    for name in ("--batch-size", "--ubatch-size"):
        text = user.value(name)
        if text is not None and (
            not re.fullmatch(r"\d{1,9}", text) or int(text) < (name == "--batch-size")
        ):
            raise UsageError(f"{name} {text}: must be a number of tokens")
    for name, file in named_files(user):
        if not os.path.isfile(file):
            raise UsageError(f"{name} {file}: there is no such file")
    _check_adapters(user)


def _check_adapters(user: LaunchOptions) -> None:
    for file in lora_files(user):
        try:
            kind = read_model(file).kind
        except GgufError as e:
            raise UsageError(f"--lora: {e.message}", e.hint) from None
        if kind != "adapter":
            raise UsageError(f"--lora {file}: {file_of_kind(kind)}, not a LoRA adapter")


def suitable_choice(choice: Choice, user: LaunchOptions, slots: int) -> Choice:
    """The choice, off where nothing is generated. Raises UsageError if the user's batch is too
    small for a draft: the server would abort at its own check (server-context.cpp,
    "batch must be large enough to hold the sampled and draft tokens")."""
    spec = choice.speculation
    if spec is None:
        return choice
    for name in _EMBEDDING:
        if user.on(name):
            why = f"{name}: an embedding server has nothing to draft"
            return Choice(None, why, choice.rejected)
    needed = slots * (max_drafted(spec) + 1)
    if (have := batch_size(user)) < needed:
        raise UsageError(
            f"-b {have} is too small: {slots} {'slots verify' if slots > 1 else 'slot verifies'} up to "
            f"{needed} tokens in one step",
            "Leave out -b, or draft fewer tokens (--n-max, or n-gram sizes after --).",
        )
    return choice


def batch_size(user: LaunchOptions) -> int:
    """Tokens of the user's -b, or llama.cpp's default."""
    return int(user.value("--batch-size") or _BATCH)


def max_drafted(spec: Speculation) -> int:
    """The most tokens that one step drafts."""
    longest = spec.n_max if spec.uses_draft else 0
    return max(longest, spec.ngram.m if spec.uses_ngram and spec.ngram is not None else 0)


def crash_risks(methods: Iterable[str], user: LaunchOptions) -> Iterator[tuple[str, str, str]]:
    """(option, what happened, what to do) for options that crashed servers with these methods."""
    if any(m.startswith("ngram-") for m in methods) and user.on("--context-shift"):
        why = "n-gram methods with --context-shift have crashed servers (llama.cpp issue 21815)"
        yield "--context-shift", why, "leave it out"
    split = user.value("--split-mode")
    if split in ("row", "tensor") and _BORROWING & set(methods):
        why = (
            f"-sm {split} with a draft that shares the target's weights has crashed servers (llama.cpp "
            "issues 26475, 27833)"
        )
        yield "--split-mode", why, "use -sm layer"


LOGPROBS_NOTE = (
    "logprobs (n_probs) of tokens from a verify step are returned as 0.0 (seen on b11549)"
)


def limit_notes(
    target: ModelInfo, choice: Choice, user: LaunchOptions, slot_context: int
) -> Iterator[str]:
    """What a user should know about the speculation that is on. `slot_context` in tokens."""
    spec, draft = choice.speculation, choice.draft
    if spec is None:
        return
    yield LOGPROBS_NOTE
    yield from (f"{why}: {advice}" for _, why, advice in crash_risks(spec.methods, user))
    cache = spec.cache_type or "f16"
    if spec.uses_draft and cache not in ("f16", "bf16", "f32"):
        yield f"a {cache} draft KV cache can halve α, or drop it to zero (llama.cpp issue 25725)"
    own = draft.context_length if draft is not None and draft.kind == "model" else None
    context = slot_context or target.context_length or 0
    if draft is not None and own and own < context:
        yield (
            f"{draft.title} was trained on {own:,} tokens, but the context is {context:,}: few of "
            f"its drafts are accepted beyond {own:,}"
        )
    if lora_files(user) and spec.uses_draft:
        yield "the LoRA changes the target's output but not the draft's: α may drop"
