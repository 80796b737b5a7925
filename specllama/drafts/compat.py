"""Can this file draft for that target? llama.cpp's own rule, run before loading.

`vocabulary_verdict` is `common_speculative_are_compatible` (llama.cpp,
common/speculative.cpp, b9113…b11434): the server itself only logs one line and
serves on without speculation. For sidecars llama.cpp checks nothing or aborts;
`head_verdict` adds what it lacks.
"""

from __future__ import annotations

from dataclasses import dataclass

from specllama.gguf import ModelInfo, Vocabulary

MAX_SIZE_DIFFERENCE = 128  # SPEC_VOCAB_MAX_SIZE_DIFFERENCE
FIRST_CHECKED_ID = 5  # SPEC_VOCAB_CHECK_START_TOKEN_ID


@dataclass(frozen=True)
class Verdict:
    """`ok`, or the `rule` that failed with its `detail` for the user."""

    ok: bool
    rule: str = ""
    detail: str = ""
    token_id: int | None = None


OK = Verdict(True)


def draft_model_verdict(target: ModelInfo, draft: ModelInfo) -> Verdict:
    """Whether `draft` can be used with draft-simple."""
    if draft.kind != "model":
        return Verdict(
            False, "kind", f"{draft.path.name} is a {draft.kind} file, not a whole model"
        )
    return vocabulary_verdict(target, draft)


def head_verdict(target: ModelInfo, head: ModelInfo) -> Verdict:
    """Whether `head` (a head-only MTP file) can be used with draft-mtp.

    The width is a hard assert in llama.cpp (speculative.cpp, n_embd_out); the
    architecture decides the graph; the vocabulary is not checked there at all.
    """
    if head.kind == "mtp-head" and head.architecture != target.architecture:
        return Verdict(
            False,
            "architecture",
            f"the head is for {head.architecture}, the target is {target.architecture}",
        )
    if head.kind == "gemma4-assistant" and target.architecture != "gemma4":
        return Verdict(False, "architecture", "a gemma4-assistant drafts for gemma4 targets only")
    if head.kind == "mtp-head" and head.embedding_length != target.embedding_length:
        return Verdict(
            False,
            "width",
            f"the head's hidden size is {head.embedding_length}, "
            f"the target's {target.embedding_length}",
        )
    return vocabulary_verdict(target, head)


def vocabulary_verdict(target: ModelInfo, draft: ModelInfo) -> Verdict:
    """llama.cpp's vocabulary rule, with the failing part named."""
    a, b = target.vocabulary, draft.vocabulary
    if a is None or b is None:
        missing = target if a is None else draft
        return Verdict(False, "vocabulary missing", f"{missing.path.name} has no tokenizer")
    if a.type != b.type:
        return Verdict(False, "vocabulary type", f"target {a.type}, draft {b.type}")
    for which, adds, ids in (
        ("bos", (a.add_bos, b.add_bos), (a.bos_id, b.bos_id)),
        ("eos", (a.add_eos, b.add_eos), (a.eos_id, b.eos_id)),
    ):
        if adds[0] != adds[1]:
            return Verdict(False, f"add_{which}", f"target {adds[0]}, draft {adds[1]}")
        if adds[0] and ids[0] != ids[1]:
            return Verdict(False, f"{which} id", f"target {ids[0]}, draft {ids[1]}")
    if abs(a.n_tokens - b.n_tokens) > MAX_SIZE_DIFFERENCE:
        return Verdict(
            False,
            "vocabulary size",
            f"target {a.n_tokens} tokens, draft {b.n_tokens}; "
            f"at most {MAX_SIZE_DIFFERENCE} may differ",
        )
    return _tokens_verdict(a, b)


def _tokens_verdict(a: Vocabulary, b: Vocabulary) -> Verdict:
    shared = min(a.n_tokens, b.n_tokens)
    ours, theirs = a.tokens[:shared], b.tokens[:shared]
    if ours == theirs:
        return OK
    for i in range(FIRST_CHECKED_ID, shared):
        if _c_string(ours[i]) != _c_string(theirs[i]):
            return Verdict(
                False,
                "token text",
                f"token {i} is {_show(ours[i])} in the target and {_show(theirs[i])} in the draft",
                token_id=i,
            )
    return OK


def _c_string(token: bytes) -> bytes:
    """llama.cpp compares with strcmp, which ends at a NUL byte."""
    return token.split(b"\0", 1)[0]


def _show(token: bytes) -> str:
    return repr(token.decode("utf-8", "replace"))
