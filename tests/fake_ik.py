"""A scripted ik_llama.cpp server that behaves as a real one did (8337e4cd3, August 2026).

Its --help exits with 1, it has no --list-devices, chat needs --jinja, responses carry no token IDs,
streams have timings in their last piece only, and /slots and /metrics do not report speculation. A
request's `speculative.n_max` is obeyed, although the draft still makes as many passes as for the
server's own length.

A word is a token. A pass over b tokens takes 10 + b/2 ms, a pass of the draft 0.5 ms, and a drafted
token is accepted with probability 0.75. In a repeated prompt every drafted token is accepted.
"""

from __future__ import annotations

import json
import random
import re
import sys
import zlib
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests import help_render
from tests.support import script

ACCEPTANCE = 0.75
_STEP, _ROW, _DRAFT = 10.0, 0.5, 0.5  # ms


def passes(b: int) -> float:
    """ms of a pass of the target over b tokens."""
    return _STEP + _ROW * b


class FakeIk:
    """One such server. `path` goes to --llama-server; `starts`: the argv of each start; `requests`:
    the draft length of each completion, its drafted tokens, and whether its prompt was repeated."""

    def __init__(self, tmp: Path) -> None:
        self._starts, self._requests = tmp / "starts", tmp / "requests"
        here = str(Path(__file__).parent.parent)
        body = (
            f"import sys; sys.path.insert(0, {here!r})\n"
            "from tests.fake_ik import main\n"
            f"sys.exit(main({str(self._starts)!r}, {str(self._requests)!r}))\n"
        )
        self.path = script(tmp / "llama-server", body)

    @property
    def starts(self) -> list[list[str]]:
        return _lines(self._starts)

    @property
    def requests(self) -> list[dict[str, Any]]:
        return _lines(self._requests)


def _lines(path: Path) -> list[Any]:
    return [json.loads(s) for s in path.read_text().splitlines()] if path.exists() else []


def main(starts: str, requests: str) -> int:
    argv = sys.argv[1:]
    if "--version" in argv:
        print(help_render.ik_data()["version_stderr"], file=sys.stderr)
        print("built with cc for x86_64-linux-gnu", file=sys.stderr)
        return 0
    if "--help" in argv:
        print(help_render.render("ik_llama"))
        return int(help_render.ik_data()["exit_code_of_help"])
    known = {n for names, _, _ in help_render.options("ik_llama") for n in names}
    for word in argv:
        if re.match(r"--?[a-z]", word) and word not in known:
            print(f"error: unknown argument: {word}", file=sys.stderr)
            return 1
    with open(starts, "a") as f:
        f.write(json.dumps(argv) + "\n")
    port = int(argv[argv.index("--port") + 1])
    handler = type("Handler", (_Handler,), {"model": _Model(argv, requests)})
    ThreadingHTTPServer(("127.0.0.1", port), handler).serve_forever()
    return 0


def _ids(text: str) -> list[int]:
    return [zlib.crc32(w.encode()) % 30_000 for w in text.split()]


class _Model:
    """Its start options, the cached prompt, and the prompts so far."""

    def __init__(self, argv: Sequence[str], requests: str) -> None:
        self.jinja = "--jinja" in argv
        values = [argv[i + 1] for i, a in enumerate(argv) if a == "--spec-type"]
        found = [m for v in values if (m := re.match(r"(?:draft|mtp):n_max=(\d+)", v))]
        self.n_max = int(found[0][1]) if found else 0
        self.cached: list[int] = []
        self.seen: set[tuple[int, ...]] = set()
        self.requests = requests

    def complete(self, body: dict[str, Any], prompt: str | list[int]) -> dict[str, Any]:
        ids = prompt if isinstance(prompt, list) else _ids(prompt)
        tokens = int(body.get("n_predict") or body.get("max_tokens") or 16)
        cached = 0
        if body.get("cache_prompt"):
            pairs = zip(ids[:-1], self.cached, strict=False)
            cached = next((i for i, (a, b) in enumerate(pairs) if a != b), None) or 0
            is_prefix = (
                self.cached[: len(ids) - 1] == ids[:-1] or ids[: len(self.cached)] == self.cached
            )
            cached = min(len(self.cached), len(ids) - 1) if is_prefix else cached
        self.cached = ids
        repeated = tuple(ids) in self.seen
        self.seen.add(tuple(ids))
        accept_rng = random.Random(zlib.crc32(repr(ids).encode()))
        k = min(self.n_max, int(body.get("speculative.n_max", self.n_max)))
        ms, generated, drafted, accepted = 0.0, 1, 0, 0
        while generated < tokens:
            d = min(k, tokens - generated - 1)
            accepted_now = next(
                (i for i in range(d) if not repeated and accept_rng.random() > ACCEPTANCE), d
            )
            drafted, accepted, generated = (
                drafted + d,
                accepted + accepted_now,
                generated + accepted_now + 1,
            )
            ms += passes(d + 1) + (_DRAFT * (self.n_max + 1) if self.n_max else 0.0)
        with open(self.requests, "a") as f:
            f.write(json.dumps({"k": k, "drafted": drafted, "repeated": repeated}) + "\n")
        n = len(ids) - cached
        timings = {"prompt_n": n, "prompt_ms": passes(n), "predicted_n": tokens, "predicted_ms": ms}
        timings |= {"n_past": len(ids) + tokens}
        if drafted:
            timings |= {"draft_n": drafted, "draft_n_accepted": accepted}
        text_rng = random.Random(zlib.crc32(repr(ids[-40:]).encode()))
        words = " ".join(f"w{text_rng.randrange(5000)}" for _ in range(tokens))
        return {"content": words, "timings": timings}


class _Handler(BaseHTTPRequestHandler):
    model: _Model

    def log_message(self, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        if self.path == "/health":
            self._json({"status": "ok"})
        elif self.path == "/slots":
            self._json([{"id": 0, "n_ctx": 2048}])
        elif self.path == "/metrics":
            self._send(200, b"# TYPE llamacpp:tokens_predicted_total counter\n", "text/plain")
        else:
            self._json({"error": {"message": "File Not Found"}}, 404)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/tokenize":
            self._json({"tokens": _ids(body["content"])})
        elif self.path == "/apply-template":
            self._json({"prompt": _flat(body["messages"])})
        elif self.path == "/completion":
            self._answer(body, body["prompt"], lambda text: {"content": text})
        elif not self.model.jinja:
            message = "this custom template is not supported, try using --jinja"
            self._json({"error": {"message": message}}, 500)
        else:
            key = "delta" if body.get("stream") else "message"
            prompt = _flat(body["messages"])
            self._answer(body, prompt, lambda text: {"choices": [{key: {"content": text}}]})

    def _answer(self, body: dict[str, Any], prompt: Any, shape: Any) -> None:
        done = self.model.complete(body, prompt)
        if not body.get("stream"):
            self._json(shape(done["content"]) | {"timings": done["timings"]})
            return
        self.send_response(200)
        self.end_headers()
        for piece in _pieces(done, shape):
            self.wfile.write(b"data: " + json.dumps(piece).encode() + b"\n\n")

    def _json(self, data: Any, code: int = 200) -> None:
        self._send(code, json.dumps(data).encode(), "application/json")

    def _send(self, code: int, body: bytes, kind: str) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _pieces(done: dict[str, Any], shape: Any) -> Iterator[dict[str, Any]]:
    for word in done["content"].split():
        yield shape(word + " ")
    yield shape("") | {"timings": done["timings"]}


def _flat(messages: Sequence[dict[str, Any]]) -> str:
    return " ".join(f"{m['role']}: {m['content']}" for m in messages)
