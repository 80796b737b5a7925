"""A local server that speaks the part of the Hub's API that specllama's calls use.

Repositories are folders OWNER/NAME below a root. Requests are recorded. A repository
called `gated`, `busy` or `broken` answers with that error.
"""

from __future__ import annotations

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from urllib.parse import parse_qs, unquote, urlparse


class Hub:
    """The server. `url` goes to HF_ENDPOINT; `requests` are (method, path, range)."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.requests: list[tuple[str, str, str]] = []
        self.sent = 0
        self.cut_after: int | None = None  # bytes of a file after which the connection closes, once
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Hub:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def repos(self) -> list[str]:
        return sorted(
            f"{repo.parent.name}/{repo.name}" for repo in self.root.glob("*/*") if repo.is_dir()
        )


def _sha(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self.answer()

        def do_GET(self) -> None:
            self.answer()

        def do_POST(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            self.body = self.rfile.read(length)
            self.answer()

        def answer(self) -> None:
            url = urlparse(self.path)
            path = unquote(url.path)
            hub.requests.append((self.command, self.path, self.headers.get("Range", "")))
            if path == "/api/models":
                return self.search(parse_qs(url.query))
            parts = path.strip("/").split("/")
            if parts[0] == "api" and len(parts) >= 4:
                return self.api(parts[2], parts[3], parts[4:])
            if len(parts) >= 5 and parts[2] == "resolve":
                return self.file(hub.root / parts[0] / parts[1] / "/".join(parts[4:]), parts)
            return self.error(404, "EntryNotFound")

        def search(self, query: dict[str, list[str]]) -> None:
            words = query.get("search", [""])[0].lower().split()
            bases = [f for f in query.get("filter", []) if f.startswith("base_model:")]
            matches = []
            for repo in hub.repos():
                card = hub.root / repo / "base"
                base = f"base_model:{card.read_text()}" if card.exists() else ""
                if all(w in repo.lower() for w in words) and (not bases or base in bases):
                    matches.append({"id": repo, "modelId": repo, "tags": ["gguf"], "siblings": []})
            self.json(matches)

        def api(self, owner: str, name: str, rest: list[str]) -> None:
            if name in ("gated", "busy", "broken"):
                return self.error(*{
                    "gated": (403, "GatedRepo"), "busy": (429, ""), "broken": (500, "")
                }[name])  # fmt: skip
            repo = hub.root / owner / name
            if not repo.is_dir():
                return self.error(404 if rest else 401, "RepoNotFound")
            files = [p for p in sorted(repo.rglob("*")) if p.is_file() and p.name != "base"]
            entries = [self.entry(repo, p) for p in files]
            if rest[:1] == ["paths-info"]:
                requested = self.requested_paths()
                return self.json([e for e in entries if e["path"] in requested])
            if rest[:1] == ["tree"]:
                return self.json(entries)
            return self.json(
                {
                    "id": f"{owner}/{name}",
                    "modelId": f"{owner}/{name}",
                    "sha": "c" * 40,
                    "tags": [],
                    "siblings": [{"rfilename": e["path"], "size": e["size"]} for e in entries],
                }
            )

        def requested_paths(self) -> list[str]:
            text = getattr(self, "body", b"").decode()
            try:
                return list(json.loads(text)["paths"])
            except ValueError:
                return parse_qs(text).get("paths", [])

        def entry(self, repo: Path, path: Path) -> dict[str, object]:
            return {
                "type": "file",
                "path": path.relative_to(repo).as_posix(),
                "size": path.stat().st_size,
                "oid": "b" * 40,
                "lfs": {"oid": _sha(path), "size": path.stat().st_size, "pointerSize": 130},
            }

        def file(self, path: Path, parts: list[str]) -> None:
            if parts[1] == "gated":
                return self.error(403, "GatedRepo")
            if not (hub.root / parts[0] / parts[1]).is_dir():
                return self.error(401, "RepoNotFound")
            if not path.is_file():
                return self.error(404, "EntryNotFound")
            raw = path.read_bytes()
            begin, end = 0, len(raw)
            partial = self.headers.get("Range", "").removeprefix("bytes=")
            if partial:
                first, _, last = partial.partition("-")
                begin, end = int(first), int(last) + 1 if last else len(raw)
            part = raw[begin : min(end, len(raw))]
            self.send_response(206 if partial else 200)
            self.send_header("Content-Length", str(len(part)))
            if partial:
                self.send_header(
                    "Content-Range", f"bytes {begin}-{begin + len(part) - 1}/{len(raw)}"
                )
            self.send_header("ETag", f'"{_sha(path)}"')
            self.send_header("X-Linked-Etag", f'"{_sha(path)}"')
            self.send_header("X-Linked-Size", str(len(raw)))
            self.send_header("X-Repo-Commit", "c" * 40)
            self.send_header("Accept-Ranges", "bytes")
            self.end_headers()
            if self.command == "HEAD":
                return None
            if hub.cut_after is not None and len(part) > hub.cut_after:
                part, hub.cut_after = part[: hub.cut_after], None
                self.wfile.write(part)
                hub.sent += len(part)
                self.close_connection = True
                return None
            self.wfile.write(part)
            hub.sent += len(part)
            return None

        def json(self, data: object) -> None:
            body = json.dumps(data).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def error(self, status: int, code: str) -> None:
            self.send_response(status)
            if code:
                self.send_header("X-Error-Code", code)
            self.send_header("Content-Length", "0")
            self.end_headers()

    return Handler
