"""EAGLE-3: a head trained for the tiny target, and invalid variants of it, in specllama and in a
real server."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from specllama.drafts.compat import check_compatibility
from specllama.gguf import read_model
from specllama.gguf.files import read_headers
from tests.edited import edited
from tests.reactions import reaction
from tests.support import MODELS, Serve, specllama

TARGET, HEAD = MODELS / "target.gguf", MODELS / "eagle3.gguf"

Make = Callable[[Path], Path]


def layers(*ids: int) -> Make:
    return lambda to: edited(HEAD, to, {"eagle3.target_layers": ids})


def without(*names: str) -> Make:
    return lambda to: edited(HEAD, to, drop=names)


def narrower(to: Path) -> Path:
    """A head for a target of half the width; its own layers keep their width."""
    fc = {"fc.weight": ((3 * 128, 256), "F32")}
    return edited(HEAD, to, {"eagle3.target_hidden_size": 128}, add=fc)


def with_tokens(*ids: int) -> Make:
    """A head that drafts only these tokens; its output matrix has the target's rows for them."""

    def make(to: Path) -> Path:
        (header,) = read_headers(TARGET)
        table = next(t for t in header.tensors if t.name == "token_embd.weight")
        row = (table.nbytes or 0) // table.shape[1]
        start = header.data_offset + table.offset
        raw = TARGET.read_bytes()[start : start + (table.nbytes or 0)]
        rows = b"".join(raw[i * row : (i + 1) * row] for i in ids if i * row < len(raw))
        rows = rows.ljust(len(ids) * row, b"\0")
        return edited(
            HEAD,
            to,
            add={"output.weight": ((256, len(ids)), table.kind), "d2t": ((len(ids),), "I64")},
            data={"output.weight": rows, "d2t": struct.pack(f"<{len(ids)}q", *ids)},
        )

    return make


# The fault: how to make it, the rule that rejects it, the reaction of a real server.
INVALID: dict[str, tuple[Make, str, str]] = {
    "of a deeper target": (layers(1, 2, 9), "target layers", "dies at start"),
    "that reads the last layer's output": (layers(1, 2, 4), "target layers", "drafts"),
    "that reads two layers": (layers(2, 3), "target layers", "does not load"),
    "of a narrower target": (narrower, "hidden size", "dies at the first request"),
    "without layers to read": (without("eagle3.target_layers"), "key", "does not load"),
    "without a hidden size": (without("eagle3.target_hidden_size"), "key", "does not load"),
    "without an epsilon": (
        without("eagle3.attention.layer_norm_rms_epsilon"),
        "key",
        "does not load",
    ),
    "of a token after the last": (
        with_tokens(*range(1023), 4096),
        "d2t",
        "dies at start",
    ),
    "of a token before the first": (
        with_tokens(*range(1023), -1),
        "d2t",
        "dies at start",
    ),
}


@pytest.mark.parametrize("what", INVALID)
def test_an_invalid_head_is_rejected_by_its_rule(what: str, tmp_path: Path) -> None:
    make, rule, _ = INVALID[what]
    found = check_compatibility(read_model(TARGET), read_model(make(tmp_path / "wrong.gguf")))
    assert (found.ok, found.rule) == (False, rule), found.detail


@pytest.mark.parametrize("what", INVALID)
def test_how_a_real_server_reacts_to_an_invalid_head(
    what: str, native: Path, tmp_path: Path
) -> None:
    make, _, expected = INVALID[what]
    wrong = make(tmp_path / "wrong.gguf")
    assert reaction(native, wrong, "draft-eagle3", tmp_path / "log") == expected


def test_a_head_is_compatible_with_its_own_target_only() -> None:
    head = read_model(HEAD)
    assert (head.kind, head.faults) == ("eagle3", ())
    assert check_compatibility(read_model(TARGET), head).ok
    assert check_compatibility(read_model(MODELS / "mtp.gguf"), head).rule == "hidden size"


@pytest.mark.parametrize(
    ("architecture", "last", "rule"),
    [
        ("gpt-oss", 4, ""),
        ("gpt-oss", 5, "target layers"),
        ("llama", 3, ""),
        ("llama", 4, "target layers"),
    ],
)
def test_the_last_layers_output_is_readable_in_some_architectures(
    architecture: str, last: int, rule: str, tmp_path: Path
) -> None:
    target = read_model(TARGET)
    assert target.layers == 4
    head = read_model(layers(1, 2, last)(tmp_path / "head.gguf"))
    assert check_compatibility(replace(target, architecture=architecture), head).rule == rule


def test_inspect_and_pick_draft_show_draft_eagle3(engine: str) -> None:
    done = specllama("inspect", HEAD)
    assert "kind     eagle3, architecture eagle3\n" in done.stdout
    assert "it is a drafter itself, for draft-eagle3\n" in done.stdout
    done = specllama("pick-draft", TARGET, "--llama-server", engine, "--json")
    found = {Path(c["draft"]).name: c["method"] for c in json.loads(done.stdout)["candidates"]}
    assert found["eagle3.gguf"] == "draft-eagle3"


def test_inspect_does_not_call_an_invalid_head_a_drafter(tmp_path: Path) -> None:
    wrong = with_tokens(*range(31), 4096)(tmp_path / "wrong.gguf")
    assert "it is a drafter" not in specllama("inspect", wrong).stdout


def test_serve_drafts_with_an_eagle3_head(engine: str, tmp_path: Path) -> None:
    args = (TARGET, "--draft", HEAD, "--workload", "code", "--llama-server", engine)
    with Serve(tmp_path, *args) as s:
        assert s.info["methods"] == ["draft-eagle3"]
        assert s.info["speculation"] == "on"
        assert s.info["drafted"] > s.info["accepted"] > 0


def test_a_head_with_a_reduced_vocabulary_drafts(native: Path, tmp_path: Path) -> None:
    """The most frequent tokens of the tokenizer have the smallest IDs."""
    short = with_tokens(*range(2048))(tmp_path / "short.gguf")
    assert check_compatibility(read_model(TARGET), read_model(short)).ok
    assert reaction(native, short, "draft-eagle3", tmp_path / "log") == "drafts"
