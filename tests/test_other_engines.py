"""vLLM, SGLang and TensorRT-LLM: the same decision in their own fields, or an error with the
reason."""

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
NGRAMS = Speculation(("ngram-simple",), ngram=NgramSizes(12, 48))
HUB = "https://huggingface.co/"
METHODS = ("simple", "mtp", "assistant", "eagle3", "dflash", "dspark", "copies", "mod")


def with_base(model: ModelInfo, repo: str, **more: Any) -> ModelInfo:
    return replace(model, names=replace(model.names, base_models=(HUB + repo,)), **more)


def decision_for(
    spec: Speculation | None,
    draft: ModelInfo | None = None,
    *words: str,
    target: ModelInfo = TARGET,
    parallel: int = 1,
    context: int = 0,
    key: str | None = None,
    **deployment: Any,
) -> Decision:
    """`deployment`: the fields of Deployment."""
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


def draft_of(
    method: str, repo: str = "acme/Small-1B", k: int = 4, **more: Any
) -> tuple[Speculation, ModelInfo]:
    draft = with_base(DRAFT, repo, **more)
    return Speculation((method,), draft.path, n_max=k), draft


def decision(name: str, **more: Any) -> Decision:
    """One of METHODS."""
    if name == "copies":
        return decision_for(NGRAMS, **more)
    if name == "mod":
        return decision_for(replace(NGRAMS, methods=("ngram-mod",)), **more)
    if name == "mtp":
        return decision_for(Speculation(("draft-mtp",), n_max=2), **more)
    if name == "assistant":
        return decision_for(
            *draft_of("draft-mtp", "acme/assistant", kind="gemma4-assistant"), **more
        )
    return decision_for(
        *draft_of(f"draft-{name}", "acme/head" if name != "simple" else "a/b"), **more
    )


def loaded(written: WrittenFiles) -> Any:
    return yaml.safe_load(written.text)


def speculation_in(name: str, d: Decision) -> Mapping[str, Any]:
    """The speculation part of vLLM's or TensorRT-LLM's file; SGLang's whole file."""
    found: Mapping[str, Any] = loaded(write_format(name, d)) or {}
    key = {"vllm": "speculative-config", "tensorrt-llm": "speculative_config"}.get(name)
    return found.get(key, {}) if key else found


def test_every_method_in_vllms_configuration() -> None:
    configs = {name: speculation_in("vllm", decision(name)) for name in METHODS}
    assert configs["simple"] == {
        "method": "draft_model",
        "model": "a/b",
        "num_speculative_tokens": 4,
    }
    assert configs["mtp"] == {"method": "mtp", "num_speculative_tokens": 2}
    assert configs["assistant"]["model"] == "acme/assistant"
    assert [configs[n]["method"] for n in ("eagle3", "dflash", "dspark")] == [
        "eagle3",
        "dflash",
        "dspark",
    ]
    assert configs["copies"] == {
        "method": "ngram",
        "num_speculative_tokens": MAX_NGRAM_DRAFT,
        "prompt_lookup_max": 12,
        "prompt_lookup_min": 12,
    }
    assert configs["mod"] == {"method": "suffix", "num_speculative_tokens": MAX_NGRAM_DRAFT}


def test_every_method_in_sglangs_configuration() -> None:
    configs = {name: speculation_in("sglang", decision(name)) for name in METHODS}
    simple = configs["simple"]
    assert simple["speculative-algorithm"] == "STANDALONE"
    assert simple["speculative-draft-model-path"] == "a/b"
    three = ("speculative-num-steps", "speculative-eagle-topk", "speculative-num-draft-tokens")
    assert [simple[k] for k in three] == [4, 1, 5]
    assert [configs[n]["speculative-algorithm"] for n in METHODS[1:]] == (
        "NEXTN NEXTN EAGLE3 DFLASH DSPARK NGRAM NGRAM".split()
    )
    assert configs["copies"]["speculative-ngram-max-trie-depth"] > 12
    assert configs["dspark"]["speculative-dspark-block-size"] == 4


def test_every_method_in_tensorrt_llms_configuration() -> None:
    names = [m for m in METHODS if m != "assistant"]
    configs = [speculation_in("tensorrt-llm", decision(name)) for name in names]
    assert [s["decoding_type"] for s in configs] == (
        "Draft_Target MTP Eagle3 DFlash DSpark NGram SA".split()
    )
    assert configs[0] == {
        "decoding_type": "Draft_Target",
        "max_draft_len": 4,
        "speculative_model": "a/b",
    }
    assert configs[5]["max_matching_ngram_size"] == 12
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
def test_without_speculation_the_file_does_not_mention_it(name: str) -> None:
    written = write_format(name, decision_for(None))
    body = "".join(x for x in written.text.splitlines(True) if not x.startswith("#"))
    assert "specul" not in body
    assert "# method because" in written.text


def test_long_n_gram_drafts_are_shortened_with_a_note() -> None:
    written = write_format("vllm", decision("copies"))
    assert any("draft length 16 instead of 48" in n for n in written.notes)
    short = decision_for(replace(NGRAMS, ngram=NgramSizes(3, 8)))
    assert speculation_in("vllm", short)["num_speculative_tokens"] == 8
    assert not any("instead of" in n for n in write_format("vllm", short).notes)


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_a_draft_combined_with_n_grams_is_an_error(name: str) -> None:
    both = Speculation(("ngram-mod", "draft-mtp"), ngram=NgramSizes(12, 48))
    with pytest.raises(FormatError, match="cannot combine a draft"):
        write_format(name, decision_for(both))


def test_tensorrt_llm_combines_n_grams_only_with_mtp() -> None:
    both = Speculation(("ngram-mod", "draft-mtp"), ngram=NgramSizes(12, 48))
    assert speculation_in("tensorrt-llm", decision_for(both))["sa_config"] == {"threshold": 12}
    spec, draft = draft_of("draft-simple", "a/b")
    joined = replace(spec, methods=("ngram-mod", "draft-simple"), ngram=NgramSizes(12, 48))
    with pytest.raises(FormatError, match="Draft_Target with n-grams"):
        write_format("tensorrt-llm", decision_for(joined, draft))


def test_a_draft_with_another_vocabulary_works_in_vllm_only() -> None:
    assert DRAFT.vocabulary is not None
    other = replace(DRAFT.vocabulary, n_tokens=DRAFT.vocabulary.n_tokens + 64, fingerprint="x")
    d = decision_for(*draft_of("draft-simple", "a/b", vocabulary=other))
    assert speculation_in("vllm", d)["use_heterogeneous_vocab"] is True
    for name in ("sglang", "tensorrt-llm"):
        with pytest.raises(FormatError, match="this one differs"):
            write_format(name, d)


@pytest.mark.parametrize(
    "repo", ["acme/eagle-tiny", "acme/Small-EAGLE3", "acme/x-dflash", "a/dspark"]
)
def test_repository_names_that_vllm_misdetects_are_errors(repo: str) -> None:
    with pytest.raises(FormatError, match="misdetects the type"):
        write_format("vllm", decision_for(*draft_of("draft-simple", repo)))
    assert (
        speculation_in("vllm", decision_for(*draft_of("draft-eagle3", repo)))["model"] == repo
    )  # the type is given explicitly


def test_p_eagle_and_pard_enable_parallel_drafting() -> None:
    heads = decision("eagle3", draft_repo="amazon/GPT-OSS-20B-P-EAGLE")
    assert speculation_in("vllm", heads) == {
        "method": "eagle3",
        "model": "amazon/GPT-OSS-20B-P-EAGLE",
        "num_speculative_tokens": 4,
        "parallel_drafting": True,
    }
    pard = decision("simple", draft_repo="amd/PARD-Qwen3-0.6B")
    assert speculation_in("vllm", pard)["method"] == "draft_model"
    assert speculation_in("vllm", pard)["parallel_drafting"] is True
    assert speculation_in("tensorrt-llm", pard)["decoding_type"] == "PARD"
    for name, what in (("sglang", "no parallel drafts"), ("tensorrt-llm", "not support P-EAGLE")):
        with pytest.raises(FormatError, match=what):
            write_format(name, heads)
    assert "parallel_drafting" not in speculation_in(
        "vllm", decision("simple", draft_repo="a/leopard-1b")
    )


def test_draft_repo_is_used_even_if_speculation_is_off_here() -> None:
    d = decision_for(None, draft_repo="amazon/Qwen3-P-EAGLE")
    config = speculation_in("vllm", d)
    assert (config["method"], config["num_speculative_tokens"]) == (
        "eagle3",
        d.plan.workload.n_max,
    )
    assert any(
        "was not measured here; speculation is off here" in n for n in write_format("vllm", d).notes
    )


def test_the_name_of_draft_repo_decides_the_method() -> None:
    d = decision("mtp", draft_repo="acme/Small-1B")
    assert speculation_in("vllm", d)["method"] == "draft_model"
    assert speculation_in("sglang", d)["speculative-algorithm"] == "STANDALONE"


def test_the_error_names_known_draft_repositories_of_the_family() -> None:
    assert TARGET.vocabulary is not None
    many = replace(TARGET.vocabulary, n_tokens=128256)
    llama = replace(TARGET, path=Path("Llama-3.1-8B.gguf"), vocabulary=many)
    spec, draft = draft_of("draft-eagle3")
    nameless = replace(draft, names=replace(draft.names, base_models=()))
    with pytest.raises(FormatError) as e:
        write_format("vllm", decision_for(spec, nameless, target=llama))
    assert "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B, the drafter for 8B" in e.value.hint


def test_notes_name_settings_that_are_not_exported() -> None:
    spec, draft = draft_of("draft-simple", "a/b")
    sure = replace(spec, p_min=0.75)
    notes = " ".join(write_format("sglang", decision_for(sure, draft)).notes)
    assert "p_min 0.75" in notes
    assert "not measured" in notes


def test_a_repository_read_from_the_file_is_called_a_guess() -> None:
    spec, draft = draft_of("draft-simple", "acme/Small-1B")
    d = decision_for(spec, draft, target=with_base(TARGET, "acme/Big-8B"), target_repo=None)
    written = write_format("vllm", d)
    assert loaded(written)["model"] == "acme/Big-8B"
    assert sum("is a guess" in n for n in written.notes) == 2
    tuned = replace(draft, names=replace(draft.names, finetune="Instruct"))
    notes = " ".join(write_format("vllm", decision_for(spec, tuned)).notes)
    assert "fine-tune 'Instruct'" in notes


@example("acme/Big-8B", "https://hf.co/")
@given(
    st.text(max_size=40) | st.text("ab/._-", max_size=9),
    st.sampled_from(["", HUB, "https://hf.co/", "http://huggingface.co/"]),
)
def test_any_base_model_name_gives_a_valid_repository_or_an_error(text: str, start: str) -> None:
    odd = replace(TARGET, names=replace(TARGET.names, base_models=(start + text,), finetune=text))
    try:
        written = write_format("vllm", decision_for(None, target=odd, target_repo=None))
    except FormatError:
        return
    named = loaded(written)["model"]
    assert named in text
    assert re.fullmatch(r"[\w.-]+/[\w.-]+", named)


def test_an_unknown_repository_is_an_error_that_names_the_option() -> None:
    with pytest.raises(FormatError, match="the Hugging Face repository") as e:
        write_format("vllm", decision_for(None, target_repo=None))
    assert "--target-repo" in e.value.hint
    spec = Speculation(("draft-simple",), DRAFT.path)
    with pytest.raises(FormatError, match="loads no GGUF drafts") as e:
        write_format(
            "vllm", decision_for(spec, replace(DRAFT, names=replace(DRAFT.names, base_models=())))
        )
    assert "--draft-repo" in e.value.hint
    same = with_base(DRAFT, "acme/Big-8B")  # drafters often name their target as their base
    with pytest.raises(FormatError, match="loads no GGUF drafts"):
        write_format("vllm", decision_for(spec, same))


def test_a_separate_mtp_head_is_taken_from_the_targets_repository() -> None:
    head = replace(DRAFT, kind="mtp-head", names=replace(DRAFT.names, base_models=()))
    d = decision_for(Speculation(("draft-mtp",), head.path, n_max=3), head)
    assert speculation_in("vllm", d) == {"method": "mtp", "num_speculative_tokens": 3}


@pytest.mark.parametrize(
    "repo", ["", "x", "a/b/c", "../x", "a b/c", "http://huggingface.co/a/b", "-a/b"]
)
@pytest.mark.parametrize("which", ["target_repo", "draft_repo"])
def test_invalid_repository_names_are_errors(repo: str, which: str) -> None:
    given: dict[str, Any] = {which: repo}
    with pytest.raises(UsageError, match="must be OWNER/NAME"):
        write_format("vllm", decision_for(None, **given))


def test_a_spec_type_of_the_user_cannot_be_exported() -> None:
    with pytest.raises(FormatError, match="for llama-server only"):
        write_format("vllm", decision_for(None, None, "--spec-type", "ngram-simple"))


def test_sglangs_start_command_contains_the_model() -> None:
    (start, *_) = write_format("sglang", decision("simple")).notes
    assert shlex.split(start)[:4] == ["sglang", "serve", "--model-path", "acme/Big-8B"]


def test_a_container_gets_the_same_configuration_as_arguments() -> None:
    d = decision("copies", parallel=4, context=8192)
    config = loaded(write_format("vllm", d))
    (service,) = loaded(write_format("vllm-compose", d))["services"].values()
    words = service["command"]
    assert words[0] == config.pop("model")
    flags = dict(zip(words[1::2], words[2::2], strict=True))
    assert json.loads(flags["--speculative-config"]) == config.pop("speculative-config")
    for key in ("max-model-len", "max-num-seqs", "served-model-name"):
        assert flags[f"--{key}"] == str(config[key])


def test_notes_name_arguments_that_are_left_out() -> None:
    notes = write_format("sglang", decision_for(None, None, "-ngl", "20")).notes
    assert any(n.startswith("options of llama-server") and "-ngl" in n for n in notes)


def test_the_draft_length_is_a_multiple_of_the_mtp_heads() -> None:
    three = replace(TARGET, mtp_heads=3)
    for k, expected in ((2, 2), (3, 3), (5, 3), (6, 6)):
        d = decision_for(Speculation(("draft-mtp",), n_max=k), target=three)
        assert speculation_in("vllm", d)["num_speculative_tokens"] == expected


def test_parallelism_over_machines_and_gpus() -> None:
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
    with pytest.raises(FormatError, match="over 8 GPUs"):  # all GPUs are in one stage
        write_format(
            "sglang", decision("dflash", nodes=4, gpus=2, target=replace(TARGET, heads=(4,)))
        )
    heads = max(TARGET.heads)
    with pytest.raises(FormatError, match="attention heads"):
        write_format("vllm", decision("simple", gpus=heads + 1))


def test_a_note_gives_reported_speed_ups_for_many_requests() -> None:
    notes = " ".join(write_format("vllm", decision("simple")).notes)
    assert "1.96x with 1, 1.21x with 128 at a time" in notes
    assert "not measured here" in notes


def test_vllm_stops_drafting_for_large_batches_with_eagle3() -> None:
    many = speculation_in("vllm", decision("eagle3", parallel=64))
    assert many["num_speculative_tokens_per_batch_size"] == [[1, 32, 4], [33, 64, 0]]
    for few in (decision("eagle3", parallel=32), decision("simple", parallel=64)):
        assert "num_speculative_tokens_per_batch_size" not in speculation_in("vllm", few)


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_manifests_are_valid_for_kubernetes(engine: str, nodes: int) -> None:
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
def test_compose_has_one_service_or_two_profiles(engine: str) -> None:
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
def test_a_file_names_specllama_as_its_creator(name: str) -> None:
    assert "made by `specllama plan`" in write_format(name, decision("simple")).text[:400]


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("192.168.7.5", "192.168.7.5:8080"),
        ("0.0.0.0", "127.0.0.1:8080"),
        ("fe80::1", "[fe80::1]:8080"),
        ("::", "[::1]:8080"),
        ("gpu1.lan", "gpu1.lan:8080"),
    ],
)
def test_the_health_check_uses_the_listen_address(engine: str, host: str, address: str) -> None:
    d = decision("simple", nodes=2)
    d = replace(d, plan=replace(d.plan, settings=replace(d.plan.settings, host=host)))
    first = loaded(write_format(f"{engine}-compose", d))["services"]["first"]
    assert f"'http://{address}/health'" in first["healthcheck"]["test"][-1]
    command = first["command"]
    assert command[command.index("--host") + 1] == host


def test_options_for_other_engines_need_one_of_their_formats(
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = str(MODELS / "target.gguf")
    for words in (("--nodes", "2"), ("--target-repo", "a/b", "--format", "shell")):
        assert run(["plan", model, *words]) == 2
        assert f"{words[0]} only applies to other engines" in capsys.readouterr().err


def test_plan_prints_the_file_on_stdout_and_notes_on_stderr(
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
    installed = fields(package("vllm") / "config" / "speculative.py", "SpeculativeConfig")
    assert set(record("vllm")["speculative"]) - installed == set()


def test_the_installed_sglang_has_the_recorded_fields() -> None:
    folder = package("sglang") / "srt" / "arg_groups" / "fields"
    installed = {f.replace("_", "-") for file in folder.glob("*.py") for f in fields(file)}
    recorded = {*record("sglang")["speculative"], *record("sglang")["config"]}
    assert recorded - installed == set()


def test_the_installed_tensorrt_llm_has_the_recorded_fields() -> None:
    installed = fields(package("tensorrt_llm") / "llmapi" / "llm_args.py")
    recorded = {f for names in record("tensorrt-llm")["speculative"].values() for f in names}
    assert recorded - installed == set()


def test_other_engines_are_recommended_for_many_slots_unless_chosen(
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
