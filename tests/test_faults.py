"""Files that llama.cpp cannot load: detected before a launch, and rejected by a real server."""

from __future__ import annotations

import json
import os
import struct
import subprocess
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specllama.drafts.compat import check_compatibility
from specllama.drafts.discover import DiscoveredDrafts
from specllama.drafts.pick import rank_drafts
from specllama.drafts.warnings import warnings
from specllama.engine import process
from specllama.engine.capabilities import IK_LLAMA
from specllama.engine.client import Client
from specllama.engine.command import LaunchCommand
from specllama.engine.loading import check_loads, doubts, refusal
from specllama.gguf import GgufError, ModelInfo, architectures, foreign, read_model
from specllama.gguf.faults import ALWAYS, KNOWN_BUILDS, MAINLINE
from specllama.planning.plan import free_port
from specllama.workloads import load_workload
from tests import giants, help_render
from tests.edited import edited
from tests.support import MODELS, specllama
from tests.zoo import Value

TARGET, TRUNK, HEAD = (MODELS / f"{n}.gguf" for n in ("target", "mtp-trunk", "mtp-head"))
OLD = help_render.capabilities("b11434")
NEW = replace(OLD, build=12000)


def _u16(n: int) -> bytes:
    return struct.pack("<IH", 2, n)


Make = Callable[[Path], Path]
# The fault → (how to make it, the rule, which builds reject it, the message)
FILES: dict[str, tuple[Make, str, str, str]] = {
    "an architecture of a branch": (
        lambda to: edited(TARGET, to, {"general.architecture": "qwen35moe_mtp"}),
        "architecture",
        KNOWN_BUILDS,
        "'qwen35moe_mtp' is not supported by llama.cpp up to b11434; it was made by a branch",
    ),
    "an architecture of tomorrow": (
        lambda to: edited(TARGET, to, {"general.architecture": "llama9"}),
        "architecture",
        KNOWN_BUILDS,
        "'llama9' is not supported by llama.cpp up to b11434; it needs a newer llama.cpp",
    ),
    "a tensor type of a fork": (
        lambda to: edited(TARGET, to, add={"blk.0.attn_q.weight": ((256, 256), 105)}),
        "tensor type",
        KNOWN_BUILDS,
        "(of 'blk.0.attn_q.weight') is not supported by llama.cpp up to b11434; it was made for ROCmFPX",
    ),
    "a key that comes twice": (
        lambda to: edited(TARGET, to, repeat="general.name"),
        "repeated key",
        MAINLINE,
        "the key 'general.name' is repeated",
    ),
    "a tensor that comes twice": (
        lambda to: edited(TARGET, to, repeat="blk.0.attn_q.weight"),
        "repeated tensor",
        ALWAYS,
        "the tensor 'blk.0.attn_q.weight' is repeated",
    ),
    "three entries for four layers": (
        lambda to: edited(TARGET, to, {"llama.attention.head_count_kv": [2, 2, 2]}),
        "array length",
        ALWAYS,
        "llama.attention.head_count_kv has 3 entries for 4 blocks",
    ),
    "five entries for four layers": (
        lambda to: edited(TARGET, to, {"llama.attention.head_count": [4, 4, 4, 4, 4]}),
        "array length",
        ALWAYS,
        "llama.attention.head_count has 5 entries for 4 blocks",
    ),
    "layers without end": (
        lambda to: edited(TARGET, to, {"llama.block_count": 2**32 - 1}),
        "layers",
        ALWAYS,
        "llama.block_count is 4294967295; llama.cpp supports 1 to 512",
    ),
    "no layers": (
        lambda to: edited(TARGET, to, {"llama.block_count": 0}),
        "layers",
        ALWAYS,
        "llama.block_count is 0",
    ),
    "more heads than layers": (
        lambda to: edited(TRUNK, to, {"mimo2.nextn_predict_layers": 9}),
        "layers",
        ALWAYS,
        "mimo2.nextn_predict_layers is 9, but there are only 4 blocks",
    ),
    "no context length": (
        lambda to: edited(TARGET, to, drop=["llama.context_length"]),
        "key",
        ALWAYS,
        "the key llama.context_length is missing",
    ),
    "one part alone": (
        lambda to: edited(TARGET, to, {"split.count": _u16(3), "split.no": _u16(0)}),
        "parts",
        ALWAYS,
        "split.count says 3 parts",
    ),
    "a vision tower inside": (
        lambda to: edited(
            TARGET,
            to,
            add={"v.blk.0.attn_q.weight": ((32, 32), "F32"), "mm.0.weight": ((32, 32), "F32")},
        ),
        "foreign tensors",
        KNOWN_BUILDS,
        "2 tensors such as 'v.blk.0.attn_q.weight' are unknown to llama.cpp up to b11434; "
        "it is Ollama's format",
    ),
    "names of the original": (
        lambda to: edited(TARGET, to, add={"model.norm.weight": ((256,), "F32")}),
        "foreign tensors",
        KNOWN_BUILDS,
        "it was not converted for llama.cpp",
    ),
    "rows for half the tokens": (
        lambda to: edited(TARGET, to, add={"output.weight": ((256, 2048), "Q8_0")}),
        "rows",
        ALWAYS,
        "output.weight has 2048 rows for 4096 tokens",
    ),
    "no embeddings": (
        lambda to: edited(TARGET, to, drop=["token_embd.weight"]),
        "tables",
        ALWAYS,
        "token_embd.weight is missing",
    ),
    "rows that end inside a block": (
        lambda to: edited(TARGET, to, add={"blk.0.attn_q.weight": ((250, 256), "Q8_0")}),
        "tensor table",
        ALWAYS,
        "has 250 elements, not a multiple of Q8_0's block",
    ),
    "no tokenizer": (
        lambda to: edited(TARGET, to, drop=["tokenizer.ggml.model"]),
        "tokenizer",
        ALWAYS,
        "the key tokenizer.ggml.model is missing",
    ),
    "no merges": (
        lambda to: edited(TARGET, to, drop=["tokenizer.ggml.merges"]),
        "tokenizer",
        ALWAYS,
        "the key tokenizer.ggml.merges is missing",
    ),
    "a name too long": (
        lambda to: edited(TARGET, to, add={"blk.0." + "x" * 60: ((32,), "F32")}),
        "tensor table",
        MAINLINE,
        "too long a name",
    ),
}


@pytest.mark.parametrize("what", FILES)
def test_a_file_that_cannot_be_loaded_has_a_fault(tmp_path: Path, what: str) -> None:
    make, rule, by, message = FILES[what]
    info = read_model(make(tmp_path / "m.gguf"))
    first = info.faults[0]
    assert (first.rule, first.by) == (rule, by)
    assert message in first.detail
    assert (refusal(info, None) is None) is (by != ALWAYS)
    assert refusal(info, OLD) == first
    assert (refusal(info, NEW) is None) is (by == KNOWN_BUILDS)
    assert (refusal(info, replace(OLD, flavour=IK_LLAMA)) is None) is (by != ALWAYS)
    (repaired, *_) = check_loads(info, OLD, mended=True)
    assert repaired.startswith("llama-server may be unable to load m.gguf: ")


@pytest.mark.parametrize("what", FILES)
def test_a_real_server_rejects_these_files(native: Path, tmp_path: Path, what: str) -> None:
    path = FILES[what][0](tmp_path / "m.gguf")
    argv = [native, "-m", path, "-c", "64", "-np", "1", "-t", "1", "--no-warmup"]
    argv += ["--host", "127.0.0.1", "--port", str(free_port("127.0.0.1", 0))]
    done = subprocess.run(list(map(str, argv)), capture_output=True, timeout=60, check=False)
    assert done.returncode != 0


def test_a_fork_loads_its_own_tensor_types(tmp_path: Path) -> None:
    """Type 137 (IQ2_K) is ik_llama.cpp's, type 105 is ROCmFPX's."""
    ik = replace(NEW, flavour=IK_LLAMA)
    for number, loads in ((137, True), (105, False)):
        add = {"blk.0.attn_q.weight": ((256, 256), number)}
        info = read_model(edited(TARGET, tmp_path / "m.gguf", add=add))
        assert (check_loads(info, ik) == ()) is loads
        assert check_loads(info, NEW) != ()


@pytest.mark.parametrize(("length", "fault"), [(63, False), (64, True)])
def test_a_tensors_name_has_at_most_63_bytes(tmp_path: Path, length: int, fault: bool) -> None:
    """GGML_MAX_NAME is 64, with the NUL at the end."""
    name = "blk.0.attn_norm." + "x" * (length - 16)
    info = read_model(edited(TARGET, tmp_path / "m.gguf", add={name: ((32,), "F32")}))
    assert ("tensor table" in {f.rule for f in info.faults}) is fault


def test_valid_files_have_no_fault(tmp_path: Path) -> None:
    for path in (*MODELS.glob("*.gguf"), edited(TARGET, tmp_path / "m.gguf")):
        assert read_model(path).faults == ()
    for name in giants.GIANTS:
        assert read_model(giants.build(tmp_path, name)).faults == (), name


def _as_architecture(to: Path, arch: str, drop: Sequence[str] = (), **more: Any) -> Path:
    """The target under another architecture's name."""
    keys = ("context_length", "embedding_length", "block_count")
    known = read_model(TARGET)
    numbers = (known.context_length or 0, known.embedding_length, known.layers)
    fields: dict[str, Any] = {f"{arch}.{k}": n for k, n in zip(keys, numbers, strict=True)}
    fields |= {"general.architecture": arch} | more.pop("fields", {})
    return edited(TARGET, to, fields, drop, **more)


_WIDE = {"output.weight": ((256, 4096), "Q8_0")}
# Unusual files that llama.cpp loads.
LOADABLE: dict[str, Make] = {
    "Kimi K2 without merges": lambda to: edited(
        TARGET, to, {"tokenizer.ggml.pre": "kimi-k2"}, ["tokenizer.ggml.merges"]
    ),
    "codeshell that embeds by its output": lambda to: _as_architecture(
        to, "codeshell", ["token_embd.weight"], add=_WIDE
    ),
    "qwen3tts, whose output is sounds": lambda to: _as_architecture(
        to, "qwen3tts", add={"output.weight": ((256, 3072), "Q8_0")}
    ),
    "no tokenizer, and a list of tokens": lambda to: edited(
        TARGET, to, {"tokenizer.ggml.model": "none"}, add={"output.weight": ((256, 9), "Q8_0")}
    ),
    "arrays that this architecture does not read": lambda to: edited(
        TARGET,
        to,
        {"llama.expert_feed_forward_length": [1, 2], "llama.attention.recurrent_layers": [1, 1]},
    ),
    # gemma4-assistant.cpp asserts that all its blocks are nextn layers
    "a gemma4-assistant": lambda to: _as_architecture(
        to, "gemma4-assistant", fields={"gemma4-assistant.nextn_predict_layers": 4}
    ),
    "a dflash head of DeepSeek V4": lambda to: _as_architecture(
        to,
        "dflash",
        fields={
            "dflash.target_layers": [1, 2],
            "dflash.attention.layer_norm_rms_epsilon": 1e-6,
            "dflash.hyper_connection.count": 4,
            "dflash.attention.key_length": 512,
            "dflash.attention.value_length": 64,
        },
    ),
}


@pytest.mark.parametrize("what", LOADABLE)
def test_unusual_files_that_llama_cpp_loads_have_no_fault(tmp_path: Path, what: str) -> None:
    info = read_model(LOADABLE[what](tmp_path / "m.gguf"))
    assert info.faults == ()


@pytest.mark.parametrize(
    "what", ["Kimi K2 without merges", "arrays that this architecture does not read"]
)
def test_a_real_server_loads_unusual_files(native: Path, tmp_path: Path, what: str) -> None:
    path = LOADABLE[what](tmp_path / "m.gguf")
    listed = specllama("serve", path, "--dry-run", "--llama-server", native)
    assert listed.returncode == 0, listed.stderr
    port = free_port("127.0.0.1", 0)
    argv = (native, "-m", path, "-c", "64", "-np", "1", "-t", "1", "--no-warmup", "--port", port)
    server = process.start(
        LaunchCommand(tuple(map(str, argv)), dict(os.environ), (), ()), tmp_path / "log"
    )
    try:
        with closing(Client(f"http://127.0.0.1:{port}")) as client:
            process.wait_ready(server, client.healthy)
    finally:
        server.stop()


def test_override_kv_can_repair_a_file(native: Path, tmp_path: Path) -> None:
    """llama.cpp reads --override-kv before the file, also for a missing key."""
    path = edited(TARGET, tmp_path / "m.gguf", drop=["llama.context_length"])
    refused = specllama("serve", path, "--dry-run", "--llama-server", native)
    assert refused.returncode == 2
    override = ("--", "--override-kv", "llama.context_length=int:512")
    done = specllama("serve", path, "--dry-run", "--llama-server", native, *override)
    assert done.returncode == 0, done.stderr
    assert "the key llama.context_length is missing" in " ".join(done.stdout.split())


def test_real_models_have_no_fault(smollm2: Path, gemma: Path) -> None:
    assert read_model(smollm2).faults == read_model(gemma).faults == ()


@pytest.mark.parametrize(
    ("count", "message"),
    [
        (3, "its name says 2 parts, but split.count is 3"),
        (2, "split.tensors.count is 0"),
        (1, ""),  # a whole file, whatever its name: llama.cpp opens no other file
        (0, ""),
    ],
)
def test_a_split_files_name_must_match_its_header(tmp_path: Path, count: int, message: str) -> None:
    first = tmp_path / "m-00001-of-00002.gguf"
    edited(TARGET, first, {"split.count": _u16(count)} if count else {})
    if count > 1:
        tensors = [t for t in _tensors() if t != "token_embd.weight"]
        edited(TARGET, tmp_path / "m-00002-of-00002.gguf", drop=tensors)
    info = read_model(first)
    assert message in next((f.detail for f in info.faults if f.rule == "parts"), "")
    assert bool(info.faults) is bool(message)
    assert len(info.shards) == (2 if message else 1)


def test_inspect_does_not_call_a_faulty_file_servable(tmp_path: Path) -> None:
    for what, start in (
        ("layers without end", "serve    no: "),
        ("a key that comes twice", "serve    not by llama.cpp: "),
        ("a tensor type of a fork", "serve    unknown: "),
    ):
        path = FILES[what][0](tmp_path / "m.gguf")
        done = specllama("inspect", path)
        assert done.returncode == 0, done.stderr
        assert start in done.stdout
        assert FILES[what][3] in " ".join(done.stdout.split())
    data = json.loads(specllama("inspect", path, "--json").stdout)
    assert data["serve"].startswith("unknown: ")
    assert data["faults"][0]["rule"] == "tensor type"


def test_inspect_shows_the_size_label_and_finetune(tmp_path: Path) -> None:
    labels = {"general.size_label": "8B", "general.finetune": "Instruct"}
    path = edited(TARGET, tmp_path / "m.gguf", labels)
    assert "name     Specllama Tiny Target (8B, Instruct)\n" in specllama("inspect", path).stdout
    names = json.loads(specllama("inspect", path, "--json").stdout)["names"]
    assert (names["size_label"], names["finetune"]) == ("8B", "Instruct")


def test_inspect_lists_no_methods_for_a_file_that_cannot_load(tmp_path: Path) -> None:
    done = specllama("inspect", FILES["no layers"][0](tmp_path / "m.gguf"))
    assert "drafts" not in done.stdout
    done = specllama("inspect", HEADS["FastMTP"][0](tmp_path / "head.gguf"))
    assert "serve    unknown: it uses d2t" in done.stdout
    assert "drafts" not in done.stdout


def test_serve_rejects_a_file_that_no_build_loads(native: Path, tmp_path: Path) -> None:
    path = FILES["three entries for four layers"][0](tmp_path / "m.gguf")
    done = specllama("serve", path, "--dry-run", "--llama-server", native)
    assert done.returncode == 2
    assert "3 entries for 4 blocks (array length)" in " ".join(done.stderr.split())
    assert "pick-draft" not in done.stderr


def test_serve_warns_about_a_file_that_a_newer_build_may_load(native: Path, tmp_path: Path) -> None:
    """The tests' server has no build number, so it may be newer than the list."""
    path = FILES["a vision tower inside"][0](tmp_path / "m.gguf")
    done = specllama("serve", path, "--dry-run", "--llama-server", native)
    assert done.returncode == 0, done.stderr
    assert "may be unable to load m.gguf: 2 tensors such as" in " ".join(done.stdout.split())


# ---- drafts ------------------------------------------------------------------

HEADS: dict[str, tuple[Make, str, str]] = {
    "FastMTP": (
        lambda to: edited(
            HEAD, to, add={"output.weight": ((128, 1024), "Q8_0"), "d2t": ((1024,), "I64")}
        ),
        "d2t",
        "supports for EAGLE-3 and DFlash only",
    ),
    "an output of its own that is short": (
        lambda to: edited(
            HEAD, to, add={"blk.3.nextn.shared_head_head.weight": ((128, 1024), "Q8_0")}
        ),
        "rows",
        "blk.3.nextn.shared_head_head.weight has 1024 rows for 4096 tokens",
    ),
    "a short output": (
        lambda to: edited(HEAD, to, add={"output.weight": ((128, 1024), "Q8_0")}),
        "rows",
        "output.weight has 1024 rows for 4096 tokens",
    ),
    "no embeddings": (
        lambda to: edited(HEAD, to, drop=["token_embd.weight"]),
        "tables",
        "token_embd.weight is missing, which llama.cpp up to b11434 requires",
    ),
    "no output": (
        lambda to: edited(HEAD, to, drop=["output.weight"]),
        "tables",
        "output.weight is missing, which llama.cpp up to b11434 requires",
    ),
    "no last norm": (
        lambda to: edited(HEAD, to, drop=["output_norm.weight"]),
        "tables",
        "output_norm.weight is missing, which llama.cpp up to b11434 requires",
    ),
}


def pick(target: ModelInfo, draft: ModelInfo, build: int = 11434) -> tuple[str, str]:
    """The rule that rejects the draft, and its detail; ("", "") if it is accepted."""
    caps = replace(OLD, build=build)
    picked = rank_drafts(target, load_workload("code"), caps, DiscoveredDrafts((draft,)))
    rejections = ((r.rule, r.detail) for r in picked.rejected if r.what == draft.path.name)
    return next(rejections, ("", ""))


@pytest.mark.parametrize("build", [11434, 12000])
@pytest.mark.parametrize("what", HEADS)
def test_a_head_with_wrong_rows_or_missing_tables_is_rejected(
    tmp_path: Path, what: str, build: int
) -> None:
    make, rule, message = HEADS[what]
    target, head = read_model(TRUNK), read_model(make(tmp_path / "head.gguf"))
    assert head.kind == "mtp-head"
    rejection = pick(target, head, build)
    assert rejection[0] == rule
    assert message in rejection[1]
    assert not check_compatibility(target, head, OLD).ok
    doubtful = doubts(head, NEW)
    assert check_compatibility(target, head, NEW).ok is bool(
        doubtful
    )  # still tried if the user names it
    assert pick(target, read_model(HEAD), build) == ("", "")


@pytest.mark.parametrize("what", HEADS)
def test_a_real_server_rejects_these_heads(native: Path, tmp_path: Path, what: str) -> None:
    head = HEADS[what][0](tmp_path / "head.gguf")
    argv = [native, "-m", TRUNK, "-md", head, "--spec-type", "draft-mtp", "-c", "64", "-np", "1"]
    argv += ["-t", "1", "--no-warmup", "--port", str(free_port("127.0.0.1", 0))]
    done = subprocess.run(list(map(str, argv)), capture_output=True, timeout=60, check=False)
    assert done.returncode != 0


def test_a_target_whose_head_has_a_reduced_vocabulary_has_a_fault(tmp_path: Path) -> None:
    whole = edited(MODELS / "mtp.gguf", tmp_path / "m.gguf", add={"d2t": ((1024,), "I64")})
    info = read_model(whole)
    assert [f.rule for f in info.faults] == ["d2t"]
    with pytest.raises(GgufError, match="cannot load this file: it uses d2t"):
        check_loads(info, OLD)
    assert "may be unable to load m.gguf" in check_loads(info, NEW)[0]


def test_the_bits_of_a_head_are_those_of_its_matrices(tmp_path: Path) -> None:
    """Once the average with its own tables, over five bits, hid that its matrices have two."""
    small = {
        f"blk.3.{n}.weight": (shape, "IQ1_S")
        for n, shape in {
            "attn_output": (256, 128),
            "ffn_down": (256, 128),
            "nextn.eh_proj": (256, 128),
            "attn_qkv": (256, 192),
            "ffn_gate": (256, 128),
            "ffn_up": (256, 128),
        }.items()
    }
    tables = {"blk.3.nextn.shared_head_head.weight": ((128, 4096), "Q8_0")}
    head = read_model(edited(HEAD, tmp_path / "head.gguf", add={**small, **tables}))
    assert head.mtp_bits == 50 * 8 / 256
    messages = list(warnings(read_model(TRUNK), "draft-mtp", head))
    assert "the head is quantised to 1.6 bits" in messages[0]


@pytest.mark.parametrize(
    ("fields", "tensors", "rule"),
    [
        ({}, {"output.weight": (64, 32), "d2t": (16,)}, "rows"),
        ({}, {"output.weight": (64, 16), "d2t": (16,)}, ""),
        ({}, {"output.weight": (64, 32)}, "rows"),
        ({}, {"output.weight": (64, 4096)}, ""),
        ({}, {"token_embd.weight": (64, 32)}, ""),  # it is not read: the target's is
        ({}, {"d2t": (16,)}, "d2t"),
        ({}, {"d2t": (4096,)}, ""),  # as many as the target's tokens, so the target's output works
    ],
)
def test_an_eagle3_heads_output_rows_must_match_its_d2t(
    tmp_path: Path, fields: dict[str, int], tensors: dict[str, tuple[int, ...]], rule: str
) -> None:
    needed = ("context_length", "embedding_length", "block_count", "target_hidden_size")
    keys: dict[str, Value] = {f"eagle3.{k}": 1 for k in needed}
    keys |= {"eagle3.target_layers": [0, 1, 2], "eagle3.attention.layer_norm_rms_epsilon": 1e-5}
    add = {n: (shape, "I64" if n == "d2t" else "F32") for n, shape in tensors.items()}
    source = edited(TARGET, tmp_path / "a.gguf", drop=_tensors())
    path = edited(source, tmp_path / "b.gguf", {"general.architecture": "eagle3", **keys}, add=add)
    assert [f.rule for f in read_model(path).faults] == ([rule] if rule else [])


def _tensors() -> list[str]:
    from specllama.gguf import read_header

    return [t.name for t in read_header(TARGET).tensors]


# ---- the lists ---------------------------------------------------------------


def test_the_program_that_made_a_foreign_file_is_named() -> None:
    assert "Ollama" in foreign.maker_of_architecture("gptoss")
    assert "calls it 'gpt-oss'" in foreign.maker_of_architecture("gpt_oss")
    assert "ComfyUI" in foreign.maker_of_architecture("flux")
    assert "ik_llama.cpp" in foreign.maker_of_type("type 137")
    assert "removed this type" in foreign.maker_of_type("type 31")
    assert "newer" in foreign.maker_of_type("type 43")
    assert "layout" in foreign.maker_of_tensor("mtp.layers.0.weight")


def test_the_list_of_architectures_contains_gguf_pys() -> None:
    import gguf

    known = architectures.KNOWN
    gguf_py = set(gguf.MODEL_ARCH_NAMES.values())
    assert {a for a in gguf_py - known if a not in _ONLY_IN_PYTHON} == set()
    assert known >= architectures.SIDECARS | architectures.EMBEDDING | architectures.HYBRID


_ONLY_IN_PYTHON = {"mmproj"}
