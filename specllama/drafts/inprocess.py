"""A model in this process, through llama.cpp's C functions (llama-cpp-python): responses,
logits, and timed passes. Requires the extra `llama-cpp-python`."""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specllama.errors import SpecllamaError, install_hint

CONTEXT = 2048  # tokens
_BATCH = 256


class MeasureError(SpecllamaError):
    """Agreement could not be measured."""


class PackageMissing(MeasureError):
    """llama-cpp-python is not installed."""

    exit_code = 2  # as for every missing package


@dataclass(frozen=True)
class Continuation:
    """A prompt and its response as token ids."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]


class Model:
    """A loaded model and its context."""

    def __init__(self, lib: Any, model: Any, ctx: Any) -> None:
        self._lib, self._model, self._ctx = lib, model, ctx
        self._vocab = lib.llama_model_get_vocab(model)
        self._n_vocab = lib.llama_vocab_n_tokens(self._vocab)

    def tokenize(self, text: str) -> list[int]:
        """Token ids with the special tokens that the model adds."""
        raw = text.encode()
        out = (self._lib.llama_token * (len(raw) + 8))()
        n = self._lib.llama_tokenize(self._vocab, raw, len(raw), out, len(out), True, True)
        return [int(t) for t in out[: max(0, n)]]

    def chat_prompt(self, prompt: str) -> str:
        """The prompt as a user message in the model's chat template, if it has one. The
        begin-of-text token is added by `tokenize`."""
        template = self._lib.llama_model_chat_template(self._model, None)
        if not template:
            return prompt
        from llama_cpp.llama_chat_format import Jinja2ChatFormatter

        try:
            formatter = Jinja2ChatFormatter(template.decode(), eos_token="", bos_token="")
            messages: Any = [{"role": "user", "content": prompt}]
            return str(formatter(messages=messages).prompt)
        except Exception as e:  # whatever the template's code raises
            raise MeasureError(f"the model's chat template failed ({e})") from None

    def generate(self, prompt: str, limit: int) -> Continuation:
        """The greedy response, at most `limit` tokens, up to an end-of-generation token."""
        ids = self.tokenize(self.chat_prompt(prompt))[: CONTEXT - limit - 1] or [0]
        out: list[int] = []
        row = self._rows(ids, 0, [len(ids) - 1])[0]
        while len(out) < limit:
            token = int(row.argmax())
            if self._lib.llama_vocab_is_eog(self._vocab, token):
                break
            out.append(token)
            row = self._rows([token], len(ids) + len(out) - 1, [0])[0]
        self.clear()
        return Continuation(tuple(ids), tuple(out))

    def rows(self, response: Continuation) -> Iterator[Any]:
        """The logits that predict each response token except the first, in order."""
        ids = [*response.prompt, *response.tokens]
        first = len(response.prompt)  # its logits predict the second response token
        for at in range(0, len(ids) - 1, _BATCH):
            part = ids[at : min(at + _BATCH, len(ids) - 1)]
            outputs = [i for i in range(len(part)) if at + i >= first]
            yield from self._rows(part, at, outputs)
        self.clear()

    def evaluate(self, ids: Sequence[int], at: int, outputs: int) -> float:
        """ms of one pass over `ids` from position `at`, with the logits of the last `outputs` of
        them; building the batch is not counted."""
        self._lib.llama_synchronize(self._ctx)
        with self._batch(ids, at, range(len(ids) - outputs, len(ids))) as batch:
            start = time.perf_counter()
            self._decode(batch)
            self._lib.llama_synchronize(self._ctx)  # a GPU may still be at work
            return (time.perf_counter() - start) * 1000

    def roll_back(self, at: int) -> bool:
        """Removes all tokens from position `at` on. Returns False, with nothing removed, if the
        model's state does not allow it (recurrent and hybrid models)."""
        memory = self._lib.llama_get_memory(self._ctx)
        return bool(self._lib.llama_memory_seq_rm(memory, 0, at, -1))

    def clear(self) -> None:
        """Clears the context."""
        self._lib.llama_memory_clear(self._lib.llama_get_memory(self._ctx), True)

    def _rows(self, ids: Sequence[int], at: int, outputs: Sequence[int]) -> list[Any]:
        import numpy as np

        out = []
        for start in range(0, len(ids), _BATCH):
            part = ids[start : start + _BATCH]
            in_part = [i - start for i in outputs if start <= i < start + len(part)]
            with self._batch(part, at + start, in_part) as batch:
                self._decode(batch)
                for i in in_part:
                    row = self._lib.llama_get_logits_ith(self._ctx, i)
                    out.append(np.ctypeslib.as_array(row, shape=(self._n_vocab,)).copy())
        return out

    @contextmanager
    def _batch(self, ids: Sequence[int], at: int, outputs: Sequence[int]) -> Iterator[Any]:
        batch = self._lib.llama_batch_init(len(ids), 0, 1)
        try:
            batch.n_tokens = len(ids)
            for i, token in enumerate(ids):
                batch.token[i], batch.pos[i] = token, at + i
                batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
                batch.logits[i] = i in outputs
            yield batch
        finally:
            self._lib.llama_batch_free(batch)

    def _decode(self, batch: Any) -> None:
        if failed := self._lib.llama_decode(self._ctx, batch):
            raise MeasureError(f"llama.cpp could not decode (error {failed})")


def default_threads() -> int:
    """llama-server's default: one thread per physical core (common.cpp). The library's default is
    always 4."""
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
def load_model(path: Path, threads: int | None, context: int = CONTEXT) -> Iterator[Model]:
    """The model, freed on exit; `threads` None = default_threads(). Raises MeasureError if
    llama-cpp-python is missing or cannot load the file."""
    try:
        import llama_cpp as lib
    except ImportError:
        raise PackageMissing(
            "measuring agreement requires llama-cpp-python, which is not installed",
            install_hint("llama-cpp-python"),
        ) from None
    quiet = lib.llama_log_callback(lambda _level, _text, _data: None)
    lib.llama_log_set(quiet, None)
    lib.llama_backend_init()
    model = lib.llama_model_load_from_file(str(path).encode(), lib.llama_model_default_params())
    if not model:
        raise MeasureError(f"llama-cpp-python could not load {path}")
    params = lib.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch = context, _BATCH, _BATCH
    params.n_threads = params.n_threads_batch = threads or default_threads()
    ctx = lib.llama_init_from_model(model, params)
    try:
        if not ctx:
            raise MeasureError(f"llama-cpp-python could not create a context for {path}")
        yield Model(lib, model, ctx)
    finally:
        if ctx:
            lib.llama_free(ctx)
        lib.llama_model_free(model)
