"""A scripted OpenAI-compatible server with the metrics of another engine."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

VLLM = """\
# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{{engine="0",model_name="m"}} {drafts}.0
# TYPE vllm:spec_decode_num_draft_tokens_total counter
vllm:spec_decode_num_draft_tokens_total{{engine="0",model_name="m"}} {drafted}.0
# TYPE vllm:spec_decode_num_accepted_tokens_total counter
vllm:spec_decode_num_accepted_tokens_total{{engine="0",model_name="m"}} {accepted}.0
# TYPE vllm:spec_decode_num_accepted_tokens_per_pos_total counter
vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",model_name="m",position="0"}} {first}.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",model_name="m",position="1"}} {second}.0
"""
SGLANG = """\
# TYPE sglang:spec_accept_length gauge
sglang:spec_accept_length{{model_name="m"}} 2.4
# TYPE sglang:spec_accept_rate gauge
sglang:spec_accept_rate{{model_name="m"}} 0.55
# TYPE sglang:spec_verify_calls_total counter
sglang:spec_verify_calls_total{{model_name="m"}} {drafts}.0
"""
TRTLLM = """\
# TYPE trtllm_spec_decode_num_draft_tokens_total counter
trtllm_spec_decode_num_draft_tokens_total {drafted}.0
# TYPE trtllm_spec_decode_num_accepted_tokens_total counter
trtllm_spec_decode_num_accepted_tokens_total {accepted}.0
# TYPE trtllm_spec_decode_acceptance_length gauge
trtllm_spec_decode_acceptance_length 2.1
"""


@contextmanager
def serving(
    metrics: str = "",
    path: str = "/metrics",
    key: str = "",
    answer: Callable[[int], list[Any]] | None = None,
    status: int = 200,
    models: Any = None,
    others: Mapping[str, Any] | None = None,
    requests: list[str] | None = None,
    refuses_tools: bool = False,
) -> Iterator[str]:
    """The server's URL. Each response counts 10 drafts of 2 tokens, of which 8 and 4 are accepted.
    `answer(number)`: the events of a stream, where a float is a pause in seconds; `models`: the
    content of /v1/models; `others`: of other paths. `requests` collects the model and the query
    of each completion, and the path of each request for metrics. `refuses_tools`: like vLLM
    without --enable-auto-tool-choice."""
    state = {"answers": 0}

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            pass

        def _send(self, body: bytes, code: int = 200) -> None:
            self.send_response(code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _allowed(self) -> bool:
            if not key or self.headers.get("Authorization") == f"Bearer {key}":
                return True
            self._send(b'{"error": "no key"}', 401)
            return False

        def do_GET(self) -> None:
            if not self._allowed():
                return
            n = state["answers"]
            at = urlsplit(self.path).path  # a proxy gets the whole URL
            if at == path and requests is not None:
                requests.append(self.path)
            if at == "/v1/models":
                data = {"data": [{"id": "m"}]} if models is None else models
                self._send(data if isinstance(data, bytes) else json.dumps(data).encode())
            elif at in (others or {}):
                self._send(json.dumps((others or {})[at]).encode())
            elif at == path and metrics:
                counts = {"drafts": 10 * n, "drafted": 20 * n, "accepted": 12 * n}
                self._send(metrics.format(**counts, first=8 * n, second=4 * n).encode())
            else:
                self._send(b"not found", 404)

        def do_POST(self) -> None:
            if not self._allowed():
                return
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if requests is not None:
                requests.append(f"{body['model']} {urlsplit(self.path).query}".strip())
            state["answers"] += 1
            if refuses_tools and "tools" in body:
                self._send(b'{"error": ""auto" tool choice is not enabled"}', 400)
                return
            if status != 200:
                self._send(b'{"error": "too long"}', status)
                return
            events = answer(state["answers"]) if answer else default_answer()
            self.send_response(200)
            self.end_headers()
            for event in events:
                if isinstance(event, float):
                    time.sleep(event)
                    continue
                line = event if isinstance(event, str) else json.dumps(event)
                self.wfile.write(f"data: {line}\n\n".encode())
            self.wfile.write(b"data: [DONE]\n\n")

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def default_answer() -> list[Any]:
    words = [{"choices": [{"delta": {"content": "word "}}]} for _ in range(24)]
    return [*words, {"choices": [], "usage": {"completion_tokens": 24}}]
