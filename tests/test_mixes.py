"""Workloads of several profiles, profiles of the user, and the requests made from a profile."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from specllama import workloads
from specllama.cli.render import plan_lines
from specllama.engine.client import Client, Conversation, Prompt, Timings
from specllama.engine.settings import Settings
from specllama.errors import UsageError
from specllama.memory.devices import Device
from specllama.planning.plan import Plan
from specllama.planning.prepare import prepare
from specllama.planning.spec_options import SpeculationOptions
from specllama.prompts import as_text, without_tools
from specllama.serving.launch import launch
from specllama.serving.result_keys import device_names, result_subject
from specllama.serving.scope import SearchScope, make_task
from specllama.serving.verify import BRIEF_TOKENS, PROBE_PROMPTS, PROBE_TOKENS, _ask, verify
from specllama.tuning.run import Task
from tests.edited import edited
from tests.support import MODELS, ONE_THREAD

TOML = """title = "x"
methods = ["ngram-simple"]
[sampling]
temperature = 0.5
[ngram]
n = 4
m = 8
[draft]
n_max = 2
p_min = 0
"""


def user_profile(name: str, prompts: str, settings: str = TOML, suffix: str = "jsonl") -> Path:
    """A profile in the user's folder."""
    folder = workloads.user_profiles_dir()
    (folder / "prompts").mkdir(parents=True, exist_ok=True)
    (folder / "prompts" / f"{name}.{suffix}").write_text(prompts, encoding="utf-8")
    file = folder / f"{name}.toml"
    file.write_text(settings, encoding="utf-8")
    return file


def test_a_mix_alternates_prompts_and_has_the_first_workloads_settings() -> None:
    code, creative = workloads.load_workload("code"), workloads.load_workload("creative")
    mix = workloads.load_workload("code, creative")
    assert mix.name == "code,creative"
    assert mix.prompts[:4] == (
        code.prompts[0], creative.prompts[0], code.prompts[1], creative.prompts[1]
    )  # fmt: skip
    assert len(mix.prompts) == 48
    assert (mix.sampling, mix.ngram, mix.n_max) == (code.sampling, code.ngram, code.n_max)
    assert set(mix.methods) == {*code.methods, *creative.methods}
    assert mix.methods[: len(code.methods)] == code.methods


def test_a_mix_of_workloads_of_unequal_size_has_all_prompts() -> None:
    code = workloads.load_workload("code")
    few = replace(code, name="few", prompts=code.prompts[:3])
    assert len(workloads.mix([few, code]).prompts) == 27


@pytest.mark.parametrize("name", ["nope", "code,nope"])
def test_a_mix_with_an_unknown_workload_is_an_error(name: str) -> None:
    with pytest.raises(UsageError, match="no workload called 'nope'"):
        workloads.load_workload(name)


@pytest.mark.parametrize(
    ("name", "side"), [("code,", "after"), (",code", "before"), ("code,,chat", "after")]
)
def test_an_empty_name_in_a_mix_is_an_error(name: str, side: str) -> None:
    with pytest.raises(UsageError, match=f"--workload {name}: the name {side} the comma is empty"):
        workloads.load_workload(name)


def test_a_workload_mixed_with_itself_is_unchanged() -> None:
    assert workloads.load_workload("code,code") == workloads.load_workload("code")


def test_a_plan_for_a_mix_names_the_settings_and_has_its_own_results() -> None:
    settings = Settings(MODELS / "target.gguf", "127.0.0.1", 0, context=512)
    keys = set()
    for name in ("code", "code,chat", "chat,code"):
        plan = prepare(settings, SpeculationOptions(name, method="ngram-simple"), (), "embedded")
        keys.add(result_subject(plan, (), SearchScope()).key)
        assert any("starts with code's" in line for line in plan_lines(plan)) == (
            name == "code,chat"
        )
    assert len(keys) == 3


def plan_for_a_key(*words: str, **changes: Any) -> Plan:
    settings = replace(Settings(MODELS / "target.gguf", "127.0.0.1", 0, context=512), **changes)
    return prepare(settings, SpeculationOptions("code", method="ngram-simple"), words, "embedded")


def key(plan: Plan, prompts: Sequence[Prompt] = ()) -> str:
    return result_subject(plan, (), SearchScope(), prompts).key


def test_a_result_is_for_everything_that_changes_speed_or_acceptance() -> None:
    plan = plan_for_a_key()
    work = plan.workload
    others = [
        key(plan_for_a_key(parallel=2)),
        key(plan_for_a_key("-c", "256")),
        key(plan, ["one"]),
        key(plan, ["another"]),
        *(
            key(replace(plan, workload=changed))
            for changed in (
                replace(work, sampling={"temperature": 0.123}),
                replace(work, ngram=replace(work.ngram, n=work.ngram.n + 1)),
                replace(work, prompts=work.prompts[1:]),
            )
        ),
    ]
    assert len({key(plan), *others}) == 1 + len(others)


def test_a_result_is_for_any_address_and_the_requested_context() -> None:
    plan = plan_for_a_key()
    assert key(plan_for_a_key("--alias", "x", "--metrics")) == key(plan)
    assert plan.budget is not None
    less = replace(plan, settings=replace(plan.settings, context=256))  # what fits today
    assert key(less) == key(plan)


def test_variables_of_devices_are_in_a_key_but_no_secrets() -> None:
    plan = plan_for_a_key()
    env = {"GGML_VK_VISIBLE_DEVICES": "1", "GGML_API_KEY": "s3cret", "HOME": "/x"}
    with_env = replace(plan, command=replace(plan.command, env=env))
    options = result_subject(with_env, (), SearchScope()).options
    assert "GGML_VK_VISIBLE_DEVICES=1" in options
    assert not any("s3cret" in o or "/x" in o for o in options)


def test_a_key_holds_no_text_of_the_user() -> None:
    def options(text: str) -> tuple[str, ...]:
        plan = plan_for_a_key("--chat-template", text)
        return result_subject(plan, (), SearchScope()).options

    assert not any("private" in o for o in options("private"))
    assert options("private") != options("other")


def test_a_new_gpu_driver_makes_a_result_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_for_a_key()
    assert plan.budget is not None
    request = plan.budget.request
    gpu = Device("CUDA0", "GPU", 2**33, 2**33, "test")
    machine = replace(request.machine, gpus=(gpu,))
    budget = replace(plan.budget, request=replace(request, machine=machine))
    monkeypatch.setattr("specllama.serving.result_keys.driver", lambda: "550.1")
    assert list(device_names(replace(plan, budget=budget)))[:2] == ["CUDA0 GPU", "driver 550.1"]
    assert not any("driver" in name for name in device_names(plan))


class Scripted:
    """A client whose server drafts nothing. `limits`: of the requests it got."""

    def __init__(self) -> None:
        self.limits: list[int] = []

    def metrics(self) -> None:
        return None

    def slots(self) -> list[dict[str, object]]:
        return [{"speculative": False}]

    def chat(self, prompt: Prompt, tokens: int, *_: object) -> SimpleNamespace:
        self.limits.append(tokens)
        return SimpleNamespace(timings=Timings(9, 9.0, tokens, 9.0, 0, 0))

    complete = chat


def test_a_brief_check_is_short_for_drafts_but_not_for_ngrams() -> None:
    """N-grams draft once text repeats, which takes more than one short response."""
    settings = Settings(MODELS / "target.gguf", "127.0.0.1", 0, context=512)
    for options, limits in (
        (SpeculationOptions("code", MODELS / "draft.gguf"), [BRIEF_TOKENS]),
        (SpeculationOptions("code", method="ngram-simple"), [PROBE_TOKENS] * PROBE_PROMPTS),
    ):
        plan, client = prepare(settings, options, (), "embedded"), Scripted()
        found = verify(cast(Client, client), plan, "", brief=True)
        assert client.limits == limits
        assert found.reason == "llama-server started without it"


def test_the_users_spec_type_none_is_the_reason_for_no_drafts() -> None:
    plan = plan_for_a_key("--spec-type", "none")
    found = verify(cast(Client, Scripted()), plan, "")
    assert (found.engaged, found.reason) == (False, "--spec-type none is set")


def test_short_and_long_option_names_share_one_result() -> None:
    settings = Settings(MODELS / "target.gguf", "127.0.0.1", 0, context=512)
    spec_options = SpeculationOptions("code", method="ngram-simple")
    keys = [
        result_subject(prepare(settings, spec_options, words, "embedded"), (), SearchScope()).key
        for words in (("-t", "1"), ("--threads", "1"), ("-t", "2"))
    ]
    assert keys[0] == keys[1] != keys[2]


def test_a_users_profile_takes_precedence_over_a_built_in_one() -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]
    lines = [{"prompt": "one"}, {"messages": messages}]
    mine = user_profile("mine", "\n".join(map(json.dumps, lines)))
    other = user_profile("code", "only this", suffix="txt")
    try:
        assert workloads.load_workload("mine").prompts == ("one", Conversation(tuple(messages)))
        assert "mine" in workloads.names()
        assert workloads.load_workload("code").prompts == ("only this",)
    finally:
        mine.unlink()
        other.unlink()


def test_a_copied_profile_without_prompts_uses_the_built_in_prompts() -> None:
    """Someone who changes K in a copy of code.toml needs no second file."""
    file = workloads.user_profiles_dir() / "edit.toml"
    prompts = workloads.load_workload("edit").prompts
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(TOML)
    try:
        w = workloads.load_workload("edit")
        assert (w.n_max, w.prompts) == (2, prompts)
    finally:
        file.unlink()


@pytest.mark.parametrize(
    ("settings", "prompts"),
    [
        ("thinking = 1\n" + TOML, '{"prompt": "x"}'),
        ("max_tokens = 0\n" + TOML, '{"prompt": "x"}'),
        ("max_tokens = inf\n" + TOML, '{"prompt": "x"}'),
        (TOML.replace("0.5", "5"), '{"prompt": "x"}'),
        (TOML.replace("[sampling]\ntemperature = 0.5", "sampling = 3"), '{"prompt": "x"}'),
        (TOML, "not json"),
        (TOML, ""),
        (TOML, '{"answer": "x"}'),
    ],
)
def test_a_broken_user_profile_is_an_error(settings: str, prompts: str) -> None:
    file = user_profile("broken", prompts, settings)
    try:
        with pytest.raises(UsageError, match="broken"):
            workloads.load_workload("broken")
    finally:
        file.unlink()


def test_reasoning_enables_thinking_and_longer_responses() -> None:
    w = workloads.load_workload("reasoning")
    assert w.sampling["chat_template_kwargs"] == {"enable_thinking": True}
    settings = Settings(MODELS / "target.gguf", "127.0.0.1", 0, context=512)
    plan = prepare(settings, SpeculationOptions("reasoning", method="ngram-simple"), (), "embedded")
    task: Task = make_task(plan, SearchScope(), (), 60, thorough=False)
    assert task.max_tokens == w.max_tokens > workloads.load_workload("chat").max_tokens


def test_thinking_is_enabled_when_a_prompt_is_rendered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt's ids must be those that the chat endpoint evaluates."""
    sent: list[dict[str, object]] = []
    client = Client("http://127.0.0.1:1")

    def post(path: str, body: dict[str, object]) -> dict[str, object]:
        sent.append(body)
        return {}

    monkeypatch.setattr(client, "_post_json", post)
    client.render("hello", workloads.load_workload("reasoning").sampling)
    assert sent[0]["chat_template_kwargs"] == {"enable_thinking": True}
    assert "temperature" not in sent[0]


def test_conversations_use_the_chat_endpoint_even_for_base_models() -> None:
    """The check after a launch sends a profile's first prompts; a base model has no template."""
    prompts: list[Prompt] = []

    def chat(prompt: Prompt, *_: object) -> SimpleNamespace:
        prompts.append(prompt)
        return SimpleNamespace(timings="seen")

    client = SimpleNamespace(chat=chat)
    plan = SimpleNamespace(
        target=SimpleNamespace(has_chat_template=False), workload=SimpleNamespace(sampling={})
    )
    talk = Conversation(({"role": "user", "content": "hello"},))
    assert _ask(client, plan, talk, 8) == "seen"  # type: ignore[arg-type,comparison-overlap]
    assert prompts == [talk]


# ---- tools


def test_tools_of_the_agent_workload_are_in_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[str, dict[str, object]]] = []
    client = Client("http://127.0.0.1:1")

    def post(path: str, body: dict[str, object]) -> dict[str, object]:
        sent.append((path, body))
        return {"choices": [{"message": {}}]}

    monkeypatch.setattr(client, "_post_json", post)
    prompt = workloads.load_workload("agent").prompts[0]
    client.render(prompt)
    client.chat(prompt, 8, {})
    assert [path for path, _ in sent] == ["/apply-template", "/v1/chat/completions"]
    for _, body in sent:
        tools, messages = cast(Any, body["tools"]), cast(Any, body["messages"])
        assert [t["function"]["name"] for t in tools] == ["set_light"]
        assert messages[0]["content"].startswith("Turn the lamps")
    client.chat("a text", 8, {})
    assert "tools" not in sent[-1][1]


def agent_plan(target: Path, *user_args: str) -> Plan:
    settings = Settings(target, "127.0.0.1", 0, context=512)
    return prepare(
        settings, SpeculationOptions("agent", method="ngram-simple"), user_args, "embedded"
    )


def test_tools_become_text_if_the_template_would_drop_them(tmp_path: Path) -> None:
    """llama.cpp silently drops them if the chat template does not use them."""
    with_tools = edited(
        MODELS / "target.gguf",
        tmp_path / "t.gguf",
        {
            "tokenizer.chat_template": "{{ tools }}{% for m in messages %}{{ m.content }}{% endfor %}"
        },
    )
    for plan, reason in (
        (agent_plan(with_tools), ""),
        (agent_plan(with_tools, "--no-jinja"), "--no-jinja"),
        (agent_plan(MODELS / "target.gguf"), "the model's chat template does not support tools"),
    ):
        first = plan.prompts()[0]
        notes = [n for n in plan.notes if "agent" in n]
        assert isinstance(first, Conversation)
        assert plan.takes_tools == bool(first.tools) == (not reason)
        assert ("set_light" in str(first.messages)) == bool(reason)
        assert notes == (
            [f"workload agent: tools are sent as text in the prompts ({reason})"] if reason else []
        )
        assert make_task(plan, SearchScope(), (), 60, thorough=False).prompts == plan.prompts()
    assert not [n for n in prepare(
        Settings(MODELS / "target.gguf", "127.0.0.1", 0), SpeculationOptions("code", method="ngram-simple"), (), "embedded"
    ).notes if "tools" in n]  # fmt: skip


def test_tools_as_text_come_before_the_first_user_message() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    talk = Conversation(
        ({"role": "system", "content": "s"}, {"role": "user", "content": "u"}), (tool,)
    )
    plain = without_tools(talk)
    assert isinstance(plain, Conversation)
    assert plain.tools == ()
    assert plain.messages[0]["content"] == "s"
    assert plain.messages[1]["content"].endswith("\n\nu")
    assert '{"name": "f", "parameters": {}}' in plain.messages[1]["content"]
    assert talk.messages[1]["content"] == "u"
    assert without_tools("text") == "text"
    assert '"name": "f"' in as_text(talk)


class Quiet:
    """A Progress that shows nothing."""

    def say(self, text: str) -> None:
        pass

    def busy(self, text: str) -> AbstractContextManager[None]:
        return nullcontext()


@pytest.mark.parametrize("engine", ["native", "embedded"])
def test_engines_render_tools_into_the_prompt(engine: str, tmp_path: Path) -> None:
    target = edited(
        MODELS / "target.gguf",
        tmp_path / "t.gguf",
        {
            "tokenizer.chat_template": "{% if tools %}{{ tools | tojson }}\n{% endif %}"
            "{% for m in messages %}{{ m.content }}\n{% endfor %}"
        },
    )
    server = os.environ.get("SPECLLAMA_TEST_LLAMA_SERVER") if engine == "native" else engine
    if not server:
        pytest.skip("SPECLLAMA_TEST_LLAMA_SERVER must name a llama-server")
    settings = Settings(target, "127.0.0.1", 0, context=2048)
    plan = prepare(
        settings, SpeculationOptions("agent", method="ngram-simple"), tuple(ONE_THREAD[1:]), server
    )
    running = launch(plan, tmp_path / "log", Quiet())
    try:
        prompt = plan.prompts()[0]
        assert "set_light" in running.client.render(prompt)
        response = running.client.chat(prompt, 8, plan.workload.sampling)
        assert response.timings is not None
        assert response.timings.prompt_tokens > 60
    finally:
        running.stop()
