"""A scripted llama-server, for behaviour that a real one does not show on demand.

It answers --version and --help like b11434 (or another build) and then does what `fake.json` says:
{"crash_with_spec": text, "crash_with_draft": text, "crash_after": s, "code": n, "draft_n": n,
"accepted": n (otherwise half of them), "stall": true, "devices": text, "devices_head": text,
"devices_code": n, "lists": n (each request prints as many lines as there were requests, up to n)}. `build`: its build number. The rest of the
protocol has its real form.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests import help_render
from tests.support import script

_BODY = """
import http.server, json, os, sys, threading, time
HELP = {help!r}
CONFIG = json.load(open({config!r}))
if "--version" in sys.argv:
    print("version: 0.6.0-dev (build {build}, commit 0c1e57098)", file=sys.stderr); sys.exit(0)
if "--help" in sys.argv:
    print(HELP); sys.exit(0)
if "--list-devices" in sys.argv:
    print(CONFIG.get("devices_head", "Available devices:"))
    print(CONFIG.get("devices", "  (none)")); sys.exit(CONFIG.get("devices_code", 0))
starts = open({starts!r}, "a"); starts.write(json.dumps(sys.argv[1:]) + "\\n"); starts.close()
speculates = "--spec-type" in sys.argv
crash = CONFIG.get("crash")
if crash is None and speculates: crash = CONFIG.get("crash_with_spec")
if crash is None and "-md" in sys.argv: crash = CONFIG.get("crash_with_draft")
if crash is not None:
    print(crash, flush=True)
    code = CONFIG.get("code", 1)
    os.kill(os.getpid(), -code) if code < 0 else sys.exit(code)
if CONFIG.get("ignores_sigterm"):
    import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)
if CONFIG.get("stall"):
    time.sleep(600)
class Handler(http.server.BaseHTTPRequestHandler):
    requests = 0
    protocol_version, wbufsize = "HTTP/1.1", 65536
    def log_message(self, *args): pass
    def answer(self, data):
        body = json.dumps(data).encode()
        self.send_response(200); self.send_header("Content-Length", str(len(body)))
        self.end_headers(); self.wfile.write(body)
    def do_GET(self):
        if self.path == "/slots": self.answer([{{"speculative": CONFIG.get("slots", speculates)}}])
        elif self.path == "/health": self.answer({{"status": "ok"}})
        else: self.send_error(404)
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        Handler.requests += 1
        for i in range(min(Handler.requests, CONFIG.get("lists", 0))): print("cached prompt", i, "x" * 80)
        sys.stdout.flush()
        timings = {{"predicted_n": 48, "predicted_ms": 480.0, "prompt_n": 5, "prompt_ms": 9.0}}
        if speculates and CONFIG.get("draft_n"):
            timings["draft_n"] = CONFIG["draft_n"]; timings["draft_n_accepted"] = CONFIG.get("accepted", CONFIG["draft_n"] // 2)
        self.answer({{"content": "x", "choices": [{{"message": {{"content": "x"}}}}], "timings": timings}})
port = int(sys.argv[sys.argv.index("--port") + 1])
server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
if "crash_after" in CONFIG:
    def die():
        time.sleep(CONFIG["crash_after"]); os.kill(os.getpid(), 11)
    threading.Thread(target=die, daemon=True).start()
server.serve_forever()
"""


class Fake:
    """One scripted server. `path` goes to --llama-server; `starts`: the argv of each start."""

    def __init__(self, tmp: Path, build: int = 11434, **config: Any) -> None:
        self._starts = tmp / "starts"
        config_file = tmp / "fake.json"
        config_file.write_text(json.dumps(config))
        body = _BODY.format(
            help=help_render.render(f"b{build}"),
            build=build,
            config=str(config_file),
            starts=str(self._starts),
        )
        self.path = script(tmp / "llama-server", body)

    @property
    def starts(self) -> list[list[str]]:
        if not self._starts.exists():
            return []
        return [json.loads(line) for line in self._starts.read_text().splitlines()]
