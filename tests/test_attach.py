"""probe --url: counters of other engines by their exact names, and invalid servers."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specllama.errors import UsageError
from specllama.planning.plan import free_port
from specllama.tuning.errors import TuningError
from specllama.watching import served_models, streamed
from specllama.watching.address import on_this_machine
from specllama.watching.chat_server import Server
from specllama.watching.prometheus_text import parse_snapshot
from tests.openai_server import SGLANG, TRTLLM, VLLM, serving
from tests.support import MODELS, Serve, specllama


def test_vllm_counters_are_read_by_exact_names() -> None:
    with serving(VLLM) as url:
        done = specllama("probe", "--url", f"{url}/v1", "--json", "--budget", "5")
    data = json.loads(done.stdout)
    assert (data["engine"], data["model"]) == ("vLLM", "m")
    assert data["alpha"] == pytest.approx(0.6)  # 12 of 20, without the per-position series
    assert data["tau"] == pytest.approx(2.2)
    assert data["acceptance_by_position"] == pytest.approx([0.8, 0.4])
    assert data["responses"] >= 2
    assert data["first_token_ms"] > 0


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost", True),
        ("llm.localhost", True),
        ("0.0.0.0", True),
        ("192.168.1.7", False),
        ("localhost.example.org", False),
        ("", False),
    ],
)
def test_which_hosts_are_this_machine(host: str, local: bool) -> None:
    assert on_this_machine(host) is local


def test_a_proxy_is_used_for_other_machines_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The proxy is a server with another model than the server itself."""
    with serving(VLLM) as url, serving(VLLM, models={"data": [{"id": "proxied"}]}) as proxy:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy)
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
        for address, model in ((url, "m"), ("http://llm.example.org:8000", "proxied")):
            server = Server(address)
            try:
                assert server.model().name == model
            finally:
                server.close()


@pytest.mark.parametrize(
    ("url", "proxy", "message"),
    [
        ("http://[::1", "", "--url http://[::1: "),
        ("http://h:port", "", "--url http://h:port: "),
        ("http://h:1", "nonsense://x", "--url http://h:1: "),
    ],
)
def test_an_invalid_url_is_a_usage_error(
    url: str, proxy: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", proxy)
    with pytest.raises(UsageError, match=re.escape(message)):
        Server(url)


@pytest.mark.parametrize(
    ("metrics", "path", "engine", "alpha", "tau"),
    [
        (SGLANG, "/metrics", "SGLang", 0.55, 2.4),
        (TRTLLM, "/prometheus/metrics", "TensorRT-LLM", 0.6, 2.1),
    ],
)
def test_engines_that_report_gauges(
    metrics: str, path: str, engine: str, alpha: float, tau: float
) -> None:
    with serving(metrics, path) as url:
        data = json.loads(specllama("probe", "--url", url, "--json").stdout)
    assert data["engine"] == engine
    assert (data["alpha"], data["tau"]) == (pytest.approx(alpha), pytest.approx(tau))


@pytest.mark.parametrize(
    ("metrics", "path", "message"),
    [
        (VLLM.replace("{accepted}", "{drafted}9"), "/metrics", "drafted tokens accepted"),
        (VLLM.replace("{drafted}", "-{drafted}"), "/metrics", "drafted tokens accepted"),
        (VLLM.replace("{first}", "{drafted}"), "/metrics", "2 of the drafts accepted"),
        (VLLM.replace("{accepted}.0", "NaN"), "/metrics", "the counters are not finite numbers"),
        (SGLANG.replace("0.55", "3"), "/metrics", "α=3"),
        (TRTLLM.replace("2.1", "0.5"), "/prometheus/metrics", "τ=0.5"),
    ],
)
def test_impossible_counters_are_rejected_with_a_reason(
    metrics: str, path: str, message: str
) -> None:
    with serving(metrics, path) as url:
        data = json.loads(specllama("probe", "--url", url, "--json", "--budget", "1").stdout)
    assert (data["alpha"], data["tau"], data["acceptance_by_position"]) == (None, None, [])
    assert len(data["missing"]) == 1
    assert data["missing"][0].startswith("the counters ")
    assert message in data["missing"][0]


def test_an_acceptance_length_of_0_means_nothing_was_drafted() -> None:
    with serving(SGLANG.replace("2.4", "0.0").replace("0.55", "0.0")) as url:
        done = specllama("probe", "--url", url, "--budget", "1")
    assert "no drafted tokens were counted" in done.stdout
    assert "accepts" not in done.stdout


def test_without_metrics_only_the_speed_is_measured() -> None:
    with serving() as url:
        done = specllama("probe", "--url", url)
    assert done.returncode == 0
    assert "tok/s" in done.stdout
    assert "note     no known metrics: acceptance is unknown" in done.stdout


def test_a_baseline_url_gives_a_speedup() -> None:
    with serving(VLLM) as url, serving() as plain:
        data = json.loads(
            specllama("probe", "--url", url, "--baseline-url", plain, "--json").stdout
        )
    assert len(data["speedup"]) == 3


def test_two_servers_get_requests_in_alternating_order() -> None:
    order: list[str] = []
    a, b = ({"data": [{"id": name}]} for name in "ab")
    with serving(models=a, requests=order) as one, serving(models=b, requests=order) as two:
        specllama("probe", "--url", one, "--baseline-url", two, "--budget", "0.001")
    assert [name for name in order if name in ("a", "b")] == ["a", "b", "a", "b", "b", "a"]


def chunk(**delta: object) -> dict[str, object]:
    return {"choices": [{"delta": delta}]}


@pytest.mark.parametrize(
    "delta",
    [
        {"reasoning": "so "},
        {"reasoning_content": "so "},
        {"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]},
    ],
)
def test_streamed_reasoning_and_tool_calls_count_as_tokens(delta: dict[str, object]) -> None:
    """Once all tokens counted but only those after the reasoning were timed: 1097 tok/s, not 100."""
    usage = {"choices": [], "usage": {"completion_tokens": 20}}
    reasoning = [e for _ in range(19) for e in (chunk(role="assistant", **delta), 0.01)]
    with serving(answer=lambda n: [*reasoning, chunk(content="yes"), usage]) as url:
        data = json.loads(specllama("probe", "--url", url, "--json", "--budget", "1").stdout)
    assert data["tokens_per_second"] < 105
    with serving(answer=lambda n: [*reasoning, usage]) as url:  # no content after the reasoning
        data = json.loads(specllama("probe", "--url", url, "--json", "--budget", "1").stdout)
    assert 0 < data["tokens_per_second"] < 105


def test_hidden_reasoning_tokens_do_not_count_for_the_speed() -> None:
    details = {"completion_tokens_details": {"reasoning_tokens": 900}}
    words = [e for _ in range(11) for e in (chunk(content="word "), 0.01)]
    usage = {"choices": [], "usage": {"completion_tokens": 911, **details}}
    with serving(answer=lambda n: [*words, usage]) as url:
        data = json.loads(specllama("probe", "--url", url, "--json", "--budget", "1").stdout)
    assert data["tokens_per_second"] < 105


def test_reasoning_tokens_that_are_not_in_the_count_are_not_subtracted() -> None:
    """Some servers count only the visible tokens as completion_tokens."""
    details = {"completion_tokens_details": {"reasoning_tokens": 900}}
    event = {"usage": {"completion_tokens": 11, **details}}
    assert streamed.tokens(event, thoughts_seen=False) == 11
    fewer = {
        "usage": {"completion_tokens": 20, "completion_tokens_details": {"reasoning_tokens": 15}}
    }
    assert streamed.tokens(fewer, thoughts_seen=False) == 5
    assert streamed.tokens(fewer, thoughts_seen=True) == 20, "they were streamed, and timed"


def test_a_histogram_that_contradicts_its_counts_is_ignored() -> None:
    def counts(**changes: object) -> streamed.DraftCounts | None:
        answer = {**VLLM_ANSWER, **changes}
        return streamed.draft_counts({"metrics": {"speculative_decoding": answer}})

    assert counts() == streamed.DraftCounts(129, 10, 43, (39, 1, 0, 3))
    assert counts(num_spec_steps=44) == streamed.DraftCounts(129, 10, 44, ())
    assert counts(num_accepted_draft_tokens=11) == streamed.DraftCounts(129, 11, 43, ())


def test_a_boolean_is_not_a_count_of_tokens() -> None:
    assert streamed.draft_counts({"timings": {"draft_n": True, "draft_n_accepted": True}}) is None


def test_acceptance_by_depth_needs_the_histogram_of_every_response() -> None:
    whole = streamed.DraftCounts(6, 3, 3, (1, 1, 1))
    without = streamed.DraftCounts(4, 4, None)
    assert streamed.combined([whole, whole]) == streamed.DraftCounts(12, 6, 6, (2, 2, 2))
    assert streamed.combined([whole, without]) == streamed.DraftCounts(10, 7, None, ())


VLLM_ANSWER = {
    "mean_acceptance_length": 1.2325581395348837,
    "draft_acceptance_rate": 0.07751937984496124,
    "acceptance_histogram": [39, 1, 0, 3],
    "num_spec_steps": 43,
    "num_accepted_draft_tokens": 10,
    "num_draft_tokens": 129,
    "num_spec_tokens": 3,
}
TRTLLM_ANSWER = {
    "acceptance_rate": 0.5,
    "total_accepted_draft_tokens": 30,
    "total_draft_tokens": 60,
    "num_spec_steps": 20,
    "acceptance_histogram": [8, 0, 6, 6],
    "num_spec_tokens": 3,
}


@pytest.mark.parametrize(
    ("last_event", "alpha", "tau", "by_position"),
    [
        (
            {"choices": [], "metrics": {"speculative_decoding": VLLM_ANSWER}},
            10 / 129,
            1 + 10 / 43,
            [4 / 43, 3 / 43, 3 / 43],
        ),
        (
            {"choices": [{"delta": {}, "speculative_decoding": TRTLLM_ANSWER}]},
            0.5,
            2.5,
            [12 / 20, 12 / 20, 6 / 20],
        ),
        ({"choices": [], "timings": {"draft_n": 40, "draft_n_accepted": 10}}, 0.25, None, []),
    ],
)
def test_draft_counts_in_a_response_take_precedence_over_metrics(
    last_event: dict[str, object], alpha: float, tau: float | None, by_position: list[float]
) -> None:
    """The server's counters include requests of other clients."""
    with serving(
        VLLM, answer=lambda n: [chunk(content="a "), chunk(content="b"), last_event]
    ) as url:
        data = json.loads(specllama("probe", "--url", url, "--json", "--budget", "1").stdout)
    assert data["of_these_responses_alone"] is True
    assert data["alpha"] == pytest.approx(alpha)
    assert data["tau"] == (None if tau is None else pytest.approx(tau))
    assert data["acceptance_by_position"] == pytest.approx(by_position)


def test_tau_is_read_from_metrics_that_match_the_responses() -> None:
    """10 drafts of 2 tokens per response, 12 of 20 accepted, as in /metrics."""
    last_event = {"choices": [], "timings": {"draft_n": 20, "draft_n_accepted": 12}}
    with serving(
        VLLM, answer=lambda n: [chunk(content="a "), chunk(content="b"), last_event]
    ) as url:
        data = json.loads(specllama("probe", "--url", url, "--json", "--budget", "1").stdout)
    assert (data["alpha"], data["tau"]) == (pytest.approx(0.6), pytest.approx(2.2))
    assert data["missing"] == []


def router_entry(name: str, value: str, *args: str) -> dict[str, object]:
    """As llama.cpp's router lists a model (server-models.cpp, b11434)."""
    status = {"value": value, "args": ["llama-server", *args]}
    return {"id": name, "owned_by": "llamacpp", "status": status, "aliases": [f"{name}:latest"]}


ROUTER = {
    "data": [
        router_entry("nomic-embed", "unloaded", "--embeddings"),
        router_entry("bge", "loaded", "--embeddings"),
        router_entry("asleep", "sleeping"),
        router_entry("chat", "loaded"),
        router_entry("big", "unloaded"),
    ]
}


def test_a_routers_loaded_text_model_is_used() -> None:
    requests: list[str] = []
    with serving(VLLM, models=ROUTER, requests=requests) as url:
        data = json.loads(specllama("probe", "--url", url, "--json", "--budget", "1").stdout)
        named = specllama("probe", "--url", url, "--model", "chat:latest", "--budget", "1")
    assert data["model"] == "chat"
    assert ", chat" in named.stdout
    assert set(requests) == {"chat autoload=false", "/metrics?model=chat&autoload=false"}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("big", "big is not loaded at"),
        ("asleep", "asleep is not loaded at"),
        ("nobody", "lists no model nobody"),
    ],
)
def test_naming_an_unloaded_model_does_not_load_it(name: str, message: str) -> None:
    requests: list[str] = []
    with (
        serving(VLLM, models=ROUTER, requests=requests) as url,
        closing(Server(url)) as server,
        pytest.raises(TuningError, match=message),
    ):
        server.model(name)
    assert requests == []


@pytest.mark.parametrize(
    ("others", "models", "chosen"),
    [
        (
            {"/running": {"running": [{"model": "b", "state": "ready"}]}},
            {"data": [{"id": "a", "owned_by": "llama-swap"}, {"id": "b"}]},
            "b",
        ),
        (
            {"/running": {"running": [{"model": "a", "state": "starting"}]}},
            {"data": [{"id": "a", "owned_by": "llama-swap"}]},
            "has no model loaded (it lists a)",
        ),
        (
            {"/api/ps": {"models": [{"name": "qwen:7b", "model": "qwen:7b"}]}},
            {"data": [{"id": "gemma:2b", "owned_by": "library"}, {"id": "qwen:7b"}]},
            "qwen:7b",
        ),
        (
            {
                "/api/v0/models": {
                    "data": [
                        {"id": "e", "type": "embeddings", "state": "loaded"},
                        {"id": "x", "type": "llm", "state": "not-loaded"},
                        {"id": "v", "type": "vlm", "state": "loaded"},
                    ]
                }
            },
            {"data": [{"id": "e"}, {"id": "x"}, {"id": "v"}]},
            "v",
        ),
        ({}, {"data": [{"id": "a"}, {"id": "b"}]}, "lists 2 models and does not say which"),
        ({}, {"data": [{"id": "base", "owned_by": "vllm"}, {"id": "lora"}]}, "lora"),
        ({}, {"data": [router_entry("chat", "unloaded")]}, "has no model loaded (it lists chat)"),
        ({}, {"data": [router_entry("bge", "loaded", "--rerank")]}, "do not generate text"),
    ],
)
def test_the_model_that_a_proxy_or_desktop_program_has_loaded(
    others: dict[str, object], models: dict[str, list[dict[str, object]]], chosen: str
) -> None:
    if chosen == "lora":  # an engine lists all models that it has loaded
        models = {"data": [{**m, "owned_by": "vllm"} for m in models["data"]]}
        chosen = "base"
    with serving(models=models, others=others) as url, closing(Server(url)) as server:
        if " " not in chosen:
            assert server.model().name == chosen
            return
        with pytest.raises(TuningError, match=re.escape(chosen)):
            server.model()


def test_probe_of_a_running_llama_server(tmp_path: Path, engine: str) -> None:
    target, draft = MODELS / "target.gguf", MODELS / "draft.gguf"
    with Serve(tmp_path, target, "--draft", draft, "--llama-server", engine) as s:
        data = json.loads(specllama("probe", "--url", s.url, "-w", "code", "--json").stdout)
    assert data["engine"] == "llama.cpp"
    assert 0 < data["alpha"] < 1
    assert 1 < data["tau"] < 5
    assert data["acceptance_by_position"][0] >= data["acceptance_by_position"][-1]


@contextmanager
def router(binary: Path, folder: Path) -> Iterator[str]:
    """Runs llama.cpp's router on a folder of models; gives its URL."""
    port = free_port("127.0.0.1", 0)
    argv: list[str | Path] = [
        binary,
        "--models-dir",
        folder,
        "--port",
        str(port),
        "-t",
        "1",
        "-c",
        "1024",
    ]
    with (folder / "log").open("w") as log:
        popen = subprocess.Popen([*argv, "--metrics"], stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_until(lambda: httpx.get(f"{url}/health").status_code == 200)
        yield url
    finally:
        popen.terminate()
        popen.wait(20)


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while True:
        with suppress(httpx.HTTPError):
            if condition():
                return
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_probe_does_not_make_a_real_router_load_a_model(tmp_path: Path, native: Path) -> None:
    for name in ("draft", "target"):
        shutil.copy(MODELS / f"{name}.gguf", tmp_path)

    def loaded(url: str) -> list[str]:
        models = httpx.get(f"{url}/v1/models").json()["data"]
        return [m["id"] for m in models if m["status"]["value"] == "loaded"]

    with router(native, tmp_path) as url:
        refused = specllama("probe", "--url", url)
        assert "has no model loaded (it lists draft, target)" in refused.stderr
        assert loaded(url) == []
        httpx.post(f"{url}/models/load", json={"model": "target"})
        _wait_until(lambda: loaded(url) == ["target"])
        data = json.loads(specllama("probe", "--url", url, "--budget", "1", "--json").stdout)
        assert (data["engine"], data["model"]) == ("llama.cpp", "target")
        assert loaded(url) == ["target"]


def test_a_required_api_key_is_reported_and_used() -> None:
    with serving(VLLM, key="sesame") as url:
        refused = specllama("probe", "--url", url)
        assert refused.returncode == 2
        assert refused.stderr.startswith(f"error: {url} requires an API key")
        wrong = specllama("probe", "--url", url, SPECLLAMA_API_KEY="mustard")
        assert wrong.stderr.startswith(f"error: {url} rejects the API key")
        accepted = specllama("probe", "--url", url, "--json", SPECLLAMA_API_KEY="sesame")
    assert accepted.returncode == 0
    assert "sesame" not in accepted.stdout + accepted.stderr


@pytest.mark.parametrize(
    ("models", "message"),
    [(b"<html>hello</html>", "is not an LLM server"), ({"data": []}, "is not an LLM server")],
)
def test_a_server_that_is_not_an_llm_server_is_an_error(models: object, message: str) -> None:
    with serving(models=models) as url:
        done = specllama("probe", "--url", url)
    assert done.returncode == 1
    assert message in done.stderr.splitlines()[0]


@pytest.mark.parametrize(
    ("answer", "status", "message"),
    [
        (lambda n: ["{not json"], 200, "a completion was cut off"),
        (lambda n: [{"choices": []}], 200, "returned a completion without text"),
        (lambda n: [{"choices": [{"delta": {"role": "assistant"}}]}], 200, "without text"),
        (None, 400, "answered a completion with 400"),
    ],
)
def test_invalid_responses_are_errors(answer: object, status: int, message: str) -> None:
    with serving(answer=answer, status=status) as url:  # type: ignore[arg-type]
        done = specllama("probe", "--url", url)
    assert done.returncode == 1
    assert message in done.stderr.splitlines()[0]
    assert len(done.stderr.splitlines()) <= 2


@pytest.mark.parametrize("status", [200, 500])
def test_endless_responses_are_cut_off_with_an_error(status: int) -> None:
    """This limits the lines of a stream and the text of an error."""
    endless = httpx.MockTransport(
        lambda _: httpx.Response(status, content=itertools.repeat(b"x" * 2**20))
    )
    server = Server("http://127.0.0.1:9")
    server._http = httpx.Client(base_url="http://h", transport=endless)
    with closing(server), pytest.raises(TuningError, match=r"cut off \(.* than \d+ MiB\)"):
        server.ask(served_models.ListedModel("m"), "x", 4, {})


@pytest.mark.parametrize("refuses", [True, False])
def test_tools_are_sent_as_text_to_a_server_that_rejects_them(refuses: bool) -> None:
    with serving(refuses_tools=refuses) as url:
        done = specllama("probe", "--url", url, "-w", "agent", "--budget", "1")
    assert (done.returncode, done.stderr) == (0, "")
    assert ("rejects `tools` in requests" in done.stdout) == refuses


def test_responses_in_one_piece_give_no_speed() -> None:
    whole = [{"choices": [{"delta": {"content": "all at once"}}]}]
    with serving(answer=lambda n: whole) as url:
        done = specllama("probe", "--url", url)
        assert "note     responses arrive in one piece" in done.stdout
        done = specllama("probe", "--url", url, "--baseline-url", url)
    assert done.returncode == 1
    assert "no speed to compare" in done.stderr
    assert "Traceback" not in done.stderr


def test_no_server_at_the_url() -> None:
    done = specllama("probe", "--url", "http://127.0.0.1:9")
    assert done.returncode == 1
    assert "no response from" in done.stderr
    done = specllama("probe", "--url", "http://[bad")
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) <= 2


_FIELDS = (
    "data id status value args aliases owned_by running models model state type choices delta "
    "content reasoning tool_calls usage completion_tokens completion_tokens_details "
    "reasoning_tokens timings draft_n draft_n_accepted metrics speculative_decoding "
    "num_draft_tokens num_accepted_draft_tokens num_spec_steps acceptance_histogram"
).split()
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda x: st.lists(x, max_size=3) | st.dictionaries(st.sampled_from(_FIELDS), x, max_size=4),
    max_leaves=8,
)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)  # on a busy machine
@given(_JSON)
def test_any_json_is_accepted_as_an_event_or_a_model_list(data: object) -> None:
    event = data if isinstance(data, dict) else {"choices": data}
    streamed.says_something(event)
    streamed.thinks(event)
    assert streamed.tokens(event, False) >= 0
    found = streamed.draft_counts(event)
    if found is not None:
        assert 0 <= found.accepted <= found.drafted
        assert all(0 <= a <= 1 for a in found.by_position)
    for path in served_models.LOADED_LISTS:
        served_models.loaded_elsewhere(path, data)
    models = served_models.listed_models(data)
    if models:
        with suppress(TuningError):
            served_models.model_to_ask("here", models, None)


@given(st.text() | st.text('vllm:spec_decode_num_drafts_total{position="0"} 1\n# TYPE'))
def test_any_metrics_text_is_parsed(text: str) -> None:
    parse_snapshot(text, 0.0)
