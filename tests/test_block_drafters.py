"""Block drafters (DFlash, DSpark) trained for the tiny target, and invalid variants of them, in
specllama and in a real server."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from specllama.drafts.compat import check_compatibility, longest_draft
from specllama.engine.settings import Settings
from specllama.gguf import read_model
from specllama.gguf.files import read_headers
from specllama.gguf.values import LazyArray
from specllama.planning.feasible import feasible_methods
from specllama.planning.prepare import prepare
from specllama.planning.spec_options import SpeculationOptions
from tests.edited import edited
from tests.reactions import reaction
from tests.support import MODELS, Serve, specllama

TARGET = MODELS / "target.gguf"
KINDS = ("dflash", "dspark")
LONGEST = {
    "dflash": 7,
    "dspark": 8,
}  # with blocks of 8; DSpark also drafts at the last token's position


def test_kind_and_longest_draft_of_block_drafters() -> None:
    for kind in KINDS:
        info = read_model(MODELS / f"{kind}.gguf")
        assert (info.kind, info.faults) == (kind, ())
        assert info.sidecar.target_layers == (1, 2, 3)
        assert longest_draft(f"draft-{kind}", info) == LONGEST[kind]
        assert check_compatibility(read_model(TARGET), info).ok


def test_pick_draft_lists_block_drafters_with_their_method(engine: str) -> None:
    done = specllama("pick-draft", TARGET, "--llama-server", engine, "--json")
    found = {Path(c["draft"]).name: c["method"] for c in json.loads(done.stdout)["candidates"]}
    assert found["dflash.gguf"] == "draft-dflash"
    assert found["dspark.gguf"] == "draft-dspark"


@pytest.mark.parametrize("kind", KINDS)
def test_tuning_tries_lengths_up_to_the_block_size(kind: str) -> None:
    settings = Settings(TARGET, "127.0.0.1", 0, context=1024)
    plan = prepare(settings, SpeculationOptions("code", MODELS / f"{kind}.gguf"), (), "embedded")
    best = feasible_methods(plan)[0]
    assert best.speculation.methods == (f"draft-{kind}",)
    assert (best.max_k, best.one_pass) == (LONGEST[kind], True)
    more = prepare(
        settings, SpeculationOptions("code", MODELS / f"{kind}.gguf", n_max=16), (), "embedded"
    )
    assert more.settings.speculation is not None
    assert more.settings.speculation.n_max == LONGEST[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_serve_drafts_with_a_block_drafter(kind: str, engine: str, tmp_path: Path) -> None:
    args = (TARGET, "--draft", MODELS / f"{kind}.gguf", "--workload", "code")
    with Serve(tmp_path, *args, "--llama-server", engine) as s:
        assert s.info["methods"] == [f"draft-{kind}"]
        assert s.info["speculation"] == "on"
        assert s.info["drafted"] > s.info["accepted"] > 0
        assert 1 <= s.info["n_max"] <= LONGEST[kind]


def without_confidence_head(to: Path, *drop: str) -> Path:
    """A DSpark drafter without a confidence head. Its key says so, unless it is dropped too."""
    fields = {} if drop else {"dflash.has_confidence_head": False}
    dropped = ("conf_proj.weight", "conf_proj.bias", *drop)
    return edited(MODELS / "dspark.gguf", to, fields, dropped)


@pytest.mark.parametrize("drop", [(), ("dflash.has_confidence_head",)])
def test_p_min_is_0_without_a_confidence_head(drop: tuple[str, ...], tmp_path: Path) -> None:
    """The creative workload stops a draft at confidences below 0.4, which such a file cannot compute."""
    draft = without_confidence_head(tmp_path / "d.gguf", *drop)
    args = ("plan", TARGET, "--draft", draft, "-w", "creative", "--format", "json")
    done = specllama(*args, "--llama-server", "embedded")
    command = json.loads(done.stdout)["command"]
    assert command[command.index("--spec-draft-p-min") + 1] == "0"
    assert "it has no confidence head" in done.stderr + done.stdout


def test_a_real_server_does_not_draft_with_p_min_but_no_confidence_head(
    native: Path, tmp_path: Path
) -> None:
    draft, log = without_confidence_head(tmp_path / "d.gguf"), tmp_path / "log"
    p_min = ("--spec-draft-p-min", "0.4")
    assert reaction(native, draft, "draft-dspark", log, more=p_min) == "serves without"
    assert reaction(native, draft, "draft-dspark", log) == "drafts"
    unchanged = MODELS / "dspark.gguf"
    assert reaction(native, unchanged, "draft-dspark", log, more=p_min) == "drafts"


# ---- invalid files ------------------------------------------------------------

Make = Callable[[Path, Path], Path]


def narrower(valid: Path, to: Path) -> Path:
    """The same network with half the width and zero weights."""
    (header,) = read_headers(valid)
    keep = {4096, 640, 1}  # tokens, feed-forward, the confidence
    shapes = {t.name: [n if n in keep else n // 2 for n in t.shape] for t in header.tensors}
    kinds = {t.name: "F32" if min(shapes[t.name]) % 32 else t.kind for t in header.tensors}
    add = {name: (shape, kinds[name]) for name, shape in shapes.items()}
    sizes = ("attention.key_length", "attention.value_length", "rope.dimension_count")
    fields = {f"dflash.{name}": 32 for name in sizes} | {"dflash.embedding_length": 128}
    return edited(valid, to, fields, add=add)


def layers(*ids: int) -> Make:
    return lambda valid, to: edited(valid, to, {"dflash.target_layers": ids})


def without(*names: str) -> Make:
    return lambda valid, to: edited(valid, to, drop=names)


def other_vocabulary(valid: Path, to: Path) -> Path:
    tokens = read_headers(MODELS / "other-vocab.gguf")[0].fields["tokenizer.ggml.tokens"]
    assert isinstance(tokens, LazyArray)
    raw = struct.pack("<IIQ", 9, tokens.kind, tokens.count) + tokens.raw()
    return edited(valid, to, {"tokenizer.ggml.tokens": raw})


INVALID: dict[str, tuple[Make, str, str]] = {
    "of a deeper target": (layers(1, 2, 9), "target layers", "dies at start"),
    "that reads the last layer's output": (
        layers(1, 2, 4), "target layers", "dies at the first request",
    ),
    "that reads two layers": (layers(2, 3), "target layers", "does not load"),
    "of a narrower target": (narrower, "hidden size", "dies at start"),
    "without layers to read": (without("dflash.target_layers"), "key", "does not load"),
    "without a mask token": (
        without("tokenizer.ggml.mask_token_id"), "mask token", "dies at the first request",
    ),
    "without its norm's epsilon": (
        without("dflash.attention.layer_norm_rms_epsilon"), "key", "does not load",
    ),
    "of another vocabulary": (other_vocabulary, "token text", "drafts"),
}  # fmt: skip
INVALID_DSPARK = {
    "without a block size": (without("dflash.block_size"), "block size", "dies at start"),
}
CASES = [(k, what, *case) for k in KINDS for what, case in INVALID.items()]
CASES += [("dspark", what, *case) for what, case in INVALID_DSPARK.items()]
NAMES = [f"{kind} {what}" for kind, what, *_ in CASES]


@pytest.mark.parametrize(("kind", "what", "make", "rule", "_"), CASES, ids=NAMES)
def test_an_invalid_block_drafter_is_rejected_by_its_rule(
    kind: str, what: str, make: Make, rule: str, _: str, tmp_path: Path
) -> None:
    wrong = make(MODELS / f"{kind}.gguf", tmp_path / "wrong.gguf")
    assert check_compatibility(read_model(TARGET), read_model(wrong)).rule == rule


@pytest.mark.parametrize(("kind", "what", "make", "_", "expected"), CASES, ids=NAMES)
def test_how_a_real_server_reacts_to_an_invalid_block_drafter(
    kind: str, what: str, make: Make, _: str, expected: str, native: Path, tmp_path: Path
) -> None:
    wrong = make(MODELS / f"{kind}.gguf", tmp_path / "wrong.gguf")
    assert reaction(native, wrong, f"draft-{kind}", tmp_path / "log") == expected
