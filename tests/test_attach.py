"""probe --url: other engines by their own counters' exact names, and servers that are none."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.errors import UsageError
from specllama.watching.address import on_this_machine
from specllama.watching.attach import Server
from specllama.watching.counters import parse
from tests.openai_server import SGLANG, TRTLLM, VLLM, serving
from tests.support import MODELS, Serve, specllama


def test_vllm_by_exact_names() -> None:
    with serving(VLLM) as url:
        done = specllama("probe", "--url", f"{url}/v1", "--json", "--budget", "5")
    data = json.loads(done.stdout)
    assert (data["engine"], data["model"]) == ("vLLM", "m")
    assert data["alpha"] == pytest.approx(0.6)  # 12 of 20; the per-position series is apart
    assert data["tau"] == pytest.approx(2.2)
    assert data["acceptance_by_position"] == pytest.approx([0.8, 0.4])
    assert data["answers"] >= 2
    assert data["first_token_ms"] >= 0


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


def test_a_proxy_is_for_other_machines_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """What answers as the proxy is a server with another model than the one behind it."""
    with serving(VLLM) as url, serving(VLLM, models={"data": [{"id": "proxied"}]}) as proxy:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy)
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
        for address, model in ((url, "m"), ("http://llm.example.org:8000", "proxied")):
            server = Server(address)
            try:
                assert server.model() == model
            finally:
                server.close()


@pytest.mark.parametrize(
    ("url", "proxy", "says"),
    [
        ("http://[::1", "", "--url http://[::1: "),
        ("http://h:port", "", "--url http://h:port: "),
        ("http://h:1", "nonsense://x", "--url http://h:1: "),
    ],
)
def test_what_is_no_address_is_said(
    url: str, proxy: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", proxy)
    with pytest.raises(UsageError, match=re.escape(says)):
        Server(url)


@pytest.mark.parametrize(
    ("metrics", "path", "engine", "alpha", "tau"),
    [
        (SGLANG, "/metrics", "SGLang", 0.55, 2.4),
        (TRTLLM, "/prometheus/metrics", "TensorRT-LLM", 0.6, 2.1),
    ],
)
def test_engines_with_gauges(
    metrics: str, path: str, engine: str, alpha: float, tau: float
) -> None:
    with serving(metrics, path) as url:
        data = json.loads(specllama("probe", "--url", url, "--json").stdout)
    assert data["engine"] == engine
    assert (data["alpha"], data["tau"]) == (pytest.approx(alpha), pytest.approx(tau))


@pytest.mark.parametrize(
    ("metrics", "path", "says"),
    [
        (VLLM.replace("{accepted}", "{drafted}9"), "/metrics", "drafted tokens accepted"),
        (VLLM.replace("{drafted}", "-{drafted}"), "/metrics", "drafted tokens accepted"),
        (VLLM.replace("{first}", "{drafted}"), "/metrics", "2 of the drafts accepted"),
        (VLLM.replace("{accepted}.0", "NaN"), "/metrics", "the counters are no numbers"),
        (SGLANG.replace("0.55", "3"), "/metrics", "α=3"),
        (TRTLLM.replace("2.1", "0.5"), "/prometheus/metrics", "τ=0.5"),
    ],
)
def test_counters_that_cannot_be_right_are_not_believed(metrics: str, path: str, says: str) -> None:
    with serving(metrics, path) as url:
        data = json.loads(specllama("probe", "--url", url, "--json", "--budget", "1").stdout)
    assert (data["alpha"], data["tau"], data["acceptance_by_position"]) == (None, None, [])
    assert len(data["missing"]) == 1
    assert data["missing"][0].startswith("the counters ")
    assert says in data["missing"][0]


def test_a_length_of_0_says_that_nothing_was_drafted() -> None:
    with serving(SGLANG.replace("2.4", "0.0").replace("0.55", "0.0")) as url:
        done = specllama("probe", "--url", url, "--budget", "1")
    assert "it counted no drafted tokens" in done.stdout
    assert "accepts" not in done.stdout


def test_without_metrics_the_speed_is_measured_and_the_rest_is_said() -> None:
    with serving() as url:
        done = specllama("probe", "--url", url)
    assert done.returncode == 0
    assert "tok/s" in done.stdout
    assert "note     no metrics that are known: acceptance cannot be read" in done.stdout


def test_a_baseline_gives_a_speed_up() -> None:
    with serving(VLLM) as url, serving() as plain:
        data = json.loads(
            specllama("probe", "--url", url, "--baseline-url", plain, "--json").stdout
        )
    assert len(data["speedup"]) == 3


def test_a_running_llama_server(tmp_path: Path, engine: str) -> None:
    target, draft = MODELS / "target.gguf", MODELS / "draft.gguf"
    with Serve(tmp_path, target, "--draft", draft, "--llama-server", engine) as s:
        data = json.loads(specllama("probe", "--url", s.url, "-w", "code", "--json").stdout)
    assert data["engine"] == "llama.cpp"
    assert 0 < data["alpha"] < 1
    assert 1 < data["tau"] < 5
    assert data["acceptance_by_position"][0] >= data["acceptance_by_position"][-1]


def test_a_key_is_asked_for_and_used() -> None:
    with serving(VLLM, key="sesame") as url:
        refused = specllama("probe", "--url", url)
        assert refused.returncode == 1
        assert refused.stderr.startswith(f"error: {url} wants an API key")
        taken = specllama("probe", "--url", url, "--json", SPECLLAMA_API_KEY="sesame")
    assert taken.returncode == 0
    assert "sesame" not in taken.stdout + taken.stderr


@pytest.mark.parametrize(
    ("models", "says"),
    [(b"<html>hello</html>", "is no LLM server"), ({"data": []}, "is no LLM server")],
)
def test_what_is_no_llm_server(models: object, says: str) -> None:
    with serving(models=models) as url:
        done = specllama("probe", "--url", url)
    assert done.returncode == 1
    assert says in done.stderr.splitlines()[0]


@pytest.mark.parametrize(
    ("answer", "status", "says"),
    [
        (lambda n: ["{not json"], 200, "broke off an answer"),
        (lambda n: [{"choices": []}], 200, "answered with no text"),
        (None, 400, "answers a completion with 400"),
    ],
)
def test_answers_that_are_none(answer: object, status: int, says: str) -> None:
    with serving(answer=answer, status=status) as url:  # type: ignore[arg-type]
        done = specllama("probe", "--url", url)
    assert done.returncode == 1
    assert says in done.stderr.splitlines()[0]
    assert len(done.stderr.splitlines()) <= 2


def test_answers_in_one_piece_show_no_speed() -> None:
    whole = [{"choices": [{"delta": {"content": "all at once"}}]}]
    with serving(answer=lambda n: whole) as url:
        done = specllama("probe", "--url", url)
        assert "note     answers come in one piece" in done.stdout
        done = specllama("probe", "--url", url, "--baseline-url", url)
    assert done.returncode == 1
    assert "there is no speed to compare" in done.stderr
    assert "Traceback" not in done.stderr


def test_nobody_there() -> None:
    done = specllama("probe", "--url", "http://127.0.0.1:9")
    assert done.returncode == 1
    assert "does not answer /v1/models" in done.stderr
    done = specllama("probe", "--url", "http://[bad")
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) <= 2


@given(st.text() | st.text('vllm:spec_decode_num_drafts_total{position="0"} 1\n# TYPE'))
def test_any_metrics_text(text: str) -> None:
    parse(text, 0.0)
