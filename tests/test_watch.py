"""`specllama watch`: servers of any engine, lost servers, routers, small screens."""

from __future__ import annotations

import gzip
import http.server
import itertools
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from specllama.cli.watch_lines import position_line, view_data, view_lines
from specllama.cli.watch_screen import bar, picture, sparkline
from specllama.engine.settings import Speculation
from specllama.errors import SpecllamaError, UsageError
from specllama.storage import read_stored, write_stored
from specllama.tuning.confidence import Ratios
from specllama.tuning.errors import TuningError
from specllama.tuning.step_times import StepTimes
from specllama.watching import address, own_requests, running
from specllama.watching.chat_server import Server
from specllama.watching.counters import Counts, between
from specllama.watching.errors import WatchingError
from specllama.watching.export import Exporter
from specllama.watching.prometheus_text import parse_snapshot
from specllama.watching.reader import CounterReader, RouterIdle
from specllama.watching.request_log import RequestLog
from specllama.watching.running import RunningServe
from specllama.watching.verdict import SLOWER, VERY_LOW
from specllama.watching.watch import LOST, UNLOADED, UP, ServerView, Watch, server_to_watch
from tests.llama_metrics import metrics_text
from tests.openai_server import SGLANG, TRTLLM, VLLM, serving
from tests.support import MODELS, Serve, specllama


class Script:
    """A fake llama-server's counters, in proportion to `responses`; with `models` it is a router; with
    `up` False it responds with 503."""

    def __init__(self) -> None:
        self.responses, self.started, self.up = 1, 100.0, True
        self.models: dict[str, str] = {}
        self.slots: list[dict[str, Any]] | None = None
        self.metrics = True
        self.requests: list[str] = []

    def text(self) -> str:
        n = self.responses
        return metrics_text(
            tokens=260 * n,
            seconds=4.0 * n,
            drafted=200 * n,
            accepted=140 * n,
            steps=100 * n,
            first=80 * n,
            second=60 * n,
        )


@contextmanager
def llama(script: Script) -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            pass

        def do_GET(self) -> None:
            script.requests.append(self.path)
            url = urlsplit(self.path)
            if not script.up:
                self._send(503, "{}")
            elif url.path == "/models" and script.models:
                data = [{"id": k, "status": {"value": v}} for k, v in script.models.items()]
                self._send(200, json.dumps({"data": data}))
            elif url.path == "/slots" and script.slots is not None:
                self._send(200, json.dumps(script.slots))
            elif url.path == "/metrics" and script.metrics:
                model = parse_qs(url.query).get("model", [""])[0]
                known = not script.models or script.models.get(model) in ("loaded", "sleeping")
                self._send(200 if known else 400, script.text() if known else "{}")
            else:
                self._send(404, "{}")

        def _send(self, code: int, body: str) -> None:
            self.send_response(code)
            self.send_header("Process-Start-Time-Unix", str(script.started))
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def watching(url: str, model: str = "") -> Iterator[Watch]:
    watch = Watch(url, model=model)
    try:
        yield watch
    finally:
        watch.close()


def test_watch_once_as_json_agrees_with_the_counters() -> None:
    with llama(Script()) as url:
        done = specllama("watch", "--url", url, "--once", "--json")
    data = json.loads(done.stdout)
    assert done.returncode == 0
    assert (data["engine"], data["state"]) == ("llama.cpp", "up")
    assert data["alpha"] == pytest.approx(0.7)
    assert data["tau"] == pytest.approx(2.4)
    assert data["acceptance_by_position"] == pytest.approx([0.8, 0.6])
    assert data["tokens_per_second"] == pytest.approx(65)
    assert data["running"] == 1
    assert data["last_minute"]["drafted"] is None


@pytest.mark.parametrize(
    ("metrics", "path", "engine", "alpha"),
    [
        (VLLM, "/metrics", "vLLM", None),
        (SGLANG, "/metrics", "SGLang", 0.55),
        (TRTLLM, "/prometheus/metrics", "TensorRT-LLM", None),
    ],
)
def test_counters_of_other_engines_are_read(
    metrics: str, path: str, engine: str, alpha: float | None
) -> None:
    with serving(metrics, path) as url, watching(f"{url}/v1") as watch:
        assert watch.look().alpha == alpha  # no request so far
        body: dict[str, Any] = {"messages": []}
        httpx.post(f"{url}/v1/chat/completions", json=body)
        view = watch.look()
    assert (view.engine, view.state) == (engine, UP)
    assert view.alpha == pytest.approx(0.55 if alpha else 0.6)
    assert view.tau == pytest.approx({"vLLM": 2.2, "SGLang": 2.4, "TensorRT-LLM": 2.1}[engine])


def test_counts_cover_the_last_minute_and_since_the_start() -> None:
    script = Script()
    with llama(script) as url, watching(url) as watch:
        assert watch.look().now.counts.alpha is None
        script.responses = 3
        view = watch.look()
    assert view.now.counts.drafted == 400
    assert view.since.counts.drafted == 600


def test_a_lost_server_is_shown_as_lost_and_found_again() -> None:
    script = Script()
    with llama(script) as url, watching(url) as watch:
        watch.look()
        script.up = False
        lost = watch.look()
        script.up, script.started, script.responses = True, 200.0, 2
        back = watch.look()
    assert (lost.state, lost.since.counts.drafted) == (LOST, 200)
    assert "loading" in lost.reason
    assert (back.state, back.restarts) == (UP, 1)
    assert back.now.counts.drafted == 400  # those of the new server: none lost, none negative


def test_watch_without_a_server_is_an_error() -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    done = specllama("watch", "--port", str(port), "--once")
    assert done.returncode == 1
    assert "lost     no response from http://127.0.0.1" in done.stdout
    done = specllama("watch")
    assert done.returncode == 2
    assert "you have no running `specllama serve`" in done.stderr
    assert specllama("watch", "--url", "http://x", "--port", "1").returncode == 2


def test_watching_a_router_loads_no_model() -> None:
    script = Script()
    script.models = {"asleep": "unloaded", "awake": "loaded"}
    with llama(script) as url:
        with watching(url) as watch:
            view = watch.look()
            assert (view.state, view.model) == (UP, "awake")
            assert view.alpha == pytest.approx(0.7)
            script.models["awake"] = "unloaded"
            assert watch.look().state == UNLOADED
            script.models["asleep"] = "loaded"
            assert watch.look().model == "asleep"
        with watching(url, "awake") as watch:
            view = watch.look()
            assert view.state == UNLOADED
            assert "awake is unloaded, and watching does not load models" in view.reason
        with (
            watching(url, "nobody") as watch,
            pytest.raises(SpecllamaError, match="no model nobody"),
        ):
            watch.look()
    metrics = [a for a in script.requests if a.startswith("/metrics")]
    assert metrics
    assert all("autoload=false" in a for a in metrics)
    assert not any("model=nobody" in a for a in script.requests)


def test_a_server_without_the_named_model_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    served = {"data": [{"id": "/m/mtp.gguf", "aliases": ["small"], "owned_by": "llamacpp"}]}
    responses = {
        "/models": httpx.Response(200, json=served),
        "/v1/models": httpx.Response(200, json=served),
    }
    metrics = httpx.Response(200, text="llamacpp:tokens_predicted_total 1\n")
    monkeypatch.setattr(
        "specllama.watching.reader.get", lambda http, path, *_: responses.get(path, metrics)
    )
    for name in ("", "small", "mtp.gguf", "/m/mtp.gguf"):
        with watching("http://127.0.0.1:1", name) as watch:
            assert watch.look().state == UP
    with watching("http://127.0.0.1:1", "foo") as watch:
        for _ in range(2):
            with pytest.raises(WatchingError, match="has no model foo") as e:
                watch.look()
            assert e.value.hint == "Models: /m/mtp.gguf"


def test_without_metrics_only_slots_are_shown() -> None:
    script = Script()
    script.metrics = False
    script.slots = [{"id": 0, "is_processing": True, "speculative": True, "id_task": 3}]
    with llama(script) as url, watching(url) as watch:
        view = watch.look()
    assert (view.alpha, view.gauges.busy) == (None, 1)
    assert "start the server with --metrics" in view.missing[0]
    assert any("--metrics" in line for line in view_lines(view))


def test_slots_of_a_server_that_may_sleep_are_not_requested() -> None:
    script = Script()
    script.slots = []
    with llama(script) as url, watching(url) as watch:
        watch.look()
    assert not any(a.startswith("/slots") for a in script.requests)


def test_missing_speculation_is_noted() -> None:
    script = Script()
    script.responses, script.slots = 0, [{"id": 0, "speculative": True}, {"speculative": False}]
    script.metrics = False
    with llama(script) as url, watching(url) as watch:
        assert "no speculation in slot 1, unlike the others" in watch.look().missing
    script.metrics = True
    text = script.text
    script.text = lambda: text().replace("tokens_predicted_total 0", "tokens_predicted_total 9")  # type: ignore[method-assign]
    with llama(script) as url, watching(url) as watch:
        assert watch.look().missing == (
            "no tokens drafted: speculation is off, or finds nothing to draft",
        )


def test_without_a_terminal_watch_prints_a_line_per_change(tmp_path: Path) -> None:
    script, out = Script(), tmp_path / "out"
    with llama(script) as url, out.open("w") as f:
        argv = [sys.executable, "-m", "specllama", "watch", "--url", url, "--every", "0.5"]
        watch = subprocess.Popen(argv, stdout=f)
        try:
            until = time.monotonic() + 60
            while out.read_text().count("\n") < 1 and time.monotonic() < until:
                time.sleep(0.1)
            script.up = False
            while "lost: " not in out.read_text() and time.monotonic() < until:
                time.sleep(0.1)
        finally:
            watch.send_signal(signal.SIGINT)
            code = watch.wait(30)
    first, second = out.read_text().splitlines()
    assert "tok/s 65.0" in first
    assert second.startswith("lost: ")
    assert second.endswith("retrying every 0.5 s, Ctrl-C to stop")
    assert code == 0


def test_an_unknown_server_is_an_error() -> None:
    script = Script()
    script.metrics = False
    with llama(script) as url:
        done = specllama("watch", "--url", url, "--once")
    assert done.returncode == 1
    assert "has neither known metrics nor slots" in done.stderr


def test_a_too_deeply_nested_response_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    deep = httpx.Response(200, text="[" * 200_000)
    for module in ("reader", "chat_server"):
        monkeypatch.setattr(f"specllama.watching.{module}.get", lambda *_: deep)
    with watching("http://127.0.0.1:1") as watch, pytest.raises(WatchingError, match="neither"):
        watch.look()
    not_a_server = pytest.raises(TuningError, match="is not an LLM server")
    with closing(Server("http://127.0.0.1:1")) as server, not_a_server:
        server.model()


def test_a_missing_api_key_is_an_error() -> None:
    with serving(VLLM, key="sesame") as url:
        refused = specllama("watch", "--url", url, "--once")
        assert "requires an API key" in refused.stderr
        assert refused.returncode == 2
        wrong = specllama("watch", "--url", url, "--once", SPECLLAMA_API_KEY="mustard")
        assert "rejects the API key" in wrong.stderr
        done = specllama("watch", "--url", url, "--once", SPECLLAMA_API_KEY="sesame")
    assert done.returncode == 0
    assert "sesame" not in done.stdout + done.stderr


SPEC = Speculation(("draft-simple",), Path("/m/draft.gguf"), n_max=2)


def test_a_running_serve_is_found_with_its_tuned_setting() -> None:
    script, times = Script(), StepTimes(20.0, {0: 20.0, 2: 30.0})
    script.responses, script.slots = 2, [{"id": 0, "is_processing": False}]
    with llama(script) as url:
        info = RunningServe(
            url, "/m/t.gguf", "code", SPEC, times, alpha=0.8, speedup=1.5, slots=True
        )
        path = running.announce(info)
        try:
            assert server_to_watch(None, None) == (url, ())
            with watching(url) as watch:
                view = watch.look()
        finally:
            path.unlink()
    assert view.drift == pytest.approx(-0.1)
    assert view.since.speedup == pytest.approx(520 * 20 / (200 * 30 + 40 * 20))
    assert view.model == "t.gguf"
    assert "draft-simple draft.gguf K=2" in view.setting
    assert "/slots" in script.requests
    with pytest.raises(UsageError, match="no running `specllama serve`"):
        server_to_watch(None, None)


def own_counts(requests: int) -> Counts:
    """What Script counts for so many responses."""
    n = float(requests)
    return Counts(200 * n, 140 * n, 100 * n, (80 * n, 60 * n), 260 * n, 4 * n, n)


def test_requests_of_specllama_itself_are_not_shown() -> None:
    """Seen: α and a speed-up of 0 requests, and "last minute" though nothing was sent."""
    script = Script()
    with llama(script) as url:
        info = RunningServe(url, "/m/t.gguf", "code", SPEC, own=own_counts(1), since=1.0)
        running.announce(info)
        try:
            with watching(url) as watch:
                first = watch.look()
                with own_requests.idle_probes():
                    script.responses = 2
                    held = watch.look()
                    running.announce(replace(info, own=own_counts(2)))
                probed = watch.look()
                script.responses = 3
                real = watch.look()
        finally:
            running.withdraw()
    for view in (first, held, probed):
        assert (view.alpha, view.tau, view.tokens_per_second) == (None, None, None)
    assert held.missing[0].startswith("specllama is measuring this server")
    assert (real.now.counts.drafted, real.since.counts.drafted) == (200, 200)


def test_a_restarting_serve_is_lost_and_found_without_its_start_check() -> None:
    """Seen: "you have no running serve" while it restarted a killed server."""
    script = Script()
    with llama(script) as url:
        info = RunningServe(url, "/m/t.gguf", "code", SPEC, own=own_counts(1), since=1.0)
        running.announce(replace(info, ready=False))
        try:
            assert server_to_watch(None, None) == (url, ())
            with watching(url) as watch:
                lost = watch.look()
                running.announce(info)
                script.responses = 2
                found = watch.look()
                running.announce(replace(info, ready=False))
                assert watch.look().state == LOST
                running.announce(replace(info, since=2.0))
                script.started, script.responses = 200.0, 3
                again = watch.look()
        finally:
            running.withdraw()
    assert (lost.state, lost.reason) == (LOST, "`specllama serve` is restarting the server")
    assert (found.state, found.since.counts.drafted) == (UP, 200)
    assert (again.restarts, again.since.counts.drafted) == (1, 400)


def test_the_start_check_after_a_restart_is_not_counted_as_requests(tmp_path: Path) -> None:
    log, line = tmp_path / "log", "release: id  0 | task 7 | stop processing: n_tokens = 9\n"
    script = Script()
    with llama(script) as url:
        info = RunningServe(url, "/m/t.gguf", "code", SPEC, log=log, since=1.0)
        log.write_text(line * 3)
        running.announce(info)
        try:
            with watching(url) as watch:
                assert watch.look().requests == 3
                log.write_text(line * 4 + line * 2 + line)  # two of them are of the start check
                at = len(line)
                again = replace(info, since=2.0, server_begin=4 * at, log_begin=6 * at)
                running.announce(again)
                script.started = 200.0
                assert watch.look().requests == 5
        finally:
            running.withdraw()


def test_files_of_ended_serves_are_removed(tmp_path: Path) -> None:
    info = RunningServe("http://127.0.0.1:1", "/m/t.gguf", "code")
    path = running.announce(info)
    data = read_stored(path)
    write_stored(other := path.with_name("999999.json"), {**data, "process": 1.0})
    write_stored(later := path.with_name("999998.json"), {**data, "version": 99})
    (broken := path.with_name("1.json")).write_text("{")
    assert [r.url for r in running.all_running()] == ["http://127.0.0.1:1"]
    assert not other.exists()
    assert later.exists()  # of a later version: must not be removed
    for p in (path, later, broken):
        p.unlink()


def test_a_file_that_cannot_be_removed_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """This happens on Windows while another process reads the file."""
    path = running.announce(RunningServe("http://127.0.0.1:1", "/m/t.gguf", "code"))
    data = read_stored(path)
    write_stored(other := path.with_name("999999.json"), {**data, "process": 1.0})

    def refuses(self: Path, missing_ok: bool = False) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as m:
        m.setattr(Path, "unlink", refuses)
        assert [r.url for r in running.all_running()] == ["http://127.0.0.1:1"]
    path.unlink()
    other.unlink()


def test_requests_are_counted_in_the_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    line = (
        "0.1 I slot      release: id  0 | task 7 | stop processing: n_tokens = 9, truncated = 0\n"
    )
    log.write_text(line)
    request_log = RequestLog(log, len(line))
    assert request_log.count() == 0
    for i in range(0, len(line), 7):  # in parts, as it is written
        with log.open("a") as f:
            f.write(line[i : i + 7])
        assert request_log.count() == (1 if i + 7 > line.index("n_tokens") else 0)
    log.write_text("cut\n" + line)
    assert request_log.count() == 2
    assert RequestLog(tmp_path / "none").count() == 0


def example_view(**more: Any) -> ServerView:
    found = parse_snapshot(Script().text(), 0.0)
    assert found is not None
    counts = replace(found.counts, drafted=1000.0, accepted=300.0)
    view = ServerView("http://127.0.0.1:8080", UP, model="a-model-with-quite-a-long-name.gguf")
    since = replace(view.since, counts=counts, speedup=0.8, slower=0.97)
    speeds = (None, 10.0, 20.0, *[None] * 50, 5.0)
    return replace(view, engine="llama.cpp", since=since, speeds=speeds, **more)


def drawn_text(view: ServerView, width: int) -> str:
    from io import StringIO

    from rich.console import Console

    # soft_wrap like the program's own console
    console = Console(
        file=StringIO(), width=width, force_terminal=True, color_system=None, soft_wrap=True
    )
    with console.capture() as captured:
        console.print(picture(view, console))
    return captured.get()


def test_the_screen_wraps_long_lines_on_a_console_with_soft_wrap() -> None:
    note = "no tokens drafted: speculation is off, or finds nothing to draft"
    text = drawn_text(ServerView("http://127.0.0.1:1", UP, missing=(note,)), 40)
    assert max(map(len, text.splitlines())) <= 40
    assert f"note: {note}" in " ".join(text.split())


@pytest.mark.parametrize("width", [40, 80, 200])
def test_the_screen_fits_the_terminal_width(width: int) -> None:
    from specllama.watching.verdict import TrafficVerdict

    text = drawn_text(example_view(verdict=TrafficVerdict(SLOWER), requests=41, restarts=1), width)
    assert max(len(line) for line in text.splitlines()) <= width
    for part in ("α", "0.30", "speed-up", "0.80x", "requests", "41", "slower than plain", "█", "▃"):
        assert part in text


def test_long_drafts_do_not_fill_the_screen() -> None:
    view = example_view()
    deep = replace(view.since.counts, by_position=tuple(100.0 - i for i in range(48)))
    view = replace(view, since=replace(view.since, counts=deep))
    bars = [line for line in drawn_text(view, 40).splitlines() if "█" in line and "0." in line]
    assert [line.split()[0] for line in bars] == ["6", "12", "18", "24", "30", "36", "42", "48"]
    position = next(line for line in view_lines(view) if line.startswith("position"))
    assert position.endswith("a_8 0.93, … a_48 0.53")


def test_the_screen_of_a_lost_server_escapes_control_characters() -> None:
    text = drawn_text(example_view().__class__("http://h", LOST, "it does not answer\x1b[2J"), 40)
    assert "LOST: it does not answer" in text
    assert "\x1b[2J" not in text


def test_the_conclusion_names_the_threshold() -> None:
    from specllama.cli.watch_lines import conclusion
    from specllama.watching.verdict import TrafficVerdict

    assert conclusion(example_view(verdict=TrafficVerdict(VERY_LOW))) == (
        "α under 0.4, and the speed-up is unknown: turn speculation off, or measure it with "
        "`specllama probe`"
    )
    assert conclusion(example_view()) == ""


def test_without_a_verdict_watch_says_what_it_needs() -> None:
    """Seen: the verdict disappeared without a word once the speed-up was known."""
    from specllama.cli.watch_lines import conclusion
    from specllama.watching.summary import TrafficSummary

    few = TrafficSummary(Counts(120.0, 30.0, 30.0))
    needed = "undecided: 120 of at least 300 drafted tokens"
    assert conclusion(example_view(judged=few)) == needed
    open_ = TrafficSummary(Counts(400.0, 90.0, 100.0), 0.65, samples=3)
    needed = "undecided: 3 of at least 5 samples of 3 s and 64 tokens or more"
    assert conclusion(example_view(judged=open_)) == needed


def test_the_first_snapshot_has_the_verdict_of_earlier_requests() -> None:
    script, times = Script(), StepTimes(20.0, {0: 20.0, 2: 60.0})
    script.responses = 6
    info = RunningServe("", "/m/t.gguf", "code", SPEC, times, since=1.0)
    slow = Ratios((-0.2, -0.21, -0.19, -0.2, -0.22), (64.0,) * 5)
    with llama(script) as url:
        running.announce(replace(info, url=url, samples=slow))
        try:
            with watching(url) as watch:
                view = watch.look()
        finally:
            running.withdraw()
    assert view.verdict.kind == SLOWER


def test_bars_and_sparklines_in_unicode_and_ascii() -> None:
    assert bar(0.5, 10, True) == "█████"
    assert bar(0.5625, 10, True) == "█████▋"
    assert bar(0.5, 10, False) == "#####"
    assert bar(7, 3, False) == "###"
    assert sparkline((1.0, None, 8.0), 60, True) == "▂ █"
    assert len(sparkline([1.0] * 60, 38, True)) <= 38
    assert sparkline((), 10, True) == ""
    assert sparkline((0.0,), 10, False) == "."


def test_prometheus_metrics_have_our_prefix() -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    exporter = Exporter(port)
    try:
        exporter.show(example_view())
        text = httpx.get(f"http://127.0.0.1:{port}/metrics").text
        with pytest.raises(UsageError, match="cannot listen"):
            Exporter(port)
        exporter.show(replace(example_view(), state=LOST))
        lost = httpx.get(f"http://127.0.0.1:{port}/metrics").text
    finally:
        exporter.close()
    labels = '{model="a-model-with-quite-a-long-name.gguf",url="http://127.0.0.1:8080"}'
    assert f"specllama_acceptance_rate{labels} 0.3\n" in text
    assert f"specllama_speedup{labels} 0.8\n" in text
    assert 'position="2"' in text
    assert "specllama_drift{" not in text  # unknown values have no sample
    assert f"specllama_up{labels} 0.0\n" in lost


def test_the_dashboard_uses_exported_metrics() -> None:
    from specllama.watching.export import BY_POSITION, GAUGES, PREFIX

    file = Path(__file__).parent.parent / "docs" / "grafana.json"
    board = json.loads(file.read_text())
    shown = [t["expr"] for p in board["panels"] for t in p.get("targets", [])]
    names = {f"{PREFIX}_{n}" for n in (*GAUGES, BY_POSITION)}
    assert shown
    for expr in shown:
        assert any(n in expr for n in names), expr


def test_json_has_no_infinity() -> None:
    text = json.dumps(view_data(example_view()))
    assert "Infinity" not in text
    assert "NaN" not in text


def test_watch_finds_a_running_serve_by_itself(tmp_path: Path, engine: str) -> None:
    """α agrees with the server's own counters since serve was ready, and requests are counted."""
    target, draft = MODELS / "target.gguf", MODELS / "draft.gguf"
    with Serve(
        tmp_path, target, "--draft", draft, "--llama-server", engine, "--no-idle-probes"
    ) as s:
        before = parse_snapshot(httpx.get(f"{s.url}/metrics").text, 0.0)
        for i in range(3):
            body = {"prompt": f"def add_{i}(x):", "n_predict": 48, "cache_prompt": False}
            httpx.post(f"{s.url}/completion", json=body, timeout=60)
        time.sleep(0.5)
        data = json.loads(specllama("watch", "--once", "--json").stdout)
        found = parse_snapshot(httpx.get(f"{s.url}/metrics").text, 0.0)
    assert before is not None
    assert found is not None
    counted = between(before, found)
    assert data["url"] == s.url
    assert data["since_start"]["drafted"] == counted.drafted != 0
    assert data["alpha"] == pytest.approx(counted.alpha)
    assert data["requests"] == 3
    assert data["model"] == "target.gguf"


def test_a_build_without_the_counters_is_noted(tmp_path: Path, old_builds: Path) -> None:
    target, draft = MODELS / "target.gguf", MODELS / "draft.gguf"
    server = old_builds / "b10068" / "llama-server"
    with Serve(tmp_path, target, "--draft", draft, "--llama-server", server) as s:
        body = {"prompt": "def add(x):", "n_predict": 32}
        httpx.post(f"{s.url}/completion", json=body, timeout=60)
        time.sleep(0.5)
        data = json.loads(specllama("watch", "--once", "--json").stdout)
    assert data["alpha"] is None
    assert data["tokens_per_second"] > 0
    assert data["requests"] == 1
    (missing,) = data["missing"]
    assert "llama.cpp does since b10289" in missing


def test_an_endless_response_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each chunk arrives in time, but there is always another one."""

    def endless(piece: bytes) -> httpx.Client:
        def respond(_: httpx.Request) -> httpx.Response:
            return httpx.Response(200, content=itertools.repeat(piece))

        return httpx.Client(transport=httpx.MockTransport(respond), base_url="http://x")

    with pytest.raises(httpx.ReadError, match="larger than 16 MiB"):
        address.get(endless(b"#" * 2**20), "/metrics", None, 1e9)
    clock = itertools.count()
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    with pytest.raises(httpx.ReadTimeout, match="response took longer than 5 s"):
        address.get(endless(b"# one more\n"), "/metrics", None, 5.0)


def test_a_compressed_response_is_unpacked_once() -> None:
    def respond(_: httpx.Request) -> httpx.Response:
        return httpx.Response(
            200,
            headers={"content-encoding": "gzip", "x-kept": "1"},
            content=gzip.compress(b"hello"),
        )

    http_ = httpx.Client(transport=httpx.MockTransport(respond), base_url="http://x")
    found = address.get(http_, "/metrics", None, 5.0)
    assert (found.text, found.headers["x-kept"]) == ("hello", "1")


def test_a_502_does_not_mean_that_there_is_no_router(monkeypatch: pytest.MonkeyPatch) -> None:
    responses = [httpx.Response(502)]
    responses.append(
        httpx.Response(200, json={"data": [{"id": "m", "status": {"value": "unloaded"}}]})
    )
    metrics = httpx.Response(200, text="llamacpp:tokens_predicted_total 1\n")
    monkeypatch.setattr(
        "specllama.watching.reader.get",
        lambda http, path, *_: responses.pop(0) if path == "/models" else metrics,
    )
    reader = CounterReader("http://127.0.0.1:1")
    reader.read()
    with pytest.raises(RouterIdle, match="no model is loaded"):
        reader.read()
    reader.close()


def test_positions_are_numbered_and_long_drafts_end_with_the_last() -> None:
    assert position_line((0.5, 0.25)) == "position a_1 0.50, a_2 0.25"
    assert position_line((0.5,) * 9 + (0.1,)).endswith("a_8 0.50, … a_10 0.10")
