"""Responses are read within limits, whatever a server sends."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from contextlib import suppress

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.engine.client import Client
from specllama.engine.errors import EngineError
from specllama.engine.http_limits import read_body, response_lines
from specllama.engine.metrics import parse_metrics, parse_prompt_speed


def response(pieces: Iterable[bytes]) -> httpx.Response:
    return httpx.Response(200, content=iter(pieces))


@given(st.text("a\r\n\u2028 "), st.integers(1, 5))
def test_lines_are_split_at_line_feeds_only(text: str, size: int) -> None:
    """JSON may contain the other line separators of Unicode as they are."""
    data = text.encode()
    pieces = [data[i : i + size] for i in range(0, len(data), size)]
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    assert list(response_lines(response(pieces))) == (
        lines if lines[-1] or text[-1:] == "\r" else lines[:-1]
    )


def test_an_endless_line_is_an_error() -> None:
    endless = itertools.chain([b"data: x\n"], itertools.repeat(b"x" * 1000))
    lines = response_lines(response(endless), limit=2**20)
    assert next(lines) == "data: x"
    with pytest.raises(httpx.ReadError, match="longer than 1 MiB"):
        next(lines)


def test_an_endless_number_of_lines_times_out() -> None:
    """Keep-alive comments are also lines."""
    comments = itertools.repeat(b": ping\n")
    with pytest.raises(httpx.ReadTimeout, match=r"longer than 0\.05 s"):
        list(response_lines(response(comments), seconds=0.05))


def test_an_endless_body_is_an_error() -> None:
    with pytest.raises(httpx.ReadError, match="larger than 1 MiB"):
        read_body(response(itertools.repeat(b"x" * 1000)), limit=2**20)
    with pytest.raises(httpx.ReadTimeout, match=r"longer than 0\.05 s"):
        read_body(response(itertools.repeat(b"x")), seconds=0.05)


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """A client of a server that answers every request with an endless line."""
    monkeypatch.setattr("specllama.engine.http_limits.response_lines.__defaults__", (2**20, None))
    monkeypatch.setattr("specllama.engine.http_limits.read_response.__defaults__", (2**20, None))
    with Client("http://127.0.0.1:9") as client:
        answer = httpx.MockTransport(lambda _: response(itertools.repeat(b"x" * 1000)))
        client._http = httpx.Client(base_url="http://h", transport=answer)
        yield client


def test_endless_responses_are_errors_of_one_line(client: Client) -> None:
    with pytest.raises(EngineError, match=r"cut off \(a line of the response is longer than 1 MiB"):
        list(client.stream("x", 4, {}))
    with pytest.raises(EngineError, match=r"to /props \(the response is larger than 1 MiB\)"):
        client.props()
    assert client.healthy() is False


@given(st.text() | st.text('llamacpp:spec_decode_num_drafts_total{position="0"} 19naninf\n'))
def test_any_metrics_are_counters_or_an_error(text: str) -> None:
    with suppress(EngineError):
        parse_metrics(text)
        parse_prompt_speed(text)


@pytest.mark.parametrize("position", ["-1", "99999999999", "x", "²"])
@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1", "1e300"])
def test_impossible_metrics_are_ignored(position: str, value: str) -> None:
    name = "llamacpp:spec_decode_num_accepted_tokens_per_pos_total"
    text = f'{name}{{position="{position}"}} 1\nllamacpp:spec_decode_num_drafts_total {value}\n'
    found = parse_metrics(text)
    assert (found.accepted_by_position, found.verify_steps) == ((), None)
