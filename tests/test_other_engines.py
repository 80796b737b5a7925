"""vLLM, SGLang and TensorRT-LLM: the same decision in fields that they have, or why it cannot be
said there."""

from __future__ import annotations

import ast
import importlib.resources
import importlib.util
import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from specllama import workloads
from specllama.cli.app import run
from specllama.engine.launch_options import read_launch_options
from specllama.engine.locate import Engine
from specllama.engine.settings import NgramSizes, Settings, Speculation
from specllama.errors import UsageError
from specllama.formats import (
    HF_FORMATS,
    Decision,
    Deployment,
    FormatError,
    WrittenFiles,
    write_format,
)
from specllama.formats.engine_config import MAX_NGRAM_DRAFT, record
from specllama.gguf import ModelInfo, read_model
from specllama.planning.choose import Choice
from specllama.planning.plan import make_plan
from tests import help_render
from tests.fake_server import Fake
from tests.support import MODELS

CAPS = help_render.capabilities("b11434")
TARGET, DRAFT = read_model(MODELS / "target.gguf"), read_model(MODELS / "draft.gguf")
COPIES = Speculation(("ngram-simple",), ngram=NgramSizes(12, 48))
HUB = "https://huggingface.co/"
METHODS = ("simple", "mtp", "assistant", "eagle3", "dflash", "dspark", "copies", "mod")


def based(model: ModelInfo, repo: str, **more: Any) -> ModelInfo:
    return replace(model, names=replace(model.names, base_models=(HUB + repo,)), **more)


def decided(
    spec: Speculation | None,
    draft: ModelInfo | None = None,
    *words: str,
    target: ModelInfo = TARGET,
    parallel: int = 1,
    context: int = 0,
    key: str | None = None,
    **deployment: Any,
) -> Decision:
    """`elsewhere`: the fields of Elsewhere."""
    settings = Settings(target.path, "127.0.0.1", 8080, context, parallel, api_key=key)
    plan = make_plan(
        target,
        workloads.load_workload("chat"),
        Engine(("llama-server",), Path("llama-server"), False, "test"),
        CAPS,
        Choice(spec, "for a test", draft=draft),
        settings,
        read_launch_options(words, CAPS, {}),
        check_port=False,
    )
    given = {"target_repo": "acme/Big-8B", **deployment}
    return Decision(plan, ("method because",), deployment=Deployment(**given))


def drafting(
    method: str, repo: str = "acme/Small-1B", k: int = 4, **more: Any
) -> tuple[Speculation, ModelInfo]:
    draft = based(DRAFT, repo, **more)
    return Speculation((method,), draft.path, n_max=k), draft


def decision(name: str, **more: Any) -> Decision:
    """One of METHODS."""
    if name == "copies":
        return decided(COPIES, **more)
    if name == "mod":
        return decided(replace(COPIES, methods=("ngram-mod",)), **more)
    if name == "mtp":
        return decided(Speculation(("draft-mtp",), n_max=2), **more)
    if name == "assistant":
        return decided(*drafting("draft-mtp", "acme/assistant", kind="gemma4-assistant"), **more)
    return decided(*drafting(f"draft-{name}", "acme/head" if name != "simple" else "a/b"), **more)


def loaded(written: WrittenFiles) -> Any:
    return yaml.safe_load(written.text)


def spoken(name: str, d: Decision) -> Mapping[str, Any]:
    """How it drafts, in vLLM's or TensorRT-LLM's words; SGLang's whole file."""
    found: Mapping[str, Any] = loaded(write_format(name, d)) or {}
    key = {"vllm": "speculative-config", "tensorrt-llm": "speculative_config"}.get(name)
    return found.get(key, {}) if key else found


def test_vllm_is_told_each_method_in_its_own_words() -> None:
    said = {name: spoken("vllm", decision(name)) for name in METHODS}
    assert said["simple"] == {"method": "draft_model", "model": "a/b", "num_speculative_tokens": 4}
    assert said["mtp"] == {"method": "mtp", "num_speculative_tokens": 2}
    assert said["assistant"]["model"] == "acme/assistant"
    assert [said[n]["method"] for n in ("eagle3", "dflash", "dspark")] == [
        "eagle3",
        "dflash",
        "dspark",
    ]
    assert said["copies"] == {
        "method": "ngram",
        "num_speculative_tokens": MAX_NGRAM_DRAFT,
        "prompt_lookup_max": 12,
        "prompt_lookup_min": 12,
    }
    assert said["mod"] == {"method": "suffix", "num_speculative_tokens": MAX_NGRAM_DRAFT}


def test_sglang_is_told_each_method_in_its_own_words() -> None:
    said = {name: spoken("sglang", decision(name)) for name in METHODS}
    simple = said["simple"]
    assert simple["speculative-algorithm"] == "STANDALONE"
    assert simple["speculative-draft-model-path"] == "a/b"
    three = ("speculative-num-steps", "speculative-eagle-topk", "speculative-num-draft-tokens")
    assert [simple[k] for k in three] == [4, 1, 5]
    assert [said[n]["speculative-algorithm"] for n in METHODS[1:]] == (
        "NEXTN NEXTN EAGLE3 DFLASH DSPARK NGRAM NGRAM".split()
    )
    assert said["copies"]["speculative-ngram-max-trie-depth"] > 12
    assert said["dspark"]["speculative-dspark-block-size"] == 4


def test_tensorrt_llm_is_told_each_method_in_its_own_words() -> None:
    names = [m for m in METHODS if m != "assistant"]
    said = [spoken("tensorrt-llm", decision(name)) for name in names]
    assert [s["decoding_type"] for s in said] == (
        "Draft_Target MTP Eagle3 DFlash DSpark NGram SA".split()
    )
    assert said[0] == {
        "decoding_type": "Draft_Target",
        "max_draft_len": 4,
        "speculative_model": "a/b",
    }
    assert said[5]["max_matching_ngram_size"] == 12
    with pytest.raises(FormatError, match="own repository"):
        write_format("tensorrt-llm", decision("assistant"))


@pytest.mark.parametrize("name", METHODS)
def test_only_recorded_fields_are_written(name: str) -> None:
    d = decision(name, parallel=64, context=8192, nodes=2, gpus=2)
    vllm = loaded(write_format("vllm", d))
    assert set(vllm) <= set(record("vllm")["config"])
    assert set(vllm["speculative-config"]) <= set(record("vllm")["speculative"])
    assert vllm["speculative-config"]["method"] in record("vllm")["methods"]
    sglang = loaded(write_format("sglang", d))
    assert set(sglang) <= {*record("sglang")["config"], *record("sglang")["speculative"]}
    assert sglang["speculative-algorithm"] in record("sglang")["methods"]
    if name != "assistant":
        text = write_format("tensorrt-llm", decision(name, parallel=4, context=8192, gpus=2))
        fields = loaded(text)["speculative_config"]
        kind = fields.pop("decoding_type")
        assert set(fields) <= set(record("tensorrt-llm")["speculative"][kind])
        flags = re.findall(r"--(\w+)", text.notes[0])
        assert set(flags) <= set(record("tensorrt-llm")["flags"])


@pytest.mark.parametrize("name", HF_FORMATS)
def test_without_speculation_nothing_is_said_of_it(name: str) -> None:
    written = write_format(name, decided(None))
    body = "".join(x for x in written.text.splitlines(True) if not x.startswith("#"))
    assert "specul" not in body
    assert "# method because" in written.text


def test_long_copies_are_cut_and_that_is_said() -> None:
    written = write_format("vllm", decision("copies"))
    assert any("draft length 16 instead of 48" in n for n in written.notes)
    short = decided(replace(COPIES, ngram=NgramSizes(3, 8)))
    assert spoken("vllm", short)["num_speculative_tokens"] == 8
    assert not any("instead of" in n for n in write_format("vllm", short).notes)


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_a_draft_with_n_grams_is_refused(name: str) -> None:
    both = Speculation(("ngram-mod", "draft-mtp"), ngram=NgramSizes(12, 48))
    with pytest.raises(FormatError, match="cannot combine a draft"):
        write_format(name, decided(both))


def test_tensorrt_llm_joins_copies_with_heads_only() -> None:
    both = Speculation(("ngram-mod", "draft-mtp"), ngram=NgramSizes(12, 48))
    assert spoken("tensorrt-llm", decided(both))["sa_config"] == {"threshold": 12}
    spec, draft = drafting("draft-simple", "a/b")
    joined = replace(spec, methods=("ngram-mod", "draft-simple"), ngram=NgramSizes(12, 48))
    with pytest.raises(FormatError, match="Draft_Target with n-grams"):
        write_format("tensorrt-llm", decided(joined, draft))


def test_vocabularies_of_other_sizes() -> None:
    assert DRAFT.vocabulary is not None
    other = replace(DRAFT.vocabulary, n_tokens=DRAFT.vocabulary.n_tokens + 64, fingerprint="x")
    d = decided(*drafting("draft-simple", "a/b", vocabulary=other))
    assert spoken("vllm", d)["use_heterogeneous_vocab"] is True
    for name in ("sglang", "tensorrt-llm"):
        with pytest.raises(FormatError, match="this one differs"):
            write_format(name, d)


@pytest.mark.parametrize(
    "repo", ["acme/eagle-tiny", "acme/Small-EAGLE3", "acme/x-dflash", "a/dspark"]
)
def test_names_that_vllm_takes_for_another_kind_are_refused(repo: str) -> None:
    with pytest.raises(FormatError, match="misdetects the type"):
        write_format("vllm", decided(*drafting("draft-simple", repo)))
    assert (
        spoken("vllm", decided(*drafting("draft-eagle3", repo)))["model"] == repo
    )  # said outright


def test_p_eagle_and_pard_draft_in_parallel() -> None:
    heads = decision("eagle3", draft_repo="amazon/GPT-OSS-20B-P-EAGLE")
    assert spoken("vllm", heads) == {
        "method": "eagle3",
        "model": "amazon/GPT-OSS-20B-P-EAGLE",
        "num_speculative_tokens": 4,
        "parallel_drafting": True,
    }
    pard = decision("simple", draft_repo="amd/PARD-Qwen3-0.6B")
    assert spoken("vllm", pard)["method"] == "draft_model"
    assert spoken("vllm", pard)["parallel_drafting"] is True
    assert spoken("tensorrt-llm", pard)["decoding_type"] == "PARD"
    for name, what in (("sglang", "no parallel drafts"), ("tensorrt-llm", "not support P-EAGLE")):
        with pytest.raises(FormatError, match=what):
            write_format(name, heads)
    assert "parallel_drafting" not in spoken("vllm", decision("simple", draft_repo="a/leopard-1b"))


def test_a_draft_repository_is_taken_where_nothing_drafts_here() -> None:
    d = decided(None, draft_repo="amazon/Qwen3-P-EAGLE")
    said = spoken("vllm", d)
    assert (said["method"], said["num_speculative_tokens"]) == (
        "eagle3",
        d.plan.workload.n_max,
    )
    assert any(
        "was not measured here; speculation is off here" in n for n in write_format("vllm", d).notes
    )


def test_a_draft_repository_beside_a_head_in_the_target_is_what_its_name_says() -> None:
    d = decision("mtp", draft_repo="acme/Small-1B")
    assert spoken("vllm", d)["method"] == "draft_model"
    assert spoken("sglang", d)["speculative-algorithm"] == "STANDALONE"


def test_known_repositories_of_the_family_are_named() -> None:
    assert TARGET.vocabulary is not None
    many = replace(TARGET.vocabulary, n_tokens=128256)
    llama = replace(TARGET, path=Path("Llama-3.1-8B.gguf"), vocabulary=many)
    spec, draft = drafting("draft-eagle3")
    nameless = replace(draft, names=replace(draft.names, base_models=()))
    with pytest.raises(FormatError) as e:
        write_format("vllm", decided(spec, nameless, target=llama))
    assert "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B, the drafter for 8B" in e.value.hint


def test_alpha_of_here_and_what_is_not_there_are_told() -> None:
    spec, draft = drafting("draft-simple", "a/b")
    sure = replace(spec, p_min=0.75)
    notes = " ".join(write_format("sglang", decided(sure, draft)).notes)
    assert "p_min 0.75" in notes
    assert "not measured" in notes


def test_the_repository_is_the_files_own_word_said_as_a_guess() -> None:
    spec, draft = drafting("draft-simple", "acme/Small-1B")
    d = decided(spec, draft, target=based(TARGET, "acme/Big-8B"), target_repo=None)
    written = write_format("vllm", d)
    assert loaded(written)["model"] == "acme/Big-8B"
    assert sum("is a guess" in n for n in written.notes) == 2
    tuned = replace(draft, names=replace(draft.names, finetune="Instruct"))
    notes = " ".join(write_format("vllm", decided(spec, tuned)).notes)
    assert "fine-tune 'Instruct'" in notes


@example("acme/Big-8B", "https://hf.co/")
@given(
    st.text(max_size=40) | st.text("ab/._-", max_size=9),
    st.sampled_from(["", HUB, "https://hf.co/", "http://huggingface.co/"]),
)
def test_whatever_a_file_names_as_its_base_is_a_repository_or_none(text: str, start: str) -> None:
    odd = replace(TARGET, names=replace(TARGET.names, base_models=(start + text,), finetune=text))
    try:
        written = write_format("vllm", decided(None, target=odd, target_repo=None))
    except FormatError:
        return
    named = loaded(written)["model"]
    assert named in text
    assert re.fullmatch(r"[\w.-]+/[\w.-]+", named)


def test_no_known_repository_is_one_sentence_with_the_way_out() -> None:
    with pytest.raises(FormatError, match="the Hugging Face repository") as e:
        write_format("vllm", decided(None, target_repo=None))
    assert "--target-repo" in e.value.hint
    spec = Speculation(("draft-simple",), DRAFT.path)
    with pytest.raises(FormatError, match="loads no GGUF drafts") as e:
        write_format(
            "vllm", decided(spec, replace(DRAFT, names=replace(DRAFT.names, base_models=())))
        )
    assert "--draft-repo" in e.value.hint
    same = based(DRAFT, "acme/Big-8B")  # heads often name their target as their base
    with pytest.raises(FormatError, match="loads no GGUF drafts"):
        write_format("vllm", decided(spec, same))


def test_a_head_only_file_is_in_the_targets_own_repository() -> None:
    head = replace(DRAFT, kind="mtp-head", names=replace(DRAFT.names, base_models=()))
    d = decided(Speculation(("draft-mtp",), head.path, n_max=3), head)
    assert spoken("vllm", d) == {"method": "mtp", "num_speculative_tokens": 3}


@pytest.mark.parametrize(
    "repo", ["", "x", "a/b/c", "../x", "a b/c", "http://huggingface.co/a/b", "-a/b"]
)
@pytest.mark.parametrize("which", ["target_repo", "draft_repo"])
def test_repositories_that_are_none(repo: str, which: str) -> None:
    given: dict[str, Any] = {which: repo}
    with pytest.raises(UsageError, match="must be OWNER/NAME"):
        write_format("vllm", decided(None, **given))


def test_the_users_own_spec_type_is_llama_servers() -> None:
    with pytest.raises(FormatError, match="for llama-server only"):
        write_format("vllm", decided(None, None, "--spec-type", "ngram-simple"))


def test_sglang_is_started_with_the_model_on_the_command_line() -> None:
    (start, *_) = write_format("sglang", decision("simple")).notes
    assert shlex.split(start)[:4] == ["sglang", "serve", "--model-path", "acme/Big-8B"]


def test_a_container_is_given_the_same_configuration_as_arguments() -> None:
    d = decision("copies", parallel=4, context=8192)
    config = loaded(write_format("vllm", d))
    (service,) = loaded(write_format("vllm-compose", d))["services"].values()
    words = service["command"]
    assert words[0] == config.pop("model")
    flags = dict(zip(words[1::2], words[2::2], strict=True))
    assert json.loads(flags["--speculative-config"]) == config.pop("speculative-config")
    for key in ("max-model-len", "max-num-seqs", "served-model-name"):
        assert flags[f"--{key}"] == str(config[key])


def test_arguments_that_are_left_out_are_named() -> None:
    notes = write_format("sglang", decided(None, None, "-ngl", "20")).notes
    assert any(n.startswith("options of llama-server") and "-ngl" in n for n in notes)


def test_several_mtp_heads_are_used_whole_times() -> None:
    three = replace(TARGET, mtp_heads=3)
    for k, kept in ((2, 2), (3, 3), (5, 3), (6, 6)):
        d = decided(Speculation(("draft-mtp",), n_max=k), target=three)
        assert spoken("vllm", d)["num_speculative_tokens"] == kept


def test_machines_and_gpus() -> None:
    d = decision("simple", nodes=2, gpus=2)
    vllm = loaded(write_format("vllm", d))
    keys = ("tensor-parallel-size", "pipeline-parallel-size", "nnodes")
    assert [vllm[k] for k in keys] == [2, 2, 2]
    sglang = loaded(write_format("sglang", d))
    assert [sglang[k] for k in ("tp-size", "pp-size", "nnodes")] == [2, 2, 2]
    block = loaded(write_format("sglang", decision("dflash", nodes=2, gpus=2)))
    assert block["tp-size"] == 4
    assert "pp-size" not in block  # SGLang refuses it there
    with pytest.raises(FormatError, match="MPI or Slurm"):
        write_format("tensorrt-llm", d)
    with pytest.raises(FormatError, match="over 8 GPUs"):  # all in one stage there
        write_format(
            "sglang", decision("dflash", nodes=4, gpus=2, target=replace(TARGET, heads=(4,)))
        )
    heads = max(TARGET.heads)
    with pytest.raises(FormatError, match="attention heads"):
        write_format("vllm", decision("simple", gpus=heads + 1))


def test_what_many_requests_leave_is_said_as_reported() -> None:
    notes = " ".join(write_format("vllm", decision("simple")).notes)
    assert "1.96x with 1, 1.21x with 128 at a time" in notes
    assert "not measured here" in notes


def test_vllm_stops_drafting_for_many_where_it_can() -> None:
    many = spoken("vllm", decision("eagle3", parallel=64))
    assert many["num_speculative_tokens_per_batch_size"] == [[1, 32, 4], [33, 64, 0]]
    for few in (decision("eagle3", parallel=32), decision("simple", parallel=64)):
        assert "num_speculative_tokens_per_batch_size" not in spoken("vllm", few)


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_kubernetes_takes_the_manifests(engine: str, nodes: int) -> None:
    validate = pytest.importorskip("kubernetes_validate").validate
    d = decision("simple", key="secret", nodes=nodes, gpus=2)
    text = write_format(f"{engine}-kubernetes", d).text
    assert "secret\n" not in text
    assert "&id" not in text
    head, service = yaml.safe_load_all(text)
    validate(service, "1.37", strict=True)
    if nodes == 1:
        validate(head, "1.37", strict=True)
        pods = [head["spec"]["template"]["spec"]]
    else:
        group = head["spec"]["leaderWorkerTemplate"]
        assert group["size"] == 2
        pods = [group[t]["spec"] for t in ("leaderTemplate", "workerTemplate")]
        words = " ".join(
            pods[1]["containers"][0].get("args") or pods[1]["containers"][0]["command"]
        )
        assert "--node-rank $(LWS_WORKER_INDEX)" in words
        assert ("--headless" in words) == (engine == "vllm")
    for pod in pods:
        whole = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": pod}
        validate(whole, "1.37", strict=True)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_compose_runs_one_service_or_two_by_profile(engine: str) -> None:
    one = loaded(write_format(f"{engine}-compose", decision("simple", key="secret")))["services"]
    (service,) = one.values()
    folder = importlib.resources.files("check_jsonschema") / "builtin_schemas" / "vendor"
    schema = json.loads((folder / "compose-spec.json").read_text())
    for nodes in (1, 3):
        made = loaded(write_format(f"{engine}-compose", decision("simple", nodes=nodes)))
        jsonschema.Draft202012Validator(schema).validate(made)
    assert all(isinstance(w, str) for w in service["command"])
    assert service["ports"][0].startswith("127.0.0.1:8080:")
    assert "secret" not in str(service)
    two = loaded(write_format(f"{engine}-compose", decision("simple", nodes=3)))["services"]
    assert [s["profiles"] for s in two.values()] == [["first"], ["other"]]
    assert "${NODE_RANK:-1}" in two["other"]["command"]


@pytest.mark.parametrize("name", HF_FORMATS)
def test_a_file_says_who_made_it(name: str) -> None:
    assert "made by `specllama plan`" in write_format(name, decision("simple")).text[:400]


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize(
    ("host", "asked"),
    [
        ("192.168.7.5", "192.168.7.5:8080"),
        ("0.0.0.0", "127.0.0.1:8080"),
        ("fe80::1", "[fe80::1]:8080"),
        ("::", "[::1]:8080"),
        ("gpu1.lan", "gpu1.lan:8080"),
    ],
)
def test_the_health_check_asks_the_address_that_is_listened_on(
    engine: str, host: str, asked: str
) -> None:
    d = decision("simple", nodes=2)
    d = replace(d, plan=replace(d.plan, settings=replace(d.plan.settings, host=host)))
    first = loaded(write_format(f"{engine}-compose", d))["services"]["first"]
    assert f"'http://{asked}/health'" in first["healthcheck"]["test"][-1]
    command = first["command"]
    assert command[command.index("--host") + 1] == host


def test_options_of_other_engines_go_with_their_formats_only(
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = str(MODELS / "target.gguf")
    for words in (("--nodes", "2"), ("--target-repo", "a/b", "--format", "shell")):
        assert run(["plan", model, *words]) == 2
        assert f"{words[0]} only applies to other engines" in capsys.readouterr().err


def test_plan_prints_it_and_says_the_rest_on_stderr(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["plan", str(MODELS / "target.gguf"), "--draft", str(MODELS / "draft.gguf")]
    words += [
        "--llama-server",
        str(Fake(tmp_path).path),
        "--format",
        "vllm",
        "--target-repo",
        "a/b",
    ]
    assert run([*words, "--draft-repo", "c/d"]) == 0
    out = capsys.readouterr()
    assert yaml.safe_load(out.out)["speculative-config"]["model"] == "c/d"
    assert "vllm serve --config" in out.err
    assert run(words) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: that engine loads no GGUF drafts, and draft.gguf does not name")
    assert len(err.splitlines()) == 2


# --- the record against an installed package of that name ---------------------------------------


def package(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        pytest.skip(f"{name} is not installed: its fields are compared with the record only")
    return Path(spec.origin).parent


def fields(file: Path, name: str = "") -> set[str]:
    """The fields of the classes in a file, read without importing it."""
    classes = (n for n in ast.walk(ast.parse(file.read_text())) if isinstance(n, ast.ClassDef))
    return {
        s.target.id
        for c in classes
        if name in ("", c.name)
        for s in c.body
        if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name)
    }


def test_the_installed_vllm_has_the_recorded_fields() -> None:
    there = fields(package("vllm") / "config" / "speculative.py", "SpeculativeConfig")
    assert set(record("vllm")["speculative"]) - there == set()


def test_the_installed_sglang_has_the_recorded_fields() -> None:
    folder = package("sglang") / "srt" / "arg_groups" / "fields"
    there = {f.replace("_", "-") for file in folder.glob("*.py") for f in fields(file)}
    recorded = {*record("sglang")["speculative"], *record("sglang")["config"]}
    assert recorded - there == set()


def test_the_installed_tensorrt_llm_has_the_recorded_fields() -> None:
    there = fields(package("tensorrt_llm") / "llmapi" / "llm_args.py")
    recorded = {f for names in record("tensorrt-llm")["speculative"].values() for f in names}
    assert recorded - there == set()


def test_the_ways_out_of_one_machine_are_told_where_they_are_not_taken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["plan", str(MODELS / "target.gguf"), "--method", "none", "--parallel", "16"]
    words += ["--llama-server", str(Fake(tmp_path).path)]
    assert run(words) == 0
    assert "vLLM and SGLang batch them" in capsys.readouterr().out
    assert run([*words, "--format", "shell"]) == 0
    assert "vLLM and SGLang batch them" in capsys.readouterr().err
    assert run([*words, "--format", "vllm", "--target-repo", "a/b"]) == 0
    assert "batch them" not in capsys.readouterr().err
