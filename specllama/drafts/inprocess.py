"""A model in this process, through llama.cpp's C functions (llama-cpp-python): answers,
logits, and how long passes over it take. Needs the extra `llama-cpp-python`."""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specllama.errors import SpecllamaError

CONTEXT = 2048  # tokens
_BATCH = 256


class MeasureError(SpecllamaError):
    """Agreement cannot be measured here."""


@dataclass(frozen=True)
class Continuation:
    """A text as token ids: the prompt's, and the target's answer to it."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]


class Model:
    """A loaded model and its context."""

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

    def answer(self, prompt: str, limit: int) -> Continuation:
        """The greedy answer, `limit` tokens at most, ended by an end-of-generation token."""
        ids = self.tokenize(self.chat_prompt(prompt))[: CONTEXT - limit - 1] or [0]
        out: list[int] = []
        row = self._rows(ids, 0, [len(ids) - 1])[0]
        while len(out) < limit:
            token = int(row.argmax())
            if self._lib.llama_vocab_is_eog(self._vocab, token):
                break
            out.append(token)
            row = self._rows([token], len(ids) + len(out) - 1, [0])[0]
        self.forget()
        return Continuation(tuple(ids), tuple(out))

    def rows(self, answer: Continuation) -> Iterator[Any]:
        """The logits that predict each answer token but the first, in order."""
        ids = [*answer.prompt, *answer.tokens]
        first = len(answer.prompt)  # its logits predict the second answer token
        for at in range(0, len(ids) - 1, _BATCH):
            part = ids[at : min(at + _BATCH, len(ids) - 1)]
            wanted = [i for i in range(len(part)) if at + i >= first]
            yield from self._rows(part, at, wanted)
        self.forget()

    def evaluate(self, ids: Sequence[int], at: int, outputs: int) -> float:
        """One pass over `ids` from position `at`, with the logits of the last `outputs` of
        them computed. Its time in ms, the making of the batch excepted."""
        self._lib.llama_synchronize(self._ctx)
        with self._batch(ids, at, range(len(ids) - outputs, len(ids))) as batch:
            start = time.perf_counter()
            self._decode(batch)
            self._lib.llama_synchronize(self._ctx)  # a GPU may still be at work
            return (time.perf_counter() - start) * 1000

    def take_back(self, at: int) -> bool:
        """Removes what was evaluated from position `at` on. False, with nothing removed,
        where the model's state cannot (recurrent and hybrid models)."""
        memory = self._lib.llama_get_memory(self._ctx)
        return bool(self._lib.llama_memory_seq_rm(memory, 0, at, -1))

    def forget(self) -> None:
        """Back to an empty context."""
        self._lib.llama_memory_clear(self._lib.llama_get_memory(self._ctx), True)

    def _rows(self, ids: Sequence[int], at: int, wanted: Sequence[int]) -> list[Any]:
        import numpy as np

        out = []
        for start in range(0, len(ids), _BATCH):
            part = ids[start : start + _BATCH]
            here = [i - start for i in wanted if start <= i < start + len(part)]
            with self._batch(part, at + start, here) as batch:
                self._decode(batch)
                for i in here:
                    row = self._lib.llama_get_logits_ith(self._ctx, i)
                    out.append(np.ctypeslib.as_array(row, shape=(self._n_vocab,)).copy())
        return out

    @contextmanager
    def _batch(self, ids: Sequence[int], at: int, wanted: Sequence[int]) -> Iterator[Any]:
        batch = self._lib.llama_batch_init(len(ids), 0, 1)
        try:
            batch.n_tokens = len(ids)
            for i, token in enumerate(ids):
                batch.token[i], batch.pos[i] = token, at + i
                batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
                batch.logits[i] = i in wanted
            yield batch
        finally:
            self._lib.llama_batch_free(batch)

    def _decode(self, batch: Any) -> None:
        if failed := self._lib.llama_decode(self._ctx, batch):
            raise MeasureError(f"llama.cpp cannot run the model ({failed})")


def usual_threads() -> int:
    """As many as llama-server takes by default: one per physical core (common.cpp). The
    library's own default is 4, whatever the machine."""
    import psutil

    return int(psutil.cpu_count(logical=False) or os.cpu_count() or 1)


def available() -> bool:
    """Whether llama-cpp-python is installed."""
    return importlib.util.find_spec("llama_cpp") is not None


def offloads() -> bool:
    """Whether the installed llama-cpp-python can use a GPU."""
    import llama_cpp

    return bool(llama_cpp.llama_supports_gpu_offload())


@contextmanager
def loaded(path: Path, threads: int | None, context: int = CONTEXT) -> Iterator[Model]:
    """The model, freed at the end; `threads` None = usual_threads(). Raises MeasureError when
    llama-cpp-python is missing or cannot load the file."""
    try:
        import llama_cpp as lib
    except ImportError:
        raise MeasureError(
            "measuring agreement needs llama-cpp-python, which is not installed",
            "Run `pip install llama-cpp-python`.",
        ) from None
    quiet = lib.llama_log_callback(lambda _level, _text, _data: None)
    lib.llama_log_set(quiet, None)
    lib.llama_backend_init()
    model = lib.llama_model_load_from_file(str(path).encode(), lib.llama_model_default_params())
    if not model:
        raise MeasureError(f"llama-cpp-python cannot load {path}")
    params = lib.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch = context, _BATCH, _BATCH
    params.n_threads = params.n_threads_batch = threads or usual_threads()
    ctx = lib.llama_init_from_model(model, params)
    try:
        if not ctx:
            raise MeasureError(f"llama-cpp-python cannot make a context for {path}")
        yield Model(lib, model, ctx)
    finally:
        if ctx:
            lib.llama_free(ctx)
        lib.llama_model_free(model)
