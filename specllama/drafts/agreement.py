"""How often a draft says what the target says, in process, with llama-cpp-python.

The target answers the prompts (or a text is given); then each draft and the target are
run over that text once, one model in memory at a time, and compared token by token.
Needs the extra `llama-cpp-python`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specllama.errors import SpecllamaError

TEMPERATURES = (0.4, 0.8, 1.2)
ANSWER_TOKENS = 128
_BATCH = 256
_CONTEXT = 2048


class MeasureError(SpecllamaError):
    """Agreement cannot be measured here."""


@dataclass(frozen=True)
class Answer:
    """A text as token ids: the prompt's, and the target's answer to it."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Agreement:
    """Of one draft, per answer and position (the first token excepted): whether the draft's
    most likely token is the target's, and the target's probability of the draft's token at
    each of TEMPERATURES."""

    agrees: tuple[tuple[bool, ...], ...]
    probability: dict[float, tuple[tuple[float, ...], ...]]


def measure(
    target: Path, drafts: Sequence[Path], prompts: Sequence[str], threads: int | None = None
) -> tuple[list[Answer], dict[Path, Agreement]]:
    """The target's own answers, and each draft's agreement with them.
    Raises MeasureError when llama-cpp-python is missing or cannot load a file."""
    with _loaded(target, threads) as model:
        answers = [model.answer(prompt, ANSWER_TOKENS) for prompt in prompts]
    return answers, compare(target, drafts, answers, threads)


def measure_text(
    target: Path, drafts: Sequence[Path], text: str, threads: int | None = None
) -> tuple[list[Answer], dict[Path, Agreement]]:
    """As `measure`, on given text in place of the target's answers."""
    with _loaded(target, threads) as model:
        tokens = model.tokenize(text)
    size = _CONTEXT // 2
    answers = [
        Answer((tokens[at],), tuple(tokens[at + 1 : at + size]))
        for at in range(0, max(1, len(tokens) - 8), size)
        if len(tokens) > at + 8
    ]
    if not answers:
        raise MeasureError("the text is too short to compare on", "Give at least a few sentences.")
    return answers, compare(target, drafts, answers, threads)


def compare(
    target: Path, drafts: Sequence[Path], answers: Sequence[Answer], threads: int | None = None
) -> dict[Path, Agreement]:
    """Each draft's agreement on `answers`."""
    guesses: dict[Path, list[list[int]]] = {}
    for draft in drafts:
        with _loaded(draft, threads) as model:
            guesses[draft] = [[int(row.argmax()) for row in model.rows(a)] for a in answers]
    agrees: dict[Path, list[tuple[bool, ...]]] = {d: [] for d in drafts}
    chances: dict[Path, dict[float, list[tuple[float, ...]]]] = {
        d: {t: [] for t in TEMPERATURES} for d in drafts
    }
    with _loaded(target, threads) as model:
        for i, answer in enumerate(answers):
            best: list[int] = []
            p: dict[Path, dict[float, list[float]]] = {
                d: {t: [] for t in TEMPERATURES} for d in drafts
            }
            for j, row in enumerate(model.rows(answer)):
                best.append(int(row.argmax()))
                for d in drafts:
                    for t in TEMPERATURES:
                        p[d][t].append(_probability(row, guesses[d][i][j], t))
            for d in drafts:
                agrees[d].append(tuple(a == b for a, b in zip(best, guesses[d][i], strict=True)))
                for t in TEMPERATURES:
                    chances[d][t].append(tuple(p[d][t]))
    return {
        d: Agreement(tuple(agrees[d]), {t: tuple(chances[d][t]) for t in TEMPERATURES})
        for d in drafts
    }


def _probability(row: Any, token: int, temperature: float) -> float:
    """Softmax at a temperature, of one token. The draft's vocabulary may be the longer
    one (by up to 128 tokens): what the target does not have, it never accepts."""
    import numpy as np

    if token >= len(row):
        return 0.0

    scaled = (row - row.max()) / temperature
    return float(math.exp(scaled[token]) / np.exp(scaled).sum())


class _Model:
    """A loaded model and its context, through llama.cpp's C functions."""

    def __init__(self, lib: Any, model: Any, ctx: Any) -> None:
        self._lib, self._model, self._ctx = lib, model, ctx
        self._vocab = lib.llama_model_get_vocab(model)
        self._n_vocab = lib.llama_vocab_n_tokens(self._vocab)

    def tokenize(self, text: str) -> list[int]:
        """Token ids with the special tokens the model adds, cut to the context."""
        raw = text.encode()
        out = (self._lib.llama_token * (len(raw) + 8))()
        n = self._lib.llama_tokenize(self._vocab, raw, len(raw), out, len(out), True, True)
        return [int(t) for t in out[: max(0, n)]]

    def chat_prompt(self, prompt: str) -> str:
        """The prompt as a user's message in the model's chat template, if it has one. The
        begin-of-text token is left to `tokenize`, so that it stands there once."""
        template = self._lib.llama_model_chat_template(self._model, None)
        if not template:
            return prompt
        from llama_cpp.llama_chat_format import Jinja2ChatFormatter

        try:
            formatter = Jinja2ChatFormatter(template.decode(), eos_token="", bos_token="")
            messages: Any = [{"role": "user", "content": prompt}]
            return str(formatter(messages=messages).prompt)
        except Exception as e:  # any error of the template's own code
            raise MeasureError(f"the model's chat template fails here ({e})") from None

    def answer(self, prompt: str, limit: int) -> Answer:
        """The greedy answer, `limit` tokens at most, ended by an end-of-generation token."""
        ids = self.tokenize(self.chat_prompt(prompt))[: _CONTEXT - limit - 1] or [0]
        out: list[int] = []
        row = self._decode(ids, 0, [len(ids) - 1])[0]
        while len(out) < limit:
            token = int(row.argmax())
            if self._lib.llama_vocab_is_eog(self._vocab, token):
                break
            out.append(token)
            row = self._decode([token], len(ids) + len(out) - 1, [0])[0]
        self._forget()
        return Answer(tuple(ids), tuple(out))

    def rows(self, answer: Answer) -> Iterator[Any]:
        """The logits that predict each answer token but the first, in order."""
        ids = [*answer.prompt, *answer.tokens]
        first = len(answer.prompt)  # its logits predict the second answer token
        for at in range(0, len(ids) - 1, _BATCH):
            part = ids[at : min(at + _BATCH, len(ids) - 1)]
            wanted = [i for i in range(len(part)) if at + i >= first]
            yield from self._decode(part, at, wanted)
        self._forget()

    def _decode(self, ids: Sequence[int], at: int, wanted: Sequence[int]) -> list[Any]:
        import numpy as np

        lib, out = self._lib, []
        for start in range(0, len(ids), _BATCH):
            part = ids[start : start + _BATCH]
            batch = lib.llama_batch_init(len(part), 0, 1)
            batch.n_tokens = len(part)
            for i, token in enumerate(part):
                batch.token[i], batch.pos[i] = token, at + start + i
                batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
                batch.logits[i] = start + i in wanted
            failed = lib.llama_decode(self._ctx, batch)
            if failed:
                lib.llama_batch_free(batch)
                raise MeasureError(f"llama.cpp cannot run the model ({failed})")
            for i in range(len(part)):
                if start + i in wanted:
                    row = lib.llama_get_logits_ith(self._ctx, i)
                    out.append(np.ctypeslib.as_array(row, shape=(self._n_vocab,)).copy())
            lib.llama_batch_free(batch)
        return out

    def _forget(self) -> None:
        self._lib.llama_memory_clear(self._lib.llama_get_memory(self._ctx), True)


@contextmanager
def _loaded(path: Path, threads: int | None) -> Iterator[_Model]:
    try:
        import llama_cpp as lib
    except ImportError:
        raise MeasureError(
            "measuring agreement needs llama-cpp-python, which is not installed",
            "Run `pip install 'specllama[llama-cpp-python]'`.",
        ) from None
    quiet = lib.llama_log_callback(lambda _level, _text, _data: None)
    lib.llama_log_set(quiet, None)
    lib.llama_backend_init()
    model = lib.llama_model_load_from_file(str(path).encode(), lib.llama_model_default_params())
    if not model:
        raise MeasureError(f"llama-cpp-python cannot load {path}")
    params = lib.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch = _CONTEXT, _BATCH, _BATCH
    if threads:
        params.n_threads = params.n_threads_batch = threads
    ctx = lib.llama_init_from_model(model, params)
    try:
        if not ctx:
            raise MeasureError(f"llama-cpp-python cannot make a context for {path}")
        yield _Model(lib, model, ctx)
    finally:
        if ctx:
            lib.llama_free(ctx)
        lib.llama_model_free(model)
