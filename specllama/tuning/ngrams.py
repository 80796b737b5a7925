"""Replay of every n-gram method and size over known texts. Pure.

N-gram methods only use token ids. At temperature 0 the response does not depend on the drafts, so
one response from a baseline server determines every draft, and how much of it would have been
accepted, without a launch. The rules are those of llama.cpp b11434
(common/speculative.cpp, ngram-map.cpp, ngram-mod.cpp, ngram-cache.cpp), the limits of a
draft those of tools/server/server-context.cpp; tests/test_ngrams.py compares the counts
with a real server's.

Not replayed: several slots (they share ngram-mod's table), responses ended by a stop string (their
continuation is unknown), and targets whose state cannot be truncated (recurrent, hybrid): the
server decodes a partly accepted draft twice and reports one accepted token too many to ngram-map.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from specllama.engine.settings import NgramSizes
from specllama.tuning.ngram_map import MapRule
from specllama.tuning.ngram_rules import CacheRule, ModRule, SimpleRule
from specllama.tuning.ngram_text import Rule, Text

METHODS = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache")

_N = (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24)
_M = (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64)
LONGEST_NGRAM_DRAFT = _M[-1]
_MAP_N = (2, 3, 4, 6, 8, 12, 16, 24)
_MAP_M = (2, 4, 6, 8, 12, 16, 24, 32, 48, 64)


@dataclass(frozen=True)
class KnownText:
    """One request with known token ids. `prompt` as tokenized by the server, with special tokens;
    the first token of `response` came from the prompt. `limit`: token limit of the request, 0 =
    the length of the response. A response shorter than its limit ended with an end-of-generation
    token, which is part of it (return_tokens includes it)."""

    prompt: tuple[int, ...]
    response: tuple[int, ...]
    limit: int = 0

    @cached_property
    def text(self) -> Text:
        return Text(tuple(self.prompt) + tuple(self.response))


@dataclass(frozen=True)
class TextReplay:
    """The replay of one request. `steps`: (drafted, accepted) tokens of every step after the
    prompt, in order; drafted 0 = a plain step. `by_ngram`: for each step, whether the n-gram
    method drafted; otherwise any draft is the draft model's. `tokens` of all steps: those of
    the response minus one."""

    steps: tuple[tuple[int, int], ...]
    by_ngram: tuple[bool, ...]
    tokens: int

    @property
    def drafted(self) -> int:
        return sum(d for d, _ in self.steps)

    @property
    def accepted(self) -> int:
        return sum(a for _, a in self.steps)

    @property
    def tau(self) -> float:
        """Tokens per step, plain ones included."""
        return self.tokens / len(self.steps) if self.steps else 1.0


def rule(method: str, sizes: NgramSizes) -> Rule:
    """The speculator of a new server, with the sizes as engine/command.py passes them."""
    if method == "ngram-simple":
        return SimpleRule(sizes.n, sizes.m)
    if method in ("ngram-map-k", "ngram-map-k4v"):
        return MapRule(sizes.n, sizes.m, method == "ngram-map-k4v", sizes.min_hits)
    if method == "ngram-mod":
        return ModRule(sizes.n, sizes.mod_min, sizes.m)
    if method == "ngram-cache":
        return CacheRule()
    raise ValueError(f"{method} is not an n-gram method")


def replay(
    method: str, sizes: NgramSizes, texts: Sequence[KnownText], context: int = 0
) -> tuple[TextReplay, ...]:
    """One server with one slot that processes the texts in order. `context`: tokens of the slot,
    0 = unlimited."""
    return replay_rule(rule(method, sizes), texts, context)


def replay_rule(
    speculator: Rule, texts: Sequence[KnownText], context: int = 0
) -> tuple[TextReplay, ...]:
    """The same for a given rule."""
    return tuple(_replay(speculator, text, context, (), 0) for text in texts)


class _Nothing:
    """A server without an n-gram method."""

    def begin(self, text: Text, length: int) -> None:
        pass

    def draft(self, length: int) -> Sequence[int]:
        return ()

    def accept(self, accepted: int) -> None:
        pass


def replay_draft(
    texts: Sequence[KnownText], agrees: Sequence[Sequence[bool]], k: int, context: int = 0
) -> tuple[TextReplay, ...]:
    """A draft model alone, as in `replay_combined`."""
    pairs = zip(texts, agrees, strict=True)
    return tuple(_replay(_Nothing(), text, context, bits, k) for text, bits in pairs)


def replay_combined(
    method: str,
    sizes: NgramSizes,
    texts: Sequence[KnownText],
    agrees: Sequence[Sequence[bool]],
    k: int,
    context: int = 0,
) -> tuple[TextReplay, ...]:
    """`method` together with a draft model that drafts `k` tokens. `agrees[i][j]`: whether it
    guesses `texts[i].response[j + 1]` from what stands before it. llama.cpp asks the n-gram
    types first, whatever the order of --spec-type, and takes the first draft there is
    (common_speculative_init, common_speculative_draft)."""
    speculator = rule(method, sizes)
    pairs = zip(texts, agrees, strict=True)
    return tuple(_replay(speculator, text, context, bits, k) for text, bits in pairs)


def grid(method: str) -> tuple[NgramSizes, ...]:
    """The sizes worth predicting. ngram-cache has none: a single entry stands for it."""
    if method == "ngram-simple":  # it drops copies shorter than n: with m < n, all of them
        return tuple(NgramSizes(n, m) for n in _N for m in _M if m >= n)
    if method == "ngram-map-k":
        return tuple(NgramSizes(n, m) for n in _MAP_N for m in _MAP_M)
    if method == "ngram-map-k4v":
        return tuple(NgramSizes(n, m, h) for n in _MAP_N for m in _MAP_M for h in (1, 2))
    if method == "ngram-mod":  # llama.cpp warns below 16 and works (b11434)
        return tuple(NgramSizes(n, m) for n in _MAP_N for m in _M)
    if method == "ngram-cache":  # up to 4 tokens looked up, 8 drafted: no flag changes them
        return (NgramSizes(4, 8),)
    raise ValueError(f"{method} is not an n-gram method")


def _replay(
    speculator: Rule, known: KnownText, context: int, agrees: Sequence[bool], k: int
) -> TextReplay:
    tokens, start = known.text.tokens, len(known.prompt)
    end = len(tokens)
    limit = start + (known.limit or len(known.response))
    speculator.begin(known.text, start)
    steps, by_ngram = [], []
    at = start + 1  # the response's first token comes from the prompt's batch
    while at < end:
        # get_n_draft_max: the tokens left to generate less the one that verification adds,
        # and two tokens of the context; when nothing is left, no rule is called.
        room = limit - at - 1
        if context:
            room = min(room, context - (at - 1) - 2)
        drafted = run = 0
        ngram = False
        if room > 0:
            draft = speculator.draft(at - 1)
            if draft:
                ngram = True
                drafted = min(len(draft), room)
                most = min(drafted, end - at)
                while run < most and draft[run] == tokens[at + run]:
                    run += 1
            elif k:
                drafted = min(k, room)
                bits = agrees[at - start - 1 : at - start - 1 + drafted]
                run = next((i for i, bit in enumerate(bits) if not bit), len(bits))
        # An accepted end of generation ends the step: it is then the token that
        # verification adds, unless it is the draft's last (common_sampler_sample_and_accept_n).
        accepted = run - 1 if at + run == end and run < drafted else run
        if ngram:
            speculator.accept(accepted)
        steps.append((drafted, accepted))
        by_ngram.append(ngram)
        at += accepted + 1
    return TextReplay(tuple(steps), tuple(by_ngram), max(0, len(known.response) - 1))
