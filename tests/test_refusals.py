"""Launches that would fail are refused before they start; limits of speculation are notes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from specllama.engine.launch_options import LaunchOptions, read_launch_options
from specllama.engine.settings import NgramSizes, Settings, Speculation
from specllama.errors import UsageError
from specllama.gguf import read_model
from specllama.planning.choose import Alternative, Choice
from specllama.planning.files import lora_files, named_files
from specllama.planning.passthrough import with_ngram_sizes, with_passthrough_options
from specllama.planning.plan import Plan, make_plan
from specllama.planning.refusals import check_launch, limit_notes, suitable_choice
from specllama.planning.spec_options import SpeculationOptions
from tests import help_render
from tests.support import MODELS

CAPS = help_render.capabilities("b11434")
SETTINGS = Settings(MODELS / "target.gguf", "127.0.0.1", 8080)
DRAFT = Speculation(("draft-simple",), MODELS / "draft.gguf", n_max=8)
NGRAMS = Speculation(("ngram-simple",), ngram=NgramSizes(12, 48))


def options(*words: str) -> LaunchOptions:
    return read_launch_options(words, CAPS, {})


@pytest.mark.parametrize(
    "name",
    [
        "--lora",
        "--mmproj",
        "-lcs",
        "-lcd",
        "--api-key-file",
        "--ssl-key-file",
        "--ssl-cert-file",
        "--chat-template-file",
        "--control-vector",
    ],
)
def test_a_missing_file_is_an_error(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no such file"):
        check_launch(SETTINGS, options(name, str(tmp_path / "absent")))


def test_a_model_given_as_a_lora_is_an_error() -> None:
    with pytest.raises(UsageError, match="a model file, not a LoRA"):
        check_launch(SETTINGS, options("--lora", str(MODELS / "draft.gguf")))


def test_adapters_are_separated_by_commas_and_may_have_scales() -> None:
    found = options("--lora", "a.gguf,b.gguf", "--lora-scaled", "c.gguf:0.5,d.gguf:-1")
    assert [p.name for p in lora_files(found)] == ["a.gguf", "b.gguf", "c.gguf", "d.gguf"]
    assert {name for name, _ in named_files(found)} == {"--lora", "--lora-scaled"}


@pytest.mark.parametrize("words", [("--host", ""), ("--host", "  ")])
def test_an_empty_host_is_an_error(words: tuple[str, str]) -> None:
    with pytest.raises(UsageError, match="--host after -- is empty"):
        check_launch(SETTINGS, options(*words))
    with pytest.raises(UsageError, match="--host is empty"):
        check_launch(replace(SETTINGS, host=words[1]), options())


def test_more_slots_than_llama_cpp_supports_is_an_error() -> None:
    check_launch(replace(SETTINGS, parallel=256), options())
    with pytest.raises(UsageError, match="at most 256 slots"):
        check_launch(replace(SETTINGS, parallel=257), options())


@pytest.mark.parametrize("text", ["x", "-1", "1e3", "", "1.5"])
def test_batch_sizes_must_be_numbers(text: str) -> None:
    for name in ("-b", "-ub"):
        with pytest.raises(UsageError, match="must be a number of tokens"):
            check_launch(SETTINGS, options(name, text))


@pytest.mark.parametrize(("spec", "longest"), [(DRAFT, 8), (NGRAMS, 48)])
@pytest.mark.parametrize("slots", [1, 3])
def test_a_batch_must_be_large_enough_for_a_draft_of_every_slot(
    spec: Speculation, longest: int, slots: int
) -> None:
    choice, least = Choice(spec, ""), slots * (longest + 1)
    assert suitable_choice(choice, options("-b", str(least)), slots) is choice
    with pytest.raises(UsageError, match=f"-b {least - 1} is too small"):
        suitable_choice(choice, options("-b", str(least - 1)), slots)
    assert suitable_choice(Choice(None, ""), options("-b", "1"), slots).speculation is None


@pytest.mark.parametrize("name", ["--embedding", "--embeddings", "--reranking", "--rerank"])
def test_speculation_is_off_for_an_embedding_server(name: str) -> None:
    off = suitable_choice(Choice(DRAFT, ""), options(name), 1)
    assert off.speculation is None
    assert "an embedding server has nothing to draft" in off.reason


@pytest.mark.parametrize("port", ["99999", "0", "65536", "-1", "1e3", "x", ""])
def test_invalid_ports_are_errors(port: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="is not a port"):
        settings_with("--port", port)


def settings_with(*words: str) -> Settings:
    return plan_of(Choice(None, ""), *words).settings


def plan_of(choice: Choice, *words: str) -> Plan:
    from specllama import workloads
    from specllama.engine.locate import Engine

    engine = Engine(("llama-server",), Path("llama-server"), False, "test")
    target = read_model(MODELS / "target.gguf")
    load = workloads.load_workload("chat")
    return make_plan(
        target, load, engine, CAPS, choice, SETTINGS, options(*words), check_port=False
    )


def test_the_url_follows_prefix_port_and_tls(tmp_path: Path) -> None:
    assert settings_with("--api-prefix", "llm/v2/").url == "http://127.0.0.1:8080/llm/v2"
    assert settings_with("--port", "99").url == "http://127.0.0.1:99"
    key, cert = tmp_path / "k", tmp_path / "c"
    secure = settings_with("--ssl-key-file", str(key), "--ssl-cert-file", str(cert))
    assert secure.url == "https://127.0.0.1:8080"


def test_notes_on_limits_appear_only_with_speculation(tmp_path: Path) -> None:
    target, draft = read_model(MODELS / "target.gguf"), read_model(MODELS / "draft.gguf")
    on = Choice(DRAFT, "", draft=draft)
    assert not list(limit_notes(target, Choice(None, ""), options(), 4096))
    own = draft.context_length or 0
    notes = " ".join(limit_notes(target, on, options(), own))
    assert "logprobs" in notes
    assert "was trained on" not in notes
    assert f"was trained on {own:,}" in " ".join(limit_notes(target, on, options(), own + 1))
    assert "21815" in " ".join(
        limit_notes(target, Choice(NGRAMS, ""), options("--context-shift"), own)
    )
    head = Choice(Speculation(("draft-mtp",)), "")
    assert "-sm tensor" in " ".join(limit_notes(target, head, options("-sm", "tensor"), own))
    assert "-sm" not in " ".join(limit_notes(target, on, options("-sm", "tensor"), own))
    assert "LoRA" in " ".join(limit_notes(target, on, options("--lora", "a.gguf"), own))


def spec_options_with(*words: str) -> SpeculationOptions:
    return with_passthrough_options(SpeculationOptions("chat", n_max=3), options(*words))


def test_llama_servers_speculation_options_count_like_ours() -> None:
    found = spec_options_with(
        "--spec-type", "draft-simple", "-md", "d.gguf", "--spec-draft-n-max", "64"
    )
    assert (found.method, found.draft, found.n_max) == ("draft-simple", Path("d.gguf"), 64)
    assert spec_options_with("--spec-type", "none").method == "none"
    assert spec_options_with("--spec-type", "ngram-mod,none").method == "none"
    assert spec_options_with("--spec-type", "what-is-new").method is None
    assert spec_options_with() == SpeculationOptions("chat", n_max=3)


def test_a_batch_must_be_large_enough_for_the_users_n_gram_size() -> None:
    words = ("--spec-ngram-simple-size-n", "2", "--spec-ngram-simple-size-m", "100", "-b", "64")
    spec = with_ngram_sizes(NGRAMS, options(*words))
    assert spec is not None
    assert spec.ngram == NgramSizes(2, 100)
    with pytest.raises(UsageError, match="-b 64 is too small"):
        suitable_choice(Choice(spec, ""), options(*words), 1)


def test_notes_belong_to_the_served_setting() -> None:
    draft = read_model(MODELS / "draft.gguf")
    choice = Choice(DRAFT, "", warnings=("it reads 13%",), draft=draft, notes=("a busy port",))
    plan = plan_of(replace(choice, alternatives=(Alternative(NGRAMS, None, ""),)))
    assert {"it reads 13%", "a busy port"} <= set(plan.notes)
    other = plan.with_speculation(NGRAMS).notes
    assert "it reads 13%" not in other
    assert "a busy port" in other
    assert any("logprobs" in n for n in other)
    assert plan.without_speculation("").notes == ("a busy port",)
