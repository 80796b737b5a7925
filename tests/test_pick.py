"""Verdicts on small copies of real model families, and a real server's agreement with them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from specllama import workloads
from specllama.drafts import twins
from specllama.drafts.discover import discover
from specllama.drafts.pick import rank_drafts
from specllama.engine.client import Client
from specllama.gguf import GgufError, read_model
from specllama.planning.plan import free_port
from tests import help_render, zoo
from tests.edited import edited
from tests.support import MODELS, specllama

CAPS = help_render.capabilities("b11434")
CODE = workloads.load_workload("code")

# name → (display name, vocabulary, width); targets are wide, drafts narrow
LOADABLE = {
    "Llama-3.1-70B-Instruct": (zoo.LLAMA31, 128),
    "Llama-3.0-70B-Instruct": (zoo.LLAMA30, 128),
    "Llama-3.2-1B-Instruct": (zoo.LLAMA31, 32),
    "Meta-Llama-3-8B-Instruct": (zoo.LLAMA30, 32),
    "Qwen2.5-32B-Instruct": (zoo.QWEN25_LARGE, 128),
    "Qwen2.5-0.5B-Instruct": (zoo.QWEN25, 32),
    "Qwen2.5-odd": (zoo.QWEN25_ONE_MORE, 32),
    "DeepSeek-R1-Distill-Qwen-32B": (zoo.R1_QWEN_LARGE, 128),
    "DeepSeek-R1-Distill-Qwen-1.5B": (zoo.R1_QWEN, 32),
    "Qwen3-32B": (zoo.QWEN3, 128),
    "Qwen3-0.6B": (zoo.QWEN3, 32),
    "gemma-2-27b-it": (zoo.GEMMA2, 128),
    "gemma-2-2b-it": (zoo.GEMMA2, 32),
    "gemma-2-2b-it-other-uploader": (zoo.GEMMA2_OTHER, 32),
    "gemma-3-27b-it": (zoo.GEMMA3_LARGE, 128),
    "gemma-3-1b-it": (zoo.GEMMA3, 32),
    "Llama-2-7B": (zoo.LLAMA2, 32),
}

# (target, draft) → None if compatible, else the rule and, for token texts, the first id
DRAFT_SIMPLE: dict[tuple[str, str], str | tuple[str, int] | None] = {
    ("Llama-3.1-70B-Instruct", "Llama-3.2-1B-Instruct"): None,
    ("Llama-3.1-70B-Instruct", "Meta-Llama-3-8B-Instruct"): ("token text", 128004),
    ("Llama-3.0-70B-Instruct", "Meta-Llama-3-8B-Instruct"): None,
    ("Llama-3.0-70B-Instruct", "Llama-3.2-1B-Instruct"): "bos id or text",
    ("Qwen2.5-32B-Instruct", "Qwen2.5-0.5B-Instruct"): None,  # exactly 128 apart
    ("Qwen3-32B", "Qwen2.5-odd"): "vocabulary size",  # 129 apart
    ("Qwen2.5-32B-Instruct", "Qwen2.5-odd"): None,
    ("Qwen2.5-32B-Instruct", "DeepSeek-R1-Distill-Qwen-1.5B"): "add_bos",
    ("Qwen2.5-32B-Instruct", "Qwen3-0.6B"): ("token text", 151665),
    ("DeepSeek-R1-Distill-Qwen-32B", "DeepSeek-R1-Distill-Qwen-1.5B"): None,
    ("DeepSeek-R1-Distill-Qwen-32B", "Qwen2.5-0.5B-Instruct"): "add_bos",
    ("Qwen3-32B", "Qwen3-0.6B"): None,
    ("Qwen3-32B", "Qwen2.5-0.5B-Instruct"): ("token text", 151665),
    ("gemma-2-27b-it", "gemma-2-2b-it"): None,
    ("gemma-2-27b-it", "gemma-2-2b-it-other-uploader"): ("token text", 139),
    ("gemma-3-27b-it", "gemma-3-1b-it"): None,  # 64 apart
    ("gemma-2-27b-it", "gemma-3-1b-it"): "vocabulary size",
    ("gemma-2-27b-it", "Llama-2-7B"): "bos id",
    ("Qwen3-32B", "Llama-2-7B"): "vocabulary type",
}
DRAFT_SIMPLE["Llama-3.0-70B-Instruct", "Llama-3.2-1B-Instruct"] = ("token text", 128004)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = tmp_path_factory.mktemp("zoo")
    for name, (vocab, width) in LOADABLE.items():
        zoo.llama(root / f"{name}.gguf", name, vocab, width)
    yield root
    shutil.rmtree(root)


def verdicts(target: Path) -> dict[str, tuple[str, str] | None]:
    """file stem → None if compatible, else (rule, detail)."""
    info = read_model(target)
    picked = rank_drafts(info, CODE, CAPS, discover(info, everywhere=False))
    out: dict[str, tuple[str, str] | None] = {
        r.what.removesuffix(".gguf"): (r.rule, r.detail) for r in picked.rejected
    }
    out |= {c.draft.path.stem: None for c in picked.candidates if c.draft is not None}
    return out


@pytest.mark.parametrize("target", sorted({t for t, _ in DRAFT_SIMPLE}))
def test_verdicts_on_draft_models(folder: Path, target: str) -> None:
    found = verdicts(folder / f"{target}.gguf")
    for (t, draft), expected in DRAFT_SIMPLE.items():
        if t != target:
            continue
        got = found[draft]
        if isinstance(expected, tuple):
            assert got is not None, draft
            assert got[0] == expected[0], draft
            assert got[1].startswith(f"token {expected[1]} "), draft
        else:
            assert (got and got[0]) == expected, draft


def speculative(native: Path, target: Path, draft: Path, log: Path) -> bool:
    """Whether a real server speculates with the pair."""
    port = free_port("127.0.0.1", 0)
    argv = [native, "-m", target, "-md", draft, "--spec-type", "draft-simple"]
    argv += ["-c", "128", "-np", "1", "-t", "1", "--port", str(port), "--no-warmup", "--slots"]
    with log.open("wb") as out, subprocess.Popen(list(map(str, argv)), stdout=out, stderr=out) as p:
        try:
            with Client(f"http://127.0.0.1:{port}") as client:
                until = time.monotonic() + 60
                while not client.healthy():
                    assert p.poll() is None, log.read_text()
                    assert time.monotonic() < until
                    time.sleep(0.05)
                slots = client.slots()
                assert slots
                return bool(slots[0]["speculative"])
        finally:
            p.terminate()


@pytest.mark.parametrize(("target", "draft"), sorted(DRAFT_SIMPLE))
def test_a_real_server_agrees_with_the_verdicts(
    native: Path, folder: Path, tmp_path: Path, target: str, draft: str
) -> None:
    ok = DRAFT_SIMPLE[target, draft] is None
    pair = (folder / f"{target}.gguf", folder / f"{draft}.gguf")
    assert speculative(native, *pair, tmp_path / "log") is ok


# ---- sidecars: judged from their headers -------------------------------------


SMALL = zoo.Vocab("gpt2", "qwen2", "q", 256, {}, {"mask_token_id": 255})


@pytest.fixture
def qwen3(tmp_path: Path) -> Path:
    """A Qwen3 target of hidden size 256 with drafters of every kind beside it."""
    target = zoo.llama(tmp_path / "Qwen3-8B.gguf", "Qwen3 8B", SMALL, 256, "qwen3")
    good: dict[str, zoo.Value] = {"target_layers": [0, 0, 0], "target_hidden_size": 256}
    sidecars: list[tuple[str, str, int, dict[str, zoo.Value], list[str]]] = [
        ("eagle3", "eagle3", 64, good, ["fc.weight"]),
        ("eagle3-two", "eagle3", 64, {**good, "target_layers": [0, 1]}, ["fc.weight"]),
        ("eagle3-wide", "eagle3", 64, {**good, "target_hidden_size": 512}, ["fc.weight"]),
        ("eagle3-deep", "eagle3", 64, {**good, "target_layers": [0, 1, 9]}, ["fc.weight"]),
        ("eagle3-last", "eagle3", 64, {**good, "target_layers": [0, 0, 1]}, ["fc.weight"]),
        ("eagle3-empty", "eagle3", 64, good, []),
        ("dflash", "dflash", 256, {"target_layers": [0], "block_size": 16}, ["fc.weight"]),
        ("dflash-last", "dflash", 256, {"target_layers": [1], "block_size": 16}, ["fc.weight"]),
        ("dflash-wide", "dflash", 64, {"target_layers": [0], "block_size": 16}, ["fc.weight"]),
        ("dspark", "dflash", 256, {"target_layers": [0], "block_size": 7}, ["markov_w1.weight"]),
        ("dspark-blockless", "dflash", 256, {"target_layers": [0]}, ["markov_w1.weight"]),
        ("mmproj", "clip", 64, {}, ["v.weight"]),
    ]
    for name, arch, d, fields, tensors in sidecars:
        zoo.sidecar(tmp_path / f"{name}.gguf", arch, d, fields, tensors, SMALL)
    two = {"dflash.target_layers": [0, 0]}
    edited(tmp_path / "dflash.gguf", tmp_path / "dflash-two.gguf", two)
    no_mask = replace(SMALL, ids={})
    block: dict[str, zoo.Value] = {"target_layers": [0], "block_size": 16}
    path = tmp_path / "dflash-maskless.gguf"
    zoo.sidecar(path, "dflash", 256, block, ["fc.weight"], no_mask)
    no_vocabulary: dict[str, zoo.Value] = {f"dflash.{k}": v for k, v in block.items()}
    no_vocabulary |= zoo.shape("dflash", "x", 256, 1) | {"tokenizer.ggml.model": "none"}
    zoo.write(tmp_path / "dflash-wordless.gguf", "dflash", no_vocabulary, {"fc.weight": (256, 256)})
    return target


def test_verdicts_on_drafters_of_their_own_architecture(qwen3: Path) -> None:
    found = verdicts(qwen3)
    assert {k: v and v[0] for k, v in found.items()} == {
        "eagle3": None,
        "eagle3-two": "target layers",
        "eagle3-wide": "hidden size",
        "eagle3-deep": "target layers",
        "eagle3-last": "target layers",
        "eagle3-empty": "tensors",
        "dflash": None,
        "dflash-last": "target layers",
        "dflash-two": "target layers",
        "dflash-wide": "hidden size",
        "dspark": None,
        "dflash-maskless": "mask token",
        "dflash-wordless": "vocabulary missing",
        "dspark-blockless": "block size",
        "mmproj": "kind",
    }


def test_rejections_on_older_builds_name_the_build_needed(qwen3: Path) -> None:
    info = read_model(qwen3)
    picked = rank_drafts(
        info, CODE, help_render.capabilities("b9464"), discover(info, everywhere=False)
    )
    details = {r.what: r.detail for r in picked.rejected}
    assert "≥ b9611" in details["eagle3.gguf"]
    assert "≥ b9837" in details["dflash.gguf"]
    assert "≥ b10173" in details["dspark.gguf"]
    assert picked.candidates == ()


def test_an_architecture_without_hooks_accepts_no_drafter(qwen3: Path) -> None:
    other = zoo.llama(qwen3.with_name("Phi-9B.gguf"), "Phi", SMALL, 256, "phi3")
    rejected = verdicts(other)["eagle3"]
    assert rejected is not None
    assert rejected[0] == "architecture"


def test_candidates_are_ranked_by_predicted_speed_up() -> None:
    """A block drafter (0.58x to 1.16x) once ranked before a draft model (1.10x to 1.69x)."""
    info = read_model(MODELS / "target.gguf")
    candidates = rank_drafts(info, CODE, CAPS, discover(info, everywhere=False)).candidates
    paying = [c for c in candidates if c.may_pay]
    assert candidates[: len(paying)] == tuple(paying)
    speedups = [round(c.prediction.speedup, 1) for c in paying]
    assert speedups == sorted(speedups, reverse=True)
    first, last = candidates[0].draft, candidates[-1].draft
    assert first is not None
    assert last is not None
    assert (first.path.name, last.path.name) == ("draft.gguf", "dspark.gguf")


def test_equal_predictions_are_ranked_by_the_workloads_methods() -> None:
    """To one decimal: an MTP head in the file (1.03x) and a draft next to it (1.00x)."""
    info = read_model(MODELS / "mtp.gguf")
    head, draft = rank_drafts(info, CODE, CAPS, discover(info, everywhere=False)).candidates
    assert (head.method, head.draft, draft.method) == ("draft-mtp", None, "draft-simple")
    plain = replace(CODE, methods=("draft-simple", "draft-mtp"))
    candidates = rank_drafts(info, plain, CAPS, discover(info, everywhere=False)).candidates
    assert [c.method for c in candidates] == ["draft-simple", "draft-mtp"]


def test_a_method_that_the_workload_does_not_use_ranks_last() -> None:
    info = read_model(MODELS / "target.gguf")
    heads = replace(CODE, methods=("draft-eagle3",))
    candidates = rank_drafts(info, heads, CAPS, discover(info, everywhere=False)).candidates
    assert candidates[0].method == "draft-eagle3"


def test_mtp_heads_within_and_beside_the_target(tmp_path: Path) -> None:
    for name, trunk, head in (("whole", True, True), ("trunk", True, False), ("head", False, True)):
        zoo.with_head(
            tmp_path / f"{name}.gguf", f"Qwen3.6 {name}", zoo.QWEN35, "qwen35", trunk, head
        )
    assert read_model(tmp_path / "head.gguf").kind == "mtp-head"
    whole = read_model(tmp_path / "whole.gguf")
    picked = rank_drafts(whole, CODE, CAPS, discover(whole, everywhere=False))
    assert (picked.candidates[0].method, picked.candidates[0].draft) == ("draft-mtp", None)
    assert {r.what: r.rule for r in picked.rejected}["head.gguf"] == "own head"
    trunk_info = read_model(tmp_path / "trunk.gguf")
    picked = rank_drafts(trunk_info, CODE, CAPS, discover(trunk_info, everywhere=False))
    assert {r.rule for r in picked.rejected} >= {"MTP tensors"}
    assert picked.candidates[0].draft is not None
    assert picked.candidates[0].draft.path.name == "head.gguf"


def test_qwen35_drafts_for_qwen35moe_with_a_warning(tmp_path: Path) -> None:
    """The vocabulary decides, not the name of the architecture; hybrids get a warning."""
    target = zoo.llama(tmp_path / "35B-A3B.gguf", "Qwen3.6 35B A3B", zoo.QWEN35, 128, "qwen35moe")
    zoo.llama(tmp_path / "0.8B.gguf", "Qwen3.5 0.8B", zoo.QWEN35, 16, "qwen35")
    info = read_model(target)
    picked = rank_drafts(info, CODE, CAPS, discover(info, everywhere=False))
    assert picked.candidates[0].method == "draft-simple"
    assert any("hybrid state" in w for w in picked.candidates[0].warnings)


def test_a_gemma4_assistant_needs_the_targets_hidden_size_and_architecture(tmp_path: Path) -> None:
    target = zoo.llama(tmp_path / "gemma-4-31b.gguf", "Gemma 4 31B", zoo.GEMMA4, 128, "gemma4")
    (tmp_path / "MTP").mkdir()
    for name, out in (("right", 128), ("narrow", 64)):
        path = tmp_path / "MTP" / f"{name}.gguf"
        fields = zoo.shape("gemma4-assistant", name, 64, 1) | zoo.GEMMA4.fields()
        fields["gemma4-assistant.embedding_length_out"] = out
        zoo.write(path, "gemma4-assistant", fields, {"nextn.pre_projection.weight": (8, 8)})
    found = verdicts(target)
    assert found["right"] is None
    assert found["narrow"] is not None
    assert found["narrow"][0] == "hidden size"
    other = zoo.llama(tmp_path / "gemma-3.gguf", "Gemma 3", zoo.GEMMA3, 128, "gemma3")
    rejected = verdicts(other)["right"]
    assert rejected is not None
    assert rejected[0] == "architecture"


def test_a_missing_part_of_a_split_model_is_an_error(tmp_path: Path) -> None:
    first = zoo.llama(tmp_path / "m-00001-of-00003.gguf", "m", zoo.LLAMA2, 32)
    zoo.write(tmp_path / "m-00003-of-00003.gguf", "llama", {}, {"x": (8,)})
    with pytest.raises(GgufError, match="m-00002-of-00003"):
        read_model(first)


# ---- one model under two names ------------------------------------------------


def write_draft(path: Path, name: bytes = b"Specllama Tiny Draft", last_byte: int = 0) -> Path:
    """A copy of the tiny draft with another name and its last weight changed."""
    data = bytearray((MODELS / "draft.gguf").read_bytes().replace(b"Specllama Tiny Draft", name))
    data[-1] ^= last_byte
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    return path


def test_files_with_the_same_tensors_are_one_candidate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = read_model(Path(shutil.copy(MODELS / "target.gguf", tmp_path)))
    write_draft(tmp_path / "a.gguf")
    write_draft(tmp_path / "b.gguf", name=b"Specllama Small Pair")
    write_draft(tmp_path / "c.gguf", last_byte=1)
    cached = write_draft(tmp_path / "cache" / "a.gguf")
    for _ in range(2):
        picked = rank_drafts(
            target, CODE, CAPS, discover(target, [cached.parent], everywhere=False)
        )
        names = {c.draft.path.name for c in picked.candidates if c.draft is not None}
        assert names == {"a.gguf", "c.gguf"}
        assert {(r.what, r.rule, r.detail) for r in picked.rejected} == {
            ("b.gguf", "duplicate", "same tensors as a.gguf"),
            (str(cached), "duplicate", f"same tensors as {tmp_path / 'a.gguf'}"),
        }
        monkeypatch.setattr(twins, "hashlib", None)  # hashes are cached: no second read


def test_a_changed_file_is_no_longer_a_duplicate(tmp_path: Path) -> None:
    """Digests are saved by size and time of the file."""
    first = read_model(write_draft(tmp_path / "a.gguf"))
    second = read_model(write_draft(tmp_path / "b.gguf"))
    assert twins.twin(first, [second]) is second
    os.utime(write_draft(tmp_path / "b.gguf", last_byte=1), (1, 1))
    assert twins.twin(first, [read_model(tmp_path / "b.gguf")]) is None


def test_large_files_are_not_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (read_model(write_draft(tmp_path / f"{n}.gguf")) for n in "ab")
    monkeypatch.setattr(twins, "_MOST", first.tensor_bytes)
    assert twins.twin(first, [second]) is second
    monkeypatch.setattr(twins, "_MOST", first.tensor_bytes - 1)
    assert twins.twin(first, [second]) is None


def test_the_same_bytes_in_another_shape_are_another_model(tmp_path: Path) -> None:
    first, second = (
        read_model(
            edited(MODELS / "draft.gguf", tmp_path / f"{i}.gguf", add={"blk.0.x": (shape, "F32")})
        )
        for i, shape in enumerate(((32, 64), (64, 32)))
    )
    assert twins.twin(first, [second]) is None


def test_another_chat_template_makes_no_other_model(tmp_path: Path) -> None:
    first = read_model(write_draft(tmp_path / "a.gguf"))
    template = {"tokenizer.chat_template": "{{ messages }}"}
    second = read_model(edited(MODELS / "draft.gguf", tmp_path / "b.gguf", template))
    assert first.template_hash != second.template_hash
    assert twins.twin(first, [second]) is second


def test_the_same_tensors_with_another_header_are_a_duplicate(tmp_path: Path) -> None:
    target = zoo.llama(tmp_path / "big.gguf", "Big", zoo.LLAMA2, 128)
    zoo.llama(tmp_path / "a.gguf", "Small", zoo.LLAMA2, 32)
    zoo.llama(tmp_path / "b.gguf", "Small, uploaded once more " * 9, zoo.LLAMA2, 32)
    assert verdicts(target) == {"a": None, "b": ("duplicate", "same tensors as a.gguf")}


def test_the_same_tensors_with_another_vocabulary_are_another_model(tmp_path: Path) -> None:
    """All weights are zeros; only the vocabulary differs."""
    target = zoo.llama(tmp_path / "big.gguf", "Big", zoo.QWEN25_LARGE, 128)
    zoo.llama(tmp_path / "a.gguf", "Small", zoo.QWEN25, 32)
    zoo.llama(tmp_path / "b.gguf", "Small", replace(zoo.QWEN25, pre="other"), 32)
    assert verdicts(target) == {"a": None, "b": None}


# ---- the commands -------------------------------------------------------------


def test_pick_draft_prints_a_table_and_the_command_to_run() -> None:
    done = specllama("pick-draft", MODELS / "target.gguf", "--llama-server", "embedded")
    assert done.returncode == 0
    assert "draft-simple  draft.gguf" in done.stdout
    assert "token 258" in done.stdout
    lines = done.stdout.splitlines()
    first = lines[1].split()[1]
    assert lines[-1].startswith("run      specllama serve ")
    assert lines[-1].endswith(f"--draft {MODELS / first}")
    data = json.loads(
        specllama(
            "pick-draft", MODELS / "target.gguf", "--json", "--llama-server", "embedded"
        ).stdout
    )
    assert data["candidates"][0]["draft"] == str(MODELS / first)
    assert data["candidates"][0]["speedup_low"] < data["candidates"][0]["speedup_high"]


def test_pick_draft_without_candidates_suggests_downloads(tmp_path: Path) -> None:
    target = zoo.llama(tmp_path / "a.gguf", "Qwen2.5 Coder 32B", zoo.QWEN25_LARGE, 64)
    done = specllama("pick-draft", target, "--llama-server", "embedded")
    assert done.returncode == 1
    assert "ggml-org/Qwen2.5-Coder-0.5B-Q8_0-GGUF" in done.stdout
    assert "--method ngram-simple" in done.stdout


def test_dir_is_searched_recursively(tmp_path: Path) -> None:
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    (deep / "loop").symlink_to(tmp_path, target_is_directory=True)
    shutil.copy(MODELS / "draft.gguf", deep / "found.gguf")
    alone = tmp_path / "alone"
    alone.mkdir()
    target = shutil.copy(MODELS / "target.gguf", alone)
    args = ("pick-draft", target, "--dir", tmp_path / "a", "--json", "--llama-server", "embedded")
    data = json.loads(specllama(*args).stdout)
    assert [c["draft"] for c in data["candidates"]] == [str(deep / "found.gguf")]
    missing = specllama("pick-draft", target, "--dir", tmp_path / "nope")
    assert missing.returncode == 2
    assert "no such folder" in missing.stderr


@pytest.mark.parametrize("name", ["target", "draft", "mtp", "mtp-head", "other-vocab"])
def test_inspect_prints_kind_and_vocabulary(name: str) -> None:
    path = MODELS / f"{name}.gguf"
    info = read_model(path)
    human = specllama("inspect", path)
    assert human.returncode == 0
    assert f"kind     {info.kind}, architecture {info.architecture}" in human.stdout
    assert "BPE/gpt-2, 4,096; bos 0, eos 0" in human.stdout
    data = json.loads(specllama("inspect", path, "--json", "--tensors").stdout)
    assert data["kind"] == info.kind
    assert data["vocabulary"]["n_tokens"] == 4096
    assert len(data["tensor_table"]) == info.tensors
